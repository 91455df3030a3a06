"""The verb that measures more of a run's models than scores: analyse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from cyclopts import Parameter

from polyphony.cli import progress, terminal
from polyphony.cli.options import DataRoot, RunFolder
from polyphony.cli.where import AtLeastOne, Where, chosen_for, runner

if TYPE_CHECKING:
    from polyphony.study.analyses import Analysed

What = Literal["jacobians", "snr", "transfer", "members", "latency", "factors"]


def analyse(
    folder: RunFolder,
    /,
    *what: What,
    examples: Annotated[
        int, Parameter(validator=AtLeastOne, help="Number of images of each split for jacobians.")
    ] = 500,
    data: DataRoot = None,
    where: Where = Where(),
) -> None:
    """Measure more of a run's models than scores; the page shows it. A second call does only what is missing.

    Parameters
    ----------
    what
        jacobians: how similar members and teachers react to changes of an image; snr: signal-to-noise ratio
        of the gradients; transfer: whether directions of an extra teacher make the teachers disagree;
        members: the answers of each member on a few images; latency: milliseconds and file sizes; factors:
        distance between the members' weights (default: all).
    """
    from polyphony.serve.price import write_prices
    from polyphony.study import open_study
    from polyphony.study.analyses import analyse as run

    study = open_study(folder, data, chosen_for(where))
    asked = set(what or get_args(What))
    with runner(study, where) as place, progress.board() as board:
        done = run(study, asked - {"latency"}, place, board, examples)
    show(folder, done)
    if "latency" in asked:
        terminal.line(str(write_prices(folder)))


def show(folder: Path, done: Analysed) -> None:
    """What was done, where it is, what was left out."""
    if not done.ran and done.files:
        terminal.line(f"Nothing to do: these analyses of {folder} are done and unchanged.")
    for path in done.files:
        terminal.line(str(path))
    for name, reason in done.left_out.items():
        terminal.line(f"{name} is left out: {reason}.")
