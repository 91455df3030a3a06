"""The run folder: stages keyed by what they depend on, files that appear whole or not at all.

A stage is a folder with `weights.safetensors`, `log.jsonl`, `resume.pt` (until it is done) and `done.json`.
Its key is the hash of its `spec`: a nested dict that says everything the result depends on.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from polyphony._util.files import (
    LOCK,
    atomic_path,
    claim,
    clear_leftovers,
    regular,
    remove,
    share_file,
    whereabouts,
)
from polyphony._util.text import UserError, first_line

Spec = dict[str, Any]
Record = dict[str, Any]  # what a training says of itself
NO_TEACHERS: Mapping[str, str] = MappingProxyType({})
WEIGHTS, LOG, RESUME = "weights.safetensors", "log.jsonl", "resume.pt"
STARTED, DONE = "started.json", "done.json"  # what a training says of itself meanwhile, and afterwards


class StoreError(UserError, RuntimeError):
    """A run folder cannot be used as it is; the message says why and what to do."""


class ChangedError(StoreError):
    """A folder holds a result of another key."""


class CodeError(StoreError):
    """Code that somebody else may have written would be run, and was not allowed to."""


class FolderError(StoreError):
    """A folder cannot be used for results now."""


class StaleError(StoreError):
    """Another attempt at the same stage was begun later, and this one's results are not wanted."""


class FileError(StoreError):
    """A file of a run is missing or is not what was written; `path` is the file."""

    def __init__(self, path: Path, words: str) -> None:
        super().__init__(f"{path} {words}")
        self.path, self.words = path, words

    def __reduce__(self) -> tuple[Any, ...]:
        return FileError, (self.path, self.words), self.__dict__  # as processes send it to each other


def damaged(path: Path, why: object) -> FileError:
    """What to raise for a file that is not what was written."""
    return FileError(path, f"is damaged ({why})")


@dataclass(frozen=True)
class Trained:
    """The folder of a finished training, to be read."""

    folder: Path

    def is_there(self) -> bool:
        """Whether the training is finished."""
        return (self.folder / DONE).exists()

    def record(self) -> Record:
        """What `Stage.finish` wrote: the key, the hash of the weights, facts, the spec."""
        return read_record(self.folder / DONE, "weights")

    def weights(self) -> dict[str, Tensor]:
        """The weights, if they are those that were written and if its teachers are those it learnt from."""
        path, record = self.folder / WEIGHTS, self.record()
        data = read_bytes(path)
        if sha256(data) != record["weights"]:
            raise StoreError(
                f"{path} is not the file that was written (its hash differs): delete {self.folder}"
            )
        self._refuse_other_teachers(record)
        return safetensors.torch.load(data)

    def _refuse_other_teachers(self, record: Record) -> None:
        for name, weights in record.get("teachers", {}).items():
            teacher = Trained(run_of(self.folder) / name)
            if teacher.is_there() and teacher.record()["weights"] != weights:
                raise StoreError(
                    f"{self.folder} learnt from another {name}, which was trained again since:"
                    f" delete {self.folder} to train it again, too"
                )


