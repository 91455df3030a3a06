"""The verbs that inspect a run: status, clean, report, analyse; and the plan that --dry-run prints."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from cyclopts import Parameter

from polyphony._util.text import counted, duration
from polyphony.cli import progress, terminal
from polyphony.cli.options import (
    AtLeastOne,
    DataRoot,
    RunFolder,
    Where,
    device_for_jobs,
    file_option,
    flag,
    runner,
)

if TYPE_CHECKING:
    from polyphony.execute.job import Job
    from polyphony.study.status import Status, TrainingStatus


def status(
    folder: RunFolder, /, *, as_json: Annotated[bool, flag("Print all trainings as JSON.", "--json")] = False
) -> None:
    """Show which trainings of a study or sweep are done, running or missing.

    It reads only the run's folder, so that it also works while the run goes on elsewhere.
    """
    from polyphony.study.status import run_status

    state = run_status(folder)
    if as_json:
        terminal.plain(json.dumps(asdict(state), indent=1))
    else:
        show_status(state, time.time())


def show_status(run: Status, now: float) -> None:
    """Print one line about the run, and a table of the trainings that are not done."""
    counts = {state: run.count(state) for state in ("running", "stopped", "missing")}
    others = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    done = f"{run.count('done')} of {counted(len(run.trainings), 'training')} done"
    predicted = f"{run.predicted} of {counted(run.predictions, 'prediction')}"
    scores = "scores are written" if run.scored else "no scores yet"
    terminal.line(f"{run.folder}: {done}{f' ({others})' if others else ''}; {predicted}; {scores}.")
    left = [status_cells(training, now) for training in run.trainings if training.state != "done"]
    if left:
        terminal.show_table(("training", "state", "epochs", "where", "for", "last sign"), left)


def status_cells(training: TrainingStatus, now: float) -> list[str]:
    """A training as a row of the table."""
    where = f"{training.host}, process {training.pid}" if training.host else ""
    since = duration(now - datetime.fromisoformat(training.since).timestamp()) if training.since else ""
    last = f"{duration(now - training.changed)} ago" if training.changed else ""
    return [training.name, training.state, f"{training.epochs} of {training.of}", where, since, last]


def show_plan(jobs: Sequence[Job], folder: Path) -> None:
    """Print the state of every training, and how many predictions are missing."""
    from polyphony.study.run import job_states

    states = job_states(jobs, folder.parent)
    trainings = [job for job in jobs if job.in_ranks]
    rows = [(job.name, states[job.name], job.key[:12]) for job in trainings]
    terminal.show_table(("training", "state", "key"), rows, f"Plan of {folder}")
    left = [job for job in jobs if states[job.name] != "done"]
    left_trainings = sum(job.in_ranks for job in left)
    terminal.line(
        f"{left_trainings} of {counted(len(trainings), 'training')} and {len(left) - left_trainings} of"
        f" {counted(len(jobs) - len(trainings), 'prediction')} are left to do. Nothing was written."
    )


def clean(
    folder: RunFolder,
    /,
    *,
    yes: Annotated[bool, flag("Remove them. Without it, they are only listed.")] = False,
    data: DataRoot = None,
) -> None:
    """Remove the trainings and predictions of a run that its recipe no longer names."""
    from polyphony.study.leftovers import delete, total_size
    from polyphony.study.status import run_leftovers

    leftovers = run_leftovers(folder, data)
    for path in leftovers:
        terminal.line(str(path))
    what = f"{counted(len(leftovers), 'result')} ({total_size(leftovers)})"
    if not leftovers:
        terminal.line(f"{folder} holds nothing that its recipe does not name.")
    elif yes:
        for path in leftovers:
            delete(path)
        terminal.line(f"Removed {what}.")
    else:
        terminal.line(f"The recipe of {folder} does not name {what}: give --yes to remove them.")


def report(
    runs: Annotated[
        tuple[Path, ...],
        Parameter(name="RUN", required=True, help="Folders of runs, for example runs/digits."),
    ],
    /,
    *,
    out: Annotated[
        Path | None,
        file_option("html", "Page to write (default: RUN/report.html; for several runs report.html)."),
    ] = None,
) -> None:
    """Write an HTML page, figures and tables about a run or sweep, or compare several runs."""
    with terminal.working("Writing the page"):
        from polyphony.report import write_report

        page = write_report(runs, out)
    terminal.line(f"Page: {page}")


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
    """Run further analyses of a run's models, for its page. A second call does only what is missing.

    Parameters
    ----------
    what
        jacobians: how similarly members and teachers react to changes of an image; snr: signal-to-noise ratio
        of the gradients; transfer: whether directions of an extra teacher make the teachers disagree;
        members: the answers of each member on a few images; latency: milliseconds and file sizes; factors:
        distance between the members' weights (default: all).
    """
    from polyphony.serve.price import write_prices
    from polyphony.study.analyses import analyse as run
    from polyphony.study.provenance import open_study

    study = open_study(folder, data, device_for_jobs(where))
    wanted = set(what or get_args(What))
    with runner(study, where) as place, progress.board() as board:
        outcome = run(study, wanted - {"latency"}, place, board, examples)
    if not outcome.ran and outcome.files:
        terminal.line(f"Nothing to do: these analyses of {folder} are done and unchanged.")
    for path in outcome.files:
        terminal.line(str(path))
    for name, reason in outcome.left_out.items():
        terminal.line(f"{name} is left out: {reason}.")
    if "latency" in wanted:
        terminal.line(str(write_prices(folder)))
