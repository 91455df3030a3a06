"""The folders of trainings. A stage is the folder of one training, with a key.

The folder holds `weights.safetensors`, `log.jsonl`, `done.json` and, until the training is done, `resume.pt`.
The key is the hash of the stage's `spec`, a nested dict of everything that the result depends on.
"""

from __future__ import annotations

import errno
import io
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError
from torch import Tensor

from polyphony._util.files import LOCK, claim, clear_leftovers, regular, remove, share_file, whereabouts
from polyphony._util.text import first_line
from polyphony.runs.store import (
    ChangedError,
    FolderError,
    Spec,
    StaleError,
    StoreError,
    as_json,
    flat,
    read_bytes,
    read_json,
    sha256,
    spec_key,
    write_atomically,
)

Record = dict[str, Any]  # started.json or done.json
WEIGHTS, LOG, RESUME = "weights.safetensors", "log.jsonl", "resume.pt"
STARTED, DONE = "started.json", "done.json"  # the record of a training while it runs, and afterwards


class StartedRecord(BaseModel):
    """The required parts of a record."""

    key: str
    spec: dict[str, Any]
    teachers: dict[str, str] = {}


class FinishedRecord(StartedRecord):
    """The required parts of the record of a finished training."""

    weights: str


@dataclass(frozen=True)
class TrainingFolder:
    """Reads the folder of a training."""

    folder: Path

    def is_finished(self) -> bool:
        return (self.folder / DONE).exists()

    def record(self) -> Record:
        """done.json: the key, the hash of the weights, facts, the spec."""
        return read_record(self.folder / DONE, FinishedRecord)

    def weights(self) -> dict[str, Tensor]:
        """The weights; raises a StoreError if the file or one of the student's teachers has changed."""
        path, record = self.folder / WEIGHTS, self.record()
        data = read_bytes(path)
        if sha256(data) != record["weights"]:
            raise StoreError(
                f"{path} is not the file that was written (its hash differs): delete {self.folder}"
            )
        self._reject_other_teachers(record)
        return safetensors.torch.load(data)

    def _reject_other_teachers(self, record: Record) -> None:
        for name, weights in record.get("teachers", {}).items():
            teacher = TrainingFolder(run_of(self.folder) / name)
            if teacher.is_finished() and teacher.record()["weights"] != weights:
                raise StoreError(
                    f"{self.folder} learnt from another {name}, which was trained again since then:"
                    f" delete {self.folder} to train it again, too"
                )


