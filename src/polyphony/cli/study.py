"""The verbs that work on a recipe: study, teach, distill, evaluate, show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from polyphony.cli import terminal
from polyphony.cli.advice import missing_data
from polyphony.cli.where import AtLeastOne, Device, Where, chosen_for, runner

if TYPE_CHECKING:
    from polyphony.study import Board, Runner, Study

DataRoot = Annotated[
    Path | None, Parameter(name="--data", help="Folder that holds the data sets; else $POLYPHONY_DATA.")
]
Overrides = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        negative="",
        metavar="KEY=VALUE",
        show_default=False,
        help="Change one key of the recipe, for example student.alpha=0.5; give --set again for another.",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Running:
    """How a study is run."""

    out: Annotated[
        Path | None,
        Parameter(help="Folder for the results; one in runs/ named after the recipe unless given."),
    ] = None
    overrides: Overrides = ()
    data: DataRoot = None
    where: Where = Where()  # noqa: RUF009 (frozen)
    redo: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Replace results that were made with another recipe."
        ),
    ] = False
    tensorboard: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Write what is logged for TensorBoard, too."),
    ] = False


def study(recipe: str, /, *, running: Running = Running()) -> None:  # noqa: B008 (frozen)
    """Do everything: train the teachers, distil the students, predict, score, print a table, write a page.

    A second call does only what is missing; an interrupted one goes on where it was.

    Parameters
    ----------
    recipe
        A TOML file, or the name of a shipped recipe, for example digits.
    """
    from polyphony.report import write_report

    done = run(recipe, running, "EVALUATE")
    terminal.line(f"Page: {write_report([done.folder], None)}")


def teach(recipe: str, /, *, running: Running = Running()) -> None:  # noqa: B008 (frozen)
    """Train the teachers of a recipe, and no more.

    Parameters
    ----------
    recipe
        A TOML file, or the name of a shipped recipe.
    """
    run(recipe, running, "TEACH")


def distill(recipe: str, /, *, running: Running = Running()) -> None:  # noqa: B008 (frozen)
    """Train the students of a recipe, and before them what is missing of the teachers.

    Parameters
    ----------
    recipe
        A TOML file, or the name of a shipped recipe.
    """
    run(recipe, running, "DISTILL")


def repeatable(what: str) -> Parameter:
    """An option that takes one name and may be given several times."""
    return Parameter(negative="", show_default=False, metavar="NAME", help=f"{what} Repeatable.")


def evaluate(
    folder: Path,
    /,
    *,
    ood: Annotated[tuple[str, ...], repeatable("A data set of unknown classes, for example svhn.")] = (),
    corrupted: Annotated[tuple[str, ...], repeatable("Corrupted test images, for example cifar10-c.")] = (),
    limit: Annotated[
        int | None, Parameter(validator=AtLeastOne, help="The first so many images of those sets.")
    ] = None,
    data: DataRoot = None,
    where: Where = Where(),  # noqa: B008 (frozen)
) -> None:
    """Predict with what a run has trained, write scores.csv and print the table.

    Parameters
    ----------
    folder
        A run folder, for example runs/digits.
    """
    from polyphony.study import check_trained, evaluate_corrupted, evaluate_unknown, open_study

    study = open_study(folder, data, chosen_for(where))
    check_trained(study)
    with runner(study, where) as place:
        run_to(study, "EVALUATE", place, redo=False)
        for names, measure in ((ood, evaluate_unknown), (corrupted, evaluate_corrupted)):
            for name in names:
                with terminal.board() as board:
                    rows = measure(study, name, place, board, limit)
                terminal.line(f"{name}: {len(rows)} scores in {study.folder / 'analysis'}")


def show(
    recipe: str,
    /,
    *,
    overrides: Overrides = (),
    data: DataRoot = None,
    device: Device = "auto",
    code: Annotated[bool, Parameter(help="Import what a recipe names of kind python, to count it.")] = True,
) -> None:
    """Print the resolved recipe, the parameter counts, and what it will cost on this machine.

    Parameters
    ----------
    recipe
        A TOML file, or the name of a shipped recipe. With --no-code one from elsewhere can be looked at
        safely: it is read and printed, and nothing that it names is run.
    """
    from polyphony.recipe import read_recipe
    from polyphony.study import costs, default_workers, sketched

    if not code:
        terminal.show_recipe(read_recipe(recipe, overrides, code=False))
        return
    study = outlined_if_absent(prepare(recipe, Running(overrides=overrides, data=data, where=Where(device))))
    terminal.show_recipe(study.recipe)
    sketch = sketched(study)
    terminal.show_parameters(sketch.parameter_counts, sketch.member_shares)
    terminal.show_costs(costs(study, sketch), default_workers(study))


def prepare(recipe: str, running: Running) -> Study:
    """The study that the arguments describe; nothing is written."""
    from polyphony.recipe import own_code, read_recipe
    from polyphony.study import Study

    if names := own_code(read_recipe(recipe, running.overrides, code=False)):
        terminal.line(f"{recipe} runs code of its own: {', '.join(names)}.")
    resolved = read_recipe(recipe, running.overrides)
    folder = running.out or Path("runs", resolved.name)
    return Study(resolved, folder, running.data, chosen_for(running.where))


def outlined_if_absent(study: Study) -> Study:
    """The study itself, or its outline where its data is not here."""
    from polyphony.data import DataError, MissingDataError
    from polyphony.study import OutlinedStudy

    try:
        study.splits  # noqa: B018 (read to see whether it can be)
    except MissingDataError as error:
        outlined = OutlinedStudy(study.recipe, study.folder, study.data_root, study.device)
        try:
            count = len(outlined.splits.train)
        except DataError:
            raise error from None
        terminal.line(f"{missing_data(error)}. Counted with the official {count:,} training images instead.")
        return outlined
    return study


def measurable(study: Study) -> Study:
    """The study with a device that is here, to measure what it costs."""
    from polyphony.devices import choose_device

    try:
        choose_device(study.device)
    except ValueError:
        return replace(study, device="cpu")
    return study


def run(recipe: str, running: Running, upto: str) -> Study:
    """Run the study of a recipe so far."""
    study = prepare(recipe, running)
    with runner(study, running.where) as place:
        run_to(study, upto, place, running.redo, running.tensorboard)
    return study


def run_to(study: Study, upto: str, place: Runner, redo: bool, tensorboard: bool = False) -> None:
    """Run a study up to a part, and print what came out."""
    from polyphony.study import Cluster, Upto, check_memory, costs, run_study

    if not study.folder.exists():
        trainings = costs(measurable(study))
        if not isinstance(place, Cluster):  # whose nodes have memories of their own
            check_memory(study, max((cost.memory for cost in trainings), default=0))
        terminal.announce(study, trainings[:1] if upto == "TEACH" else trainings, place.at_once)
    with terminal.board() as board:
        seen = on_tensorboard(board, study.folder) if tensorboard else board
        outcome = run_study(study, place, seen, upto=Upto[upto], redo=redo)
    terminal.show_outcome(study, outcome)


def on_tensorboard(board: Board, folder: Path) -> Board:
    """A board of which TensorBoard hears too."""
    from polyphony.cli.tensorboard import TensorBoard

    return TensorBoard(board, folder)
