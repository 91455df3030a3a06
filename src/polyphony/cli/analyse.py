"""The verb that looks into a run's models: analyse."""

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
        int, Parameter(validator=AtLeastOne, help="Images of each split whose Jacobians are compared.")
    ] = 500,
    data: DataRoot = None,
    where: Where = Where(),
) -> None:
    """Look into the models of a run: what the report shows beyond scores. A second call does what is missing.

    Parameters
    ----------
    what
        jacobians: do members change with their input as their teachers do; snr: how clear are the gradients
        that perturbations give; transfer: do directions of an extra teacher make the teachers disagree;
        members: what each says of a few images; latency: milliseconds and file sizes; factors: how far apart
        are the members' weights. All of them unless some are named.
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
