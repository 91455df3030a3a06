"""What a run's folder says: which trainings are done, running (where, since when, how far) or missing."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from polyphony._util.files import is_alive
from polyphony._util.text import first_line
from polyphony.runs.rows import Score, SweepScore
from polyphony.runs.store import StoreError, damaged, read_bytes, read_json
from polyphony.study.fingerprints import fingerprints
from polyphony.study.leftovers import leftovers
from polyphony.study.plan import plan, score_predictions, trainings, valid_predictions
from polyphony.study.provenance import stored_recipe
from polyphony.study.study import Study


@dataclass(frozen=True)
class TrainingStatus:
    """One training of a run. It is done, running, stopped (killed, and not begun again yet) or missing."""

    name: str
    state: str
    epochs: int  # that are over
    of: int
    host: str | None = None  # where it was begun last,
    pid: int | None = None  # by which process,
    since: str | None = None  # and when
    changed: float | None = None  # when its folder changed last, in seconds since 1970


@dataclass(frozen=True)
class Status:
    """What a run has so far."""

    folder: str
    trainings: list[TrainingStatus]
    predicted: int
    predictions: int  # how many there will be
    scored: bool

    def count(self, state: str) -> int:
        """How many trainings are in a state."""
        return sum(training.state == state for training in self.trainings)


def run_status(folder: Path) -> Status:
    """What is in the folder of a study or of a sweep; raises a StoreError for any other.

    Of a search that goes on, the points that were asked for so far count.
    """
    study = stored_study(folder)
    is_sweep = (folder / "sweep.json").exists()
    paths = [work.path for work in (valid_predictions if is_sweep else score_predictions)(study)]
    table = (SweepScore if is_sweep else Score).file
    states = [training_status(work.name, work.epochs, work.folder) for work in trainings(study)]
    return Status(str(folder), states, sum(map(Path.exists, paths)), len(paths), (folder / table).exists())


def stored_study(folder: Path) -> Study:
    """The study, or the sweep's, that a folder holds, without its data and without code that it names."""
    return Study(stored_recipe(folder, code=False), folder)


def run_leftovers(folder: Path, data_root: Path | None) -> list[Path]:
    """The leftovers of the study or sweep in a folder."""
    study = Study(stored_recipe(folder), folder, data_root)
    is_sweep = (folder / "sweep.json").exists()
    predicted = valid_predictions(study) if is_sweep else None
    return leftovers(folder, plan(study, fingerprints(study), predicted))


def training_status(name: str, epochs: int, folder: Path) -> TrainingStatus:
    """One training, from its folder; that it is done is looked at last, since it may end meanwhile."""
    done, started = folder / "done.json", folder / "started.json"
    found = TrainingStatus(name, "missing", 0, epochs)
    try:
        found = begun_status(name, epochs, folder)
    except (StoreError, OSError):
        if started.exists() and not done.exists():
            raise
    if done.exists():
        return TrainingStatus(name, "done", epochs, epochs, changed=done.stat().st_mtime)
    return found


def begun_status(name: str, epochs: int, folder: Path) -> TrainingStatus:
    """A training that was begun and is not done; raises where there is no record of it."""
    started, log = folder / "started.json", folder / "log.jsonl"
    host, pid, since = last_start(started)
    so_far = read_bytes(log).count(b"\n") if log.exists() else 0
    ended = host is None or (host == platform.node() and (pid is None or not is_alive(pid)))
    changed = max(path.stat().st_mtime for path in (started, log) if path.exists())
    return TrainingStatus(name, "stopped" if ended else "running", so_far, epochs, host, pid, since, changed)


def last_start(started: Path) -> tuple[str | None, int | None, str | None]:
    """On which host, in which process and when a training was begun last, as far as its record says so."""
    record = read_json(started)
    host, pid, since = (record.get(field) for field in ("host", "pid", "since"))
    try:
        if since is not None:
            datetime.fromisoformat(since).timestamp()
    except (TypeError, ValueError, OverflowError) as error:
        raise damaged(started, first_line(error)) from error
    if not isinstance(host, str | None) or not isinstance(pid, int | None):
        raise damaged(started, "it names no host and process")
    return host, pid, since
