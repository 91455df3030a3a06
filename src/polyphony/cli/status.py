"""The verb that says how far a run is: status."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape
from rich.table import Table

from polyphony._util.text import counted, duration
from polyphony.cli import terminal
from polyphony.cli.options import RunFolder, flag

if TYPE_CHECKING:
    from polyphony.study.status import Status, TrainingStatus


def status(
    folder: RunFolder, /, *, as_json: Annotated[bool, flag("Print all trainings as JSON.", "--json")] = False
) -> None:
    """Show which trainings of a study or sweep are done, running or missing.

    It reads only the run's folder, so that it also works while the run goes on elsewhere.
    """
    from polyphony.study.status import run_status

    found = run_status(folder)
    if as_json:
        terminal.plain(json.dumps(asdict(found), indent=1))
    else:
        show(found, time.time())


def show(found: Status, now: float) -> None:
    """A line for all, and a table of the trainings that are not done."""
    states = ", ".join(
        f"{n} {state}" for state in ("running", "stopped", "missing") if (n := found.count(state))
    )
    done = f"{found.count('done')} of {counted(len(found.trainings), 'training')} done"
    predicted = f"{found.predicted} of {counted(found.predictions, 'prediction')}"
    scores = "scores are written" if found.scored else "no scores yet"
    terminal.line(f"{found.folder}: {done}{f' ({states})' if states else ''}; {predicted}; {scores}.")
    table = Table("training", "state", "epochs", "where", "for", "last sign")
    for training in found.trainings:
        if training.state != "done":
            table.add_row(*map(escape, cells(training, now)))
    if table.rows:
        terminal.console.print(table)


def cells(training: TrainingStatus, now: float) -> list[str]:
    """A training as text."""
    where = f"{training.host}, process {training.pid}" if training.host else ""
    since = duration(now - datetime.fromisoformat(training.since).timestamp()) if training.since else ""
    last = f"{duration(now - training.changed)} ago" if training.changed else ""
    return [training.name, training.state, f"{training.epochs} of {training.of}", where, since, last]
