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
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from polyphony._util.files import LOCK, atomic_path, claim, clear_leftovers, remove, share_file, whereabouts
from polyphony._util.text import UserError, first_line

Spec = dict[str, Any]


class StoreError(UserError, RuntimeError):
    """A run folder cannot be used as it is; the message says why and what to do."""


class ChangedError(StoreError):
    """A folder holds what was made with another recipe."""


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
class Stage:
    """One training's folder: the checkpoint of `fit`, and the weights it ends with."""

    folder: Path
    spec: Spec
    attempt: Path | None = None  # the folder in which a claimed stage's files are made

    @property
    def key(self) -> str:
        """The hash of everything the result depends on."""
        return spec_key(self.spec)

    def is_done(self) -> bool:
        """Whether the result is here; raises if the folder holds something else's."""
        self.check_settings()
        return (self.folder / "done.json").exists()

    def check_settings(self, besides: Collection[str] = ()) -> None:
        """Raise where the folder was made with other settings than these, whatever it has `besides`."""
        found = self.found() or {"spec": self.spec}
        made = {name: value for name, value in found["spec"].items() if name not in besides}
        if spec_key(made) != self.key:
            raise ChangedError(f"{self.folder} was made with another {difference(made, self.spec)}")

    def found(self) -> dict[str, Any] | None:
        """What the folder says of itself, or nothing."""
        for name in ("done.json", "started.json"):
            if (self.folder / name).exists():
                return read_record(self.folder / name)
        return None

    def start(self) -> Stage | None:
        """Claim the folder for this spec: the stage of a new attempt, or nothing where the result is here.

        Earlier attempts write no more. Raises if the folder holds something else's.
        """
        if self.is_done():
            return None
        started = replace(self, attempt=claim(self.folder))
        if self.is_done():  # since an earlier attempt has ended meanwhile
            started.clean()
            return None
        if self.found() is None:  # then whose state there may be is not known
            (self.folder / "resume.pt").unlink(missing_ok=True)
        started._write("started.json", as_json({"key": self.key, **whereabouts(), "spec": self.spec}))
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

    def is_changed(self) -> bool:
        """Whether the folder holds what was made with another spec."""
        found = self.found()
        return found is not None and found["key"] != self.key

    def discard(self) -> None:
        """Throw the folder away; a kill amid it leaves nothing that a training would go on from or take."""
        for name in ("resume.pt", "done.json"):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder)

    def load(self) -> dict[str, Any] | None:
        """The training state saved last, or nothing."""
        path = self.folder / "resume.pt"
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
        self._write("log.jsonl", lines.encode())
        self._write("resume.pt", buffer.getbuffer())

    def finish(self, weights: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Keep the final weights, and say so."""
        data = safetensors.torch.save(apart(weights))
        self._write("weights.safetensors", data)
        done = {"key": self.key, "weights": sha256(data), **facts, "spec": self.spec}
        self._write("done.json", as_json(done))
        self.clean()

    def clean(self) -> None:
        """Drop what was only for resuming."""
        drop_resume_files(self.folder)
        for half_written in self.folder.glob(".*.part"):  # by a process that was killed
            half_written.unlink(missing_ok=True)
        if self.attempt is not None:
            remove(self.attempt)

    def adopt(self, folders: Iterable[Path], code: str) -> bool:
        """Take over the result of an equal stage from one of these folders; whether there was one.

        It must have the same spec and have been trained by the same code. Files of a finished stage never
        change, so that they are shared and not copied where possible.
        """
        return any(self._adopt(folder, code) for folder in folders if folder != self.folder)

    def _adopt(self, folder: Path, code: str) -> bool:
        try:
            record = read_record(folder / "done.json", "weights", "code")
            if (record["key"], record["code"]) != (self.key, code):
                return False
            if (stage := self.start()) is None:
                return False
            for name in ("weights.safetensors", "log.jsonl"):
                share_file(folder / name, self.folder / name, stage.attempt)
            if sha256(read_bytes(self.folder / "weights.safetensors")) != record["weights"]:
                return False
        except (StoreError, OSError):  # whatever is wrong there is no fault here
            return False
        stage._write("done.json", as_json(record | {"adopted": str(folder)}))
        stage.clean()
        return True

    def done(self) -> dict[str, Any]:
        """What `finish` wrote."""
        return read_record(self.folder / "done.json", "weights")

    def weights(self) -> dict[str, Tensor]:
        """The final weights, verified against the hash taken when they were written."""
        path = self.folder / "weights.safetensors"
        data = read_bytes(path)
        if sha256(data) != self.done()["weights"]:
            raise StoreError(
                f"{path} is not the file that was written (its hash differs): delete {self.folder}"
            )
        return safetensors.torch.load(data)


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
        for done in folder.rglob("done.json"):
            drop_resume_files(done.parent)  # of a stage whose process was killed when it was done
        yield


def drop_resume_files(folder: Path) -> None:
    """Drop what a stage has only to be gone on with."""
    for name in ("resume.pt", "started.json"):
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


def read_record(path: Path, *texts: str) -> dict[str, Any]:
    """What a stage says of itself: its key, its spec, and the texts asked for."""
    record = read_json(path)
    if not isinstance(record.get("spec"), dict) or not all(
        isinstance(record.get(name), str) for name in ("key", *texts)
    ):
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


def regular(path: Path) -> Path:
    """The path; an OSError for a pipe, socket or device, since who opens one may wait for ever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return path


def sha256(data: bytes) -> str:
    """A hash as text."""
    return hashlib.sha256(data).hexdigest()