@dataclass(frozen=True)
class Stage:
    """The folder of one training and everything its result depends on: the checkpoint of `fit`."""

    folder: Path
    spec: Spec
    attempt: Path | None = None  # the folder in which a claimed stage's files are made
    teachers: Mapping[str, str] = field(default_factory=dict)  # the weights it learns from, when claimed

    @property
    def key(self) -> str:
        """The hash of everything the result depends on."""
        return spec_key(self.spec)

    def is_done(self) -> bool:
        """Whether the folder has a result with this key."""
        record = self.found()
        return record is not None and record["key"] == self.key and "weights" in record

    def found(self) -> Record | None:
        """What the folder says of itself, or nothing."""
        for name, texts in ((DONE, ["weights"]), (STARTED, [])):
            if (self.folder / name).exists():
                return upgraded(read_record(self.folder / name, *texts), self.folder)
        return None

    def difference(self) -> str:
        """The first setting in which what the folder holds, finished or not, was made with another spec."""
        record = self.found()
        return "" if record is None or record["key"] == self.key else difference(record["spec"], self.spec)

    def start(self, teachers: Mapping[str, str] = NO_TEACHERS) -> Stage | None:
        """Claim the folder for this spec: the stage of a new attempt, or nothing where the result is here.

        `teachers` are the hashes of the weights it learns from, by folder: a state that was reached with
        others is dropped. Earlier attempts write no more. Raises if the folder holds something else's.
        """
        if self.is_done():
            return None
        if words := self.difference():
            raise ChangedError(f"{self.folder} was made with another {words}")
        started = replace(self, attempt=claim(self.folder), teachers=teachers)
        if self.is_done():  # since an earlier attempt has ended meanwhile
            started.clean()
            return None
        found = self.found()
        if found is None or found.get("teachers", {}) != teachers:  # then the state is not of this training
            (self.folder / RESUME).unlink(missing_ok=True)
        record = {"key": self.key, **whereabouts(), "teachers": dict(teachers), "spec": self.spec}
        started._write(STARTED, as_json(record))
        return started

    def _write(self, name: str, data: bytes | memoryview) -> None:
        """A file of the stage, whole; raises if a later attempt has claimed it."""
        try:
            write_whole(self.folder / name, data, self.attempt)
        except OSError as error:
            is_removed = error.errno == errno.ENOENT or (self.attempt and not self.attempt.exists())
            if self.attempt is None or not is_removed:  # which takes a moment, files first
                raise
            raise StaleError(f"{self.folder} was claimed by a later attempt: this one ends") from error

    def remove(self) -> None:
        """Remove the folder; a kill amid it leaves nothing that a training would go on from or take."""
        for name in (RESUME, DONE):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder)

    def load(self) -> dict[str, Any] | None:
        """The training state saved last, or nothing."""
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
        """Keep a training state and its log; the log first, which a training that goes on may write again."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        lines = "".join(json.dumps(row) + "\n" for row in state["log"])
        self._write(LOG, lines.encode())
        self._write(RESUME, buffer.getbuffer())

    def finish(self, weights: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Keep the final weights, and say so."""
        data = safetensors.torch.save(apart(weights))
        self._write(WEIGHTS, data)
        done = {"key": self.key, "weights": sha256(data), "teachers": dict(self.teachers)}
        self._write(DONE, as_json(done | facts | {"spec": self.spec}))
        self.clean()

    def clean(self) -> None:
        """Drop what was only for resuming."""
        drop_resume_files(self.folder)
        for half_written in self.folder.glob(".*.part"):  # by a process that was killed
            half_written.unlink(missing_ok=True)
        if self.attempt is not None:
            remove(self.attempt)

    def take_over(self, folder: Path, teachers: Mapping[str, str]) -> bool:
        """Take the result of this key from the folder of another run; whether it is there and sound.

        It must have learnt from weights of the same hashes. Files of a finished training never change, so
        that they are linked and not copied where possible.
        """
        try:
            record = upgraded(read_record(folder / DONE, "weights"), folder)
            if (record["key"], record.get("teachers", {})) != (self.key, teachers):
                return False
            if (stage := self.start(teachers)) is None:
                return False
            for name in (WEIGHTS, LOG):
                share_file(folder / name, self.folder / name, stage.attempt)
            if sha256(read_bytes(self.folder / WEIGHTS)) != record["weights"]:
                return False
        except (StoreError, OSError):  # whatever is wrong there is no fault here
            return False
        stage._write(DONE, as_json(record | {"adopted": str(folder)}))
        stage.clean()
        return True


def run_of(folder: Path) -> Path:
    """The run that the folder of a training is in: RUN/teachers/0, RUN/students/METHOD/0."""
    return folder.parents[1] if folder.parent.name == "teachers" else folder.parents[2]


def results_in(runs: Path) -> dict[str, list[Path]]:
    """Key → the folders of finished trainings with this key, in all runs of a folder."""
    found: dict[str, list[Path]] = {}
    for pattern in ("*/teachers/*", "*/students/*/*"):
        for path in sorted(runs.glob(f"{pattern}/{DONE}")):
            with suppress(StoreError):  # whatever is wrong there is no fault here
                record = upgraded(read_record(path), path.parent)
                found.setdefault(record["key"], []).append(path.parent)
    return found


