"""What a study would do (--dry-run), and the verb that removes what its recipe no longer names: clean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape
from rich.table import Table

from polyphony._util.text import counted
from polyphony.cli import terminal
from polyphony.cli.options import DataRoot, RunFolder, flag

if TYPE_CHECKING:
    from polyphony.execute import Job


def show_plan(jobs: Sequence[Job], folder: Path) -> None:
    """The state of every training, and how many predictions there are and will be."""
    from polyphony.study.run import outlook

    states = outlook(jobs, folder.parent)
    trainings = [job.name for job in jobs if job.in_ranks]
    table = Table("training", "state", "key", title=f"Plan of {folder}")
    for job in jobs:
        if job.in_ranks:
            table.add_row(escape(job.name), escape(states[job.name]), job.key[:12])
    terminal.console.print(table)
    counts = Counter(states[name] for name in trainings)
    left = len(trainings) - counts["done"]
    predictions = [state for name, state in states.items() if name not in trainings]
    missing = sum(state != "done" for state in predictions)
    terminal.line(
        f"{left} of {counted(len(trainings), 'training')} and {missing} of"
        f" {counted(len(predictions), 'prediction')} are left to do. Nothing was written."
    )


def clean(
    folder: RunFolder,
    /,
    *,
    yes: Annotated[bool, flag("Remove them. Without it, they are only listed.")] = False,
    data: DataRoot = None,
) -> None:
    """Remove the trainings and predictions of a run that its recipe no longer names."""
    from polyphony.study.leftovers import amount, delete
    from polyphony.study.status import run_leftovers

    found = run_leftovers(folder, data)
    for path in found:
        terminal.line(str(path))
    what = f"{counted(len(found), 'result')} ({amount(found)})"
    if not found:
        terminal.line(f"{folder} holds nothing that its recipe does not name.")
    elif yes:
        for path in found:
            delete(path)
        terminal.line(f"Removed {what}.")
    else:
        terminal.line(f"The recipe of {folder} does not name {what}: give --yes to remove them.")