@dataclass(frozen=True)
class Stage:
    """The folder of one training and the spec of its result; the checkpoint of `fit`."""

    folder: Path
    spec: Spec
    attempt: Path | None = None  # set by `start`: files are written here, then moved into the folder
    teachers: Mapping[str, str] = field(default_factory=dict)  # set by `start`: hashes of teachers' weights

    @property
    def key(self) -> str:
        """The hash of everything that the result depends on."""
        return spec_key(self.spec)

    def is_done(self) -> bool:
        """Whether the folder has a result with this key."""
        record = self.record()
        return record is not None and record["key"] == self.key and "weights" in record

    def record(self) -> Record | None:
        """The record in the folder, of a finished or a started training; None if there is none."""
        for name, model in ((DONE, FinishedRecord), (STARTED, StartedRecord)):
            if (self.folder / name).exists():
                return upgraded(read_record(self.folder / name, model), self.folder)
        return None

    def difference(self) -> str:
        """The first setting in which the record's spec differs from this one; empty if none differs."""
        record = self.record()
        return "" if record is None or record["key"] == self.key else difference(record["spec"], self.spec)

    def start(self, teachers: Mapping[str, str] | None = None) -> Stage | None:
        """Claim the folder for a new attempt. Returns the attempt's stage, or None if the result exists.

        `teachers` are the hashes of the teachers' weights by folder; a training state from other teachers is
        dropped. Earlier attempts can no longer write. Raises a ChangedError if the folder holds a training
        with another key.
        """
        if self.is_done():
            return None
        if setting := self.difference():
            raise ChangedError(f"{self.folder} was made with another {setting}")
        teachers = dict(teachers or {})
        started = replace(self, attempt=claim(self.folder), teachers=teachers)
        if self.is_done():  # an earlier attempt has finished meanwhile
            started.clean()
            return None
        previous = self.record()
        if previous is None or previous.get("teachers", {}) != teachers:  # the state is of another training
            (self.folder / RESUME).unlink(missing_ok=True)
        record = {"key": self.key, **whereabouts(), "teachers": teachers, "spec": self.spec}
        started._write(STARTED, as_json(record))
        return started

    def _write(self, name: str, data: bytes | memoryview) -> None:
        """Write a file atomically; raises a StaleError if a later attempt has claimed the stage."""
        try:
            write_atomically(self.folder / name, data, self.attempt)
        except OSError as error:
            is_removed = error.errno == errno.ENOENT or (self.attempt and not self.attempt.exists())
            if self.attempt is None or not is_removed:  # removing a claimed folder takes a moment
                raise
            raise StaleError(f"{self.folder} was claimed by a later attempt: this one ends") from error

    def remove(self) -> None:
        """Remove the folder. Files that a later training would use go first: the process may be killed."""
        for name in (RESUME, DONE):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder)

    def load(self) -> dict[str, Any] | None:
        """The last saved training state, or None; raises a StoreError if the file is damaged."""
        path = self.folder / RESUME
        if not path.exists():
            return None
        try:
            state = torch.load(regular(path), map_location="cpu", weights_only=True)
        except Exception as error:
            raise StoreError(
                f"{path} cannot be read ({first_line(error)}): delete it to start over"
            ) from error
        if not isinstance(state, dict) or "log" not in state:
            raise StoreError(f"{path} does not hold a training state: delete it to start over")
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Save a training state and its log. The log goes first: a resumed training writes it again."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        lines = "".join(json.dumps(row) + "\n" for row in state["log"])
        self._write(LOG, lines.encode())
        self._write(RESUME, buffer.getbuffer())

    def finish(self, weights: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Save the final weights and done.json."""
        copies = {name: weight.cpu().contiguous().clone() for name, weight in weights.items()}
        data = safetensors.torch.save(copies)  # copies, because it rejects the shared memory of tied weights
        self._write(WEIGHTS, data)
        done = {"key": self.key, "weights": sha256(data), "teachers": dict(self.teachers)}
        self._write(DONE, as_json(done | facts | {"spec": self.spec}))
        self.clean()

    def clean(self) -> None:
        """Remove the files that are only for resuming, and unfinished ones."""
        drop_resume_files(self.folder)
        for unfinished in self.folder.glob(".*.part"):  # of a process that was killed
            unfinished.unlink(missing_ok=True)
        if self.attempt is not None:
            remove(self.attempt)

    def take_over(self, folder: Path, teachers: Mapping[str, str]) -> bool:
        """Take the result with this key from a folder of another run. Returns whether it succeeded.

        Its teachers must have weights with the same hashes. Files are linked if possible: the files of a
        finished training never change.
        """
        try:
            record = upgraded(read_record(folder / DONE, FinishedRecord), folder)
            if (record["key"], record.get("teachers", {})) != (self.key, teachers):
                return False
            if (stage := self.start(teachers)) is None:
                return False
            for name in (WEIGHTS, LOG) if "epochs" in record else (WEIGHTS,):  # pretrained: without a log
                share_file(folder / name, self.folder / name, stage.attempt)
            if sha256(read_bytes(self.folder / WEIGHTS)) != record["weights"]:
                return False
        except (StoreError, OSError):  # a damaged folder of another run is ignored
            return False
        stage._write(DONE, as_json(record | {"adopted": str(folder)}))
        stage.clean()
        return True


def run_of(folder: Path) -> Path:
    """The run of a training's folder: RUN/teachers/0 or RUN/students/METHOD/0."""
    return folder.parents[1] if folder.parent.name == "teachers" else folder.parents[2]


def results_in(runs: Path) -> dict[str, list[Path]]:
    """The folders of all finished trainings in all runs of a folder, by key."""
    folders: dict[str, list[Path]] = {}
    for pattern in ("*/teachers/*", "*/students/*/*"):
        for path in sorted(runs.glob(f"{pattern}/{DONE}")):
            with suppress(StoreError):  # damaged folders of other runs are ignored
                record = upgraded(read_record(path), path.parent)
                folders.setdefault(record["key"], []).append(path.parent)
    return folders


def upgraded(record: Record, folder: Path) -> Record:
    """The record in the current format.

    In early versions, the spec of a student named its teachers by the hashes of their weights, not by keys.
    """
    old = record["spec"]
    listed = old.get("teachers", [])
    single = [old[name] for name in ("start", "source") if name in old]
    hashes = [*(listed if isinstance(listed, list) else []), *single]
    if "teachers" in record or not hashes or not all(isinstance(weights, str) for weights in hashes):
        return record
    keys, names = {}, {}  # by hash of the weights
    for path in run_of(folder).glob(f"teachers/*/{DONE}"):
        teacher = read_record(path, FinishedRecord)
        keys[teacher["weights"]], names[teacher["weights"]] = teacher["key"], f"teachers/{path.parent.name}"
    spec = {name: value for name, value in old.items() if name != "taught_by"}
    spec |= {name: keys.get(old[name], "unknown") for name in ("start", "source") if name in old}
    if "teachers" in old:
        spec["teachers"] = [keys.get(weights, "unknown") for weights in old["teachers"]]
    teachers = {names.get(weights, "unknown"): weights for weights in hashes}
    return record | {"spec": spec, "key": spec_key(spec), "teachers": teachers}


def difference(old: Spec, new: Spec) -> str:
    """The first setting in which two specs differ: "plan.epochs (60, now 40)"."""
    sides = flat(old), flat(new)
    for name in sorted(sides[0].keys() | sides[1].keys()):
        before, after = (repr(side[name]) if name in side else "its default" for side in sides)
        if before != after:
            return f"{name} ({before}, now {after})"
    return "setting"


def read_record(path: Path, model: type[StartedRecord] = StartedRecord) -> Record:
    """A started.json or done.json; raises a StoreError if it does not fit the model."""
    record = read_json(path)
    try:
        model.model_validate(record, strict=True)
    except ValidationError:
        raise StoreError(f"{path} is not a valid record: delete {path.parent} to start over") from None
    return record


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder and remove leftovers of killed processes; raises a FolderError if it is in use."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0).acquire()
    except Timeout as error:
        raise FolderError(f"{folder} is in use by another process, which may take a while") from error
    except OSError as error:
        raise FolderError(f"{folder} cannot be written ({error.strerror})") from error
    with lock:
        clear_leftovers(folder)
        for done in folder.rglob(DONE):
            drop_resume_files(done.parent)  # the process may have been killed right after it wrote done.json
        yield


def drop_resume_files(folder: Path) -> None:
    """Remove the files of a stage that are only for resuming."""
    for name in (RESUME, STARTED):
        (folder / name).unlink(missing_ok=True)
