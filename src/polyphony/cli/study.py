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
    Running,
    Where,
    chosen_for,
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
    running: Running = Running(),
    analyses: Annotated[
        bool, Parameter(help="At the end, run the short analyses and measure milliseconds and file sizes.")
    ] = True,
) -> None:
    """Run a recipe: train teachers and students, score them, print a table and write a page.

    A second call does only what is missing. After an interruption, the same command continues.
    """
    done = run(recipe, running, "EVALUATE", analyses)
    if not running.dry_run:
        report((done.folder,))
        terminal.line(
            f"Next: polyphony export {done.folder} --out student.onnx (validation images choose which)."
        )


def teach(recipe: RecipeName, /, *, running: Running = Running()) -> None:
    """Train only the teachers of a recipe."""
    run(recipe, running, "TEACH")


def distill(recipe: RecipeName, /, *, running: Running = Running()) -> None:
    """Train the students of a recipe, and its teachers if they are missing."""
    run(recipe, running, "DISTILL")


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

    study = open_study(folder, data, chosen_for(where))
    check_trained(study)
    for source in groups:
        add_groups(study.folder, source, len(study.data().test))
    with runner(study, where) as place:
        run_to(study, "EVALUATE", place, Running())
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
    from polyphony.study.cost import answers, costs, sketched
    from polyphony.study.plan import score_predictions

    if not code:
        read = read_recipe(recipe, overrides, code=False)
        terminal.show_json(read) if as_json else terminal.show_recipe(read)
        return
    with terminal.working("Measuring how fast this machine is"):
        running = Running(overrides=overrides, data=data, where=Where(device))
        study = outlined_if_missing(prepare(recipe, running))
        sketch = sketched(study)
        trainings, answered = costs(study, sketch), answers(study, sketch)
        at_once = default_workers(study.device, study.threads())
    if as_json:
        terminal.show_json(
            study.recipe,
            parameters=sketch.parameter_counts,
            with_members=sketch.member_shares,
            answers=[asdict(answer) for answer in answered],
            costs=[asdict(cost) for cost in trainings],
            at_once=at_once,
        )
        return
    terminal.show_recipe(study.recipe)
    teachers, students = counted(study.teacher_count, "teacher"), counted(len(study.students), "student")
    predictions = counted(len(score_predictions(study)), "prediction")
    terminal.line(f"Plan: {teachers}, {students}, {predictions}.")
    terminal.show_answers(answered, sketch.member_shares)
    terminal.show_costs(trainings, at_once)


def prepare(recipe: str, running: Running) -> Study:
    """The study that the arguments describe; nothing is written."""
    from polyphony.recipe import own_code, read_recipe
    from polyphony.study.study import Study

    if names := own_code(read_recipe(recipe, running.overrides, code=False)):
        terminal.note(f"{recipe} runs code of its own: {', '.join(names)}.")
    resolved = read_recipe(recipe, running.overrides)
    folder = running.out or Path("runs", resolved.name)
    return Study(resolved, folder, running.data, chosen_for(running.where))


def outlined_if_missing(study: Study) -> Study:
    """The study; if its data is missing, with blank images."""
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


def run(recipe: str, running: Running, upto: str, analyses: bool = False) -> Study:
    """Run the study of a recipe up to a stage."""
    terminal.say(f"Polyphony {__version__}: {recipe}")
    with terminal.working("Loading PyTorch and the data"):
        study = prepare(recipe, running)
        study.data()
    if running.dry_run:
        preview(study, upto)
        return study
    with runner(study, running.where) as place:
        run_to(study, upto, place, running, analyses)
    return study


def preview(study: Study, upto: str) -> None:
    """Show what a study would do; every model is built once, so that one that cannot be is refused."""
    from polyphony.study.cost import sketched
    from polyphony.study.fingerprints import fingerprints
    from polyphony.study.plan import Upto, part, plan

    sketched(study)
    show_plan(part(plan(study, fingerprints(study)), Upto[upto]), study.folder)


def run_to(study: Study, upto: str, place: Runner, running: Running, analyses: bool = False) -> None:
    """Run a study up to a stage, and print the result."""
    from polyphony.study.plan import Upto
    from polyphony.study.run import run_study

    exists = study.folder.exists()
    whole = begun(study, upto, running.redo) if exists else announce(study, upto, place)
    with progress.board(whole, study.folder if running.tensorboard else None) as board:
        outcome = run_study(study, place, board, upto=Upto[upto], redo=running.redo)
        if analyses:
            analyse_shortly(study, place, board)
    terminal.show_outcome(study, outcome)


def analyse_shortly(study: Study, place: Runner, board: Board) -> None:
    """Run the analyses that take seconds, and measure the latency of the models."""
    from polyphony.serve.price import write_prices
    from polyphony.study.analyses import SHORT, analyse

    analyse(study, SHORT, place, board)
    board.started("latency and file sizes", 1)
    write_prices(study.folder)
    board.finished("latency and file sizes")


def announce(study: Study, upto: str, place: Runner) -> progress.Whole:
    """Say what will happen and how long it will take; returns the expected time of each training."""
    trainings = expected_costs(study, place)
    if not trainings:
        return progress.Whole(weights(study, upto))
    taught = len(trainings) - len(study.recipe.methods)  # pretrained teachers cost nothing
    said = f"{study.recipe.name}: {counted(study.teacher_count, 'teacher')}"
    if upto == "TEACH":
        trainings = trainings[:taught]
    else:
        said += f", then {counted(len(study.students), 'student')} ({', '.join(study.recipe.methods)})"
    terminal.say(f"{said}.")
    terminal.say(terminal.estimate(trainings, place.at_once))
    if any(study.folder.parent.glob("*/teachers/*/done.json")):
        terminal.say(f"It takes less if other runs in {study.folder.parent} have trained the same.")
    return progress.Whole(weights(study, upto, {cost.name: cost.seconds for cost in trainings}))


def begun(study: Study, upto: str, redo: bool) -> progress.Whole:
    """The progress of a study that was begun before; with `redo` none."""
    from polyphony.study.status import run_status

    is_run = not redo and (study.folder / "recipe.json").exists()
    trainings = run_status(study.folder).trainings if is_run else []
    return progress.Whole(weights(study, upto), {each.name: each.epochs / each.of for each in trainings})


def weights(study: Study, upto: str, seconds: Mapping[str, float] | None = None) -> dict[str, float]:
    """The weight of each training: the seconds of its kind, or its epochs if nothing was measured."""
    from polyphony.study.jobs import TrainStudent
    from polyphony.study.plan import trainings

    found = {}
    for each in trainings(study):
        kind = each.method if isinstance(each, TrainStudent) else "teacher"
        if upto != "TEACH" or kind == "teacher":
            found[each.name] = (seconds or {}).get(kind, each.epochs)
    return found


def expected_costs(study: Study, place: Runner) -> list[Cost]:
    """The cost of trainings on this machine; raises a TooLargeError if they do not fit into its memory.

    On a cluster, whose nodes may have more memory, it returns nothing instead.
    """
    from polyphony.compute.devices import choose_device
    from polyphony.execute.cluster import Cluster
    from polyphony.study.cost import TooLargeError, check_memory, costs

    measured = study
    try:
        choose_device(study.device)
    except ValueError:  # a cluster's device, which this machine does not have
        measured = replace(study, device="cpu")
    try:
        with terminal.working("Measuring how fast this machine is"):
            found = costs(measured)
        check_memory(study, max((cost.memory for cost in found), default=0))
    except TooLargeError:
        if isinstance(place, Cluster):
            return []
        raise
    return found