def upgraded(record: Record, folder: Path) -> Record:
    """The record of a folder's training as it is written today.

    Early students named their teachers in the spec by the hashes of their weights, not by their keys.
    """
    old = record["spec"]
    taught = old.get("teachers", [])
    used = [*(taught if isinstance(taught, list) else []), *(old[n] for n in ("start", "source") if n in old)]
    if "teachers" in record or not used or not all(isinstance(each, str) for each in used):
        return record
    keys, names = {}, {}
    for path in run_of(folder).glob(f"teachers/*/{DONE}"):
        teacher = read_record(path, "weights")
        keys[teacher["weights"]], names[teacher["weights"]] = teacher["key"], f"teachers/{path.parent.name}"
    spec = {name: value for name, value in old.items() if name != "taught_by"}
    spec |= {name: keys.get(old[name], "unknown") for name in ("start", "source") if name in old}
    if "teachers" in old:
        spec["teachers"] = [keys.get(each, "unknown") for each in old["teachers"]]
    teachers = {names.get(each, "unknown"): each for each in used}
    return record | {"spec": spec, "key": spec_key(spec), "teachers": teachers}


def apart(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights as safetensors takes them: copied where they share memory, as a layer of two names does."""
    taken: set[int] = set()
    found = {}
    for name, weight in weights.items():
        value = weight.cpu().contiguous()
        place = value.untyped_storage().data_ptr()
        found[name] = value.clone() if place in taken else value
        taken.add(place)
    return found


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file, open to be read."""
    try:
        with safetensors.safe_open(regular(path), framework="pt") as file:
            yield file
    except (safetensors.SafetensorError, OSError) as error:
        raise damaged(path, first_line(error)) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else works in this folder meanwhile; what killed processes have left behind is removed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = FileLock(folder / LOCK, timeout=0).acquire()
    except Timeout as error:
        raise FolderError(f"{folder} is in use by another process, which may take a while") from error
    except OSError as error:
        raise FolderError(f"{folder} cannot be written ({error.strerror})") from error
    with held:
        clear_leftovers(folder)
        for done in folder.rglob(DONE):
            drop_resume_files(done.parent)  # of a stage whose process was killed when it was done
        yield


def drop_resume_files(folder: Path) -> None:
    """Drop what a stage has only to be gone on with."""
    for name in (RESUME, STARTED):
        (folder / name).unlink(missing_ok=True)


def spec_key(spec: Spec) -> str:
    """SHA-256 of a spec's canonical JSON."""
    return sha256(json.dumps(spec, sort_keys=True, separators=(",", ":")).encode())


def difference(old: Spec, new: Spec) -> str:
    """The first setting in which two specs differ, in words: "plan.epochs (60, now 40)"."""
    sides = flat(old), flat(new)
    for name in sorted(sides[0].keys() | sides[1].keys()):
        before, after = (repr(side[name]) if name in side else "its default" for side in sides)
        if before != after:
            return f"{name} ({before}, now {after})"
    return "setting"


def flat(spec: Spec, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a.b": 1}"""
    leaves: dict[str, Any] = {}
    for name, value in spec.items():
        leaves |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return leaves


def write_whole(path: Path, data: bytes | memoryview, attempt: Path | None = None) -> None:
    """A file that is there complete or not at all: written beside or in an attempt, flushed, renamed."""
    with atomic_path(path, attempt) as beside:
        beside.write_bytes(data)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """A JSON file for people and programs, whole."""
    write_whole(path, as_json(value))


def as_json(value: dict[str, Any]) -> bytes:
    """JSON for people and programs."""
    return (json.dumps(value, indent=1) + "\n").encode()


def read_record(path: Path, *texts: str) -> Record:
    """What a stage says of itself: its key, its spec, and the texts asked for."""
    record = read_json(path)
    teachers = record.get("teachers", {})
    known = isinstance(record.get("spec"), dict) and isinstance(teachers, dict)
    words = [*(record.get(name) for name in ("key", *texts)), *(teachers.values() if known else ())]
    if not known or not all(isinstance(word, str) for word in words):
        raise StoreError(f"{path} is not what was written: delete {path.parent} to start over")
    return record


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object we wrote."""
    try:
        value = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{path} is not JSON ({first_line(error)}): replace it, or delete it to make it again"
        ) from error
    if not isinstance(value, dict):
        raise StoreError(f"{path} does not hold a JSON object: replace it, or delete it to make it again")
    return value


def read_bytes(path: Path) -> bytes:
    """A file's bytes, or a sentence."""
    try:
        return regular(path).read_bytes()
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read ({error.strerror}): check that it is there and may be read"
        ) from error


def sha256(data: bytes) -> str:
    """A hash as text."""
    return hashlib.sha256(data).hexdigest()
