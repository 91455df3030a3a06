"""The state of a run: which trainings are done, running (where, since when, how far) or missing."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from polyphony._util.files import is_alive
from polyphony._util.text import first_line
from polyphony.runs.rows import Score, SweepScore
from polyphony.runs.stage import DONE, LOG, STARTED
from polyphony.runs.store import SWEEP_FILE, StoreError, damaged_file, read_bytes, read_json
from polyphony.study.fingerprints import fingerprints
from polyphony.study.leftovers import leftovers
from polyphony.study.plan import plan, score_predictions, trainings, valid_predictions
from polyphony.study.provenance import stored_recipe
from polyphony.study.study import Study


@dataclass(frozen=True)
class TrainingStatus:
    """A training of a run: done, running, stopped (killed and not resumed yet) or missing."""

    name: str
    state: str
    epochs: int  # finished epochs
    of: int
    host: str | None = None  # where it was started last
    pid: int | None = None
    since: str | None = None  # time of the last start, in ISO format
    changed: float | None = None  # last change of its folder, in seconds since 1970


@dataclass(frozen=True)
class Status:
    """The state of a run: its trainings, predictions and scores."""

    folder: str
    trainings: list[TrainingStatus]
    predicted: int  # predictions that exist
    predictions: int  # predictions of the whole plan
    scored: bool  # whether the table of scores exists

    def count(self, state: str) -> int:
        return sum(training.state == state for training in self.trainings)


def run_status(folder: Path) -> Status:
    """The state of the study or sweep in a folder; raises a StoreError for any other folder.

    The status of a search counts the points that optuna has proposed so far.
    """
    study = stored_study(folder)
    is_sweep = (folder / SWEEP_FILE).exists()
    paths = [work.path for work in (valid_predictions if is_sweep else score_predictions)(study)]
    table = (SweepScore if is_sweep else Score).file
    states = [training_status(work.name, work.epochs, work.folder) for work in trainings(study)]
    return Status(str(folder), states, sum(map(Path.exists, paths)), len(paths), (folder / table).exists())


def stored_study(folder: Path) -> Study:
    """The study or sweep in a folder, without its data and without importing the user's code."""
    return Study(stored_recipe(folder, code=False), folder)


def run_leftovers(folder: Path, data_root: Path | None) -> list[Path]:
    """The results in a folder of a study or sweep that its recipe no longer names."""
    study = Study(stored_recipe(folder), folder, data_root)
    is_sweep = (folder / SWEEP_FILE).exists()
    predictions = valid_predictions(study) if is_sweep else None
    return leftovers(folder, plan(study, fingerprints(study), predictions))


def training_status(name: str, epochs: int, folder: Path) -> TrainingStatus:
    """The state of one training. done.json is checked last, since the training may end meanwhile."""
    done, started = folder / DONE, folder / STARTED
    status = TrainingStatus(name, "missing", 0, epochs)
    try:
        status = unfinished_status(name, epochs, folder)
    except (StoreError, OSError):
        if started.exists() and not done.exists():
            raise
    if done.exists():
        return TrainingStatus(name, "done", epochs, epochs, changed=done.stat().st_mtime)
    return status


def unfinished_status(name: str, epochs: int, folder: Path) -> TrainingStatus:
    """The state of a training that has started and is not done; raises if it has no started.json."""
    started, log = folder / STARTED, folder / LOG
    host, pid, since = last_start(started)
    finished = read_bytes(log).count(b"\n") if log.exists() else 0
    ended = host is None or (host == platform.node() and (pid is None or not is_alive(pid)))
    changed = max(path.stat().st_mtime for path in (started, log) if path.exists())
    return TrainingStatus(
        name, "stopped" if ended else "running", finished, epochs, host, pid, since, changed
    )


def last_start(started: Path) -> tuple[str | None, int | None, str | None]:
    """Host, process and time of the last start; None for each that started.json lacks."""
    record = read_json(started)
    host, pid, since = (record.get(field) for field in ("host", "pid", "since"))
    try:
        if since is not None:
            datetime.fromisoformat(since).timestamp()
    except (TypeError, ValueError, OverflowError) as error:
        raise damaged_file(started, first_line(error)) from error
    if not isinstance(host, str | None) or not isinstance(pid, int | None):
        raise damaged_file(started, "it names no host and process")
    return host, pid, since
