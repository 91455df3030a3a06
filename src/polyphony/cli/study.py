"""The verbs that work on a recipe: study, teach, distill, evaluate, show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from polyphony import __version__
from polyphony._util.text import counted
from polyphony.cli import progress, terminal
from polyphony.cli.advice import missing_data
from polyphony.cli.inspect import report, show_plan
from polyphony.cli.options import (
    AtLeastOne,
    DataRoot,
    Device,
    Overrides,
    RecipeName,
    RunFolder,
    RunOptions,
    Where,
    device_for_jobs,
    flag,
    repeatable,
    runner,
)

if TYPE_CHECKING:
    from polyphony.execute.board import Board
    from polyphony.execute.runner import Runner
    from polyphony.study.cost import Cost
    from polyphony.study.study import Study


def study(
    recipe: RecipeName,
    /,
    *,
    options: RunOptions = RunOptions(),
    analyses: Annotated[
        bool, Parameter(help="At the end, run the short analyses and measure milliseconds and file sizes.")
    ] = True,
) -> None:
    """Run a recipe: train teachers and students, score them, print a table and write a page.

    A second call does only what is missing. After an interruption, the same command continues.
    """
    finished = run(recipe, options, "EVALUATE", analyses)
    if not options.dry_run:
        report((finished.folder,))
        terminal.line(
            f"Next: polyphony export {finished.folder} --out student.onnx (validation images choose which)."
        )


def teach(recipe: RecipeName, /, *, options: RunOptions = RunOptions()) -> None:
    """Train only the teachers of a recipe."""
    run(recipe, options, "TEACH")


def distill(recipe: RecipeName, /, *, options: RunOptions = RunOptions()) -> None:
    """Train the students of a recipe, and its teachers if they are missing."""
    run(recipe, options, "DISTILL")


def evaluate(
    folder: RunFolder,
    /,
    *,
    ood: Annotated[tuple[str, ...], repeatable("Data set of unknown classes, for example svhn.")] = (),
    corrupted: Annotated[tuple[str, ...], repeatable("Corrupted test images, for example cifar10-c.")] = (),
    limit: Annotated[
        int | None,
        Parameter(validator=AtLeastOne, help="Number of images of each data set (default: all)."),
    ] = None,
    groups: Annotated[
        tuple[str, ...],
        repeatable("Column of a CSV file with a row for each test image: FILE.csv:COLUMN."),
    ] = (),
    data: DataRoot = None,
    where: Where = Where(),
) -> None:
    """Score the trained models of a run, also on unknown classes, corrupted images and groups of images."""
    from polyphony.study.evaluation import check_trained, evaluate_corrupted, evaluate_unknown
    from polyphony.study.provenance import open_study
    from polyphony.study.trust import add_groups

    study = open_study(folder, data, device_for_jobs(where))
    check_trained(study)
    for source in groups:
        add_groups(study.folder, source, len(study.data().test))
    with runner(study, where) as place:
        run_to(study, "EVALUATE", place, RunOptions())
        for names, measure in ((ood, evaluate_unknown), (corrupted, evaluate_corrupted)):
            for name in names:
                with progress.board() as board:
                    rows = measure(study, name, place, board, limit)
                terminal.line(f"{name}: {len(rows)} scores in {study.folder / 'analysis'}")


def show(
    recipe: RecipeName,
    /,
    *,
    overrides: Overrides = (),
    data: DataRoot = None,
    device: Device = "auto",
    code: Annotated[bool, Parameter(help="Import the Python code that the recipe names.")] = True,
    as_json: Annotated[bool, flag("Print recipe, parameter counts and costs as JSON.", "--json")] = False,
) -> None:
    """Print a recipe with all its settings, what one answer of each model costs, and what its trainings cost.

    With --no-code, no code of the recipe runs: it is safe to look at a recipe from somebody else.
    """
    from polyphony.execute.processes import default_workers
    from polyphony.recipe import read_recipe
    from polyphony.study.cost import costs, prediction_costs, sketch_models
    from polyphony.study.plan import score_predictions

    if not code:
        resolved = read_recipe(recipe, overrides, code=False)
        terminal.show_json(resolved) if as_json else terminal.show_recipe(resolved)
        return
    with terminal.working("Measuring how fast this machine is"):
        options = RunOptions(overrides=overrides, data=data, where=Where(device))
        study = outline_if_missing(prepare(recipe, options))
        sketch = sketch_models(study)
        trainings, answer_costs = costs(study, sketch), prediction_costs(study, sketch)
        at_once = default_workers(study.device, study.threads())
    if as_json:
        terminal.show_json(
            study.recipe,
            parameters=sketch.parameter_counts,
            with_members=sketch.member_shares,
            answers=[asdict(answer) for answer in answer_costs],
            costs=[asdict(cost) for cost in trainings],
            at_once=at_once,
        )
        return
    terminal.show_recipe(study.recipe)
    teachers, students = counted(study.teacher_count, "teacher"), counted(len(study.students), "student")
    predictions = counted(len(score_predictions(study)), "prediction")
    searches = sum(map(study.recipe.searches_step, study.recipe.methods))
    steps = f"{counted(searches, 'step size')} to search, " if searches else ""
    terminal.line(f"Plan: {teachers}, {steps}{students}, {predictions}.")
    terminal.show_answers(answer_costs, sketch.member_shares)
    terminal.show_costs(trainings, at_once)


def prepare(recipe: str, options: RunOptions) -> Study:
    """The study that the arguments describe. Writes nothing."""
    from polyphony.recipe import own_code, read_recipe
    from polyphony.study.study import Study

    if names := own_code(read_recipe(recipe, options.overrides, code=False)):
        terminal.note(f"{recipe} runs code of its own: {', '.join(names)}.")
    resolved = read_recipe(recipe, options.overrides)
    folder = options.out or Path("runs", resolved.name)
    return Study(resolved, folder, options.data, device_for_jobs(options.where))


def outline_if_missing(study: Study) -> Study:
    """The study; if its data is missing, the study with blank images instead."""
    from polyphony.data import DataError, MissingDataError

    try:
        study.data()
    except MissingDataError as error:
        try:
            outlined = study.outlined()
        except DataError:
            raise error from None
        count = len(outlined.data().train)
        terminal.note(f"{missing_data(error)}. Counted with the official {count:,} training images instead.")
        return outlined
    return study


def run(recipe: str, options: RunOptions, upto: str, analyses: bool = False) -> Study:
    """Run the study of a recipe up to a stage."""
    terminal.say(f"Polyphony {__version__}: {recipe}")
    with terminal.working("Loading PyTorch and the data"):
        study = prepare(recipe, options)
        study.data()
    if options.dry_run:
        preview(study, upto)
        return study
    with runner(study, options.where) as place:
        run_to(study, upto, place, options, analyses)
    return study


def preview(study: Study, upto: str) -> None:
    """Show what a study would do. Builds every model once, and raises if that is not possible."""
    from polyphony.study.cost import sketch_models
    from polyphony.study.fingerprints import fingerprints
    from polyphony.study.plan import Upto, jobs_upto, plan

    sketch_models(study)
    show_plan(jobs_upto(plan(study, fingerprints(study)), Upto[upto]), study.folder)


def run_to(study: Study, upto: str, place: Runner, options: RunOptions, analyses: bool = False) -> None:
    """Run a study up to a stage, and print the result."""
    from polyphony.study.plan import Upto
    from polyphony.study.run import run_study

    exists = study.folder.exists()
    total = earlier_progress(study, upto, options.redo) if exists else announce(study, upto, place)
    with progress.board(total, study.folder if options.tensorboard else None) as board:
        outcome = run_study(study, place, board, upto=Upto[upto], redo=options.redo)
        if analyses:
            run_short_analyses(study, place, board)
    terminal.show_outcome(study, outcome)


def run_short_analyses(study: Study, place: Runner, board: Board) -> None:
    """Run the analyses that take seconds, and measure latency and file sizes of the models."""
    from polyphony.serve.price import write_prices
    from polyphony.study.analyses import SHORT, analyse

    analyse(study, SHORT, place, board)
    board.started("latency and file sizes", 1)
    write_prices(study.folder)
    board.finished("latency and file sizes")


def announce(study: Study, upto: str, place: Runner) -> progress.TotalProgress:
    """Print what will happen and how long it will take. Returns progress weighted by expected seconds."""
    trainings = expected_costs(study, place)
    if not trainings:
        return progress.TotalProgress(weights(study, upto))
    summary = f"{study.recipe.name}: {counted(study.teacher_count, 'teacher')}"
    if upto == "TEACH":
        trainings = [cost for cost in trainings if cost.name == "teacher"]
    else:
        summary += f", then {counted(len(study.students), 'student')} ({', '.join(study.recipe.methods)})"
    terminal.say(f"{summary}.")
    terminal.say(terminal.estimate(trainings, place.at_once))
    if any(study.folder.parent.glob("*/teachers/*/done.json")):
        terminal.say(
            f"It takes less time if other runs in {study.folder.parent} hold some of these trainings."
        )
    return progress.TotalProgress(weights(study, upto, {cost.name: cost.seconds for cost in trainings}))


def earlier_progress(study: Study, upto: str, redo: bool) -> progress.TotalProgress:
    """The progress of a study whose folder exists; with `redo` it starts at zero."""
    from polyphony.study.status import run_status

    is_run = not redo and (study.folder / "recipe.json").exists()
    trainings = run_status(study.folder).trainings if is_run else []
    return progress.TotalProgress(
        weights(study, upto), {training.name: training.epochs / training.of for training in trainings}
    )


def weights(study: Study, upto: str, seconds: Mapping[str, float] | None = None) -> dict[str, float]:
    """The weight of each training by name: the seconds of its kind, or its epochs if nothing was measured."""
    from polyphony.study.plan import trainings

    return {
        training.name: (seconds or {}).get(training.kind, training.epochs)
        for training in trainings(study)
        if upto != "TEACH" or training.kind == "teacher"
    }


def expected_costs(study: Study, place: Runner) -> list[Cost]:
    """The cost of each kind of training on this machine; raises a TooLargeError if one needs too much memory.

    On a cluster, whose nodes may have more memory, it returns an empty list instead.
    """
    from polyphony.compute.devices import choose_device
    from polyphony.execute.cluster import Cluster
    from polyphony.study.cost import TooLargeError, check_memory, costs

    measured = study
    try:
        choose_device(study.device)
    except ValueError:  # the device exists on the cluster, not on this machine
        measured = replace(study, device="cpu")
    try:
        with terminal.working("Measuring how fast this machine is"):
            trainings = costs(measured)
        check_memory(study, max((cost.memory for cost in trainings), default=0))
    except TooLargeError:
        if isinstance(place, Cluster):
            return []
        raise
    return trainings
