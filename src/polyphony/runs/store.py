"""Reading and writing the files of a run folder: writes are atomic, reads are checked.

All errors are StoreErrors with a message of one sentence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from polyphony._util.files import atomic_path, regular
from polyphony._util.text import UserError, first_line
from polyphony.recipe.read import explain
from polyphony.runs.rows import TableRow, from_csv

Spec = dict[str, Any]
Row = TypeVar("Row", bound=TableRow)
Model = TypeVar("Model", bound=BaseModel)
SWEEP_FILE = "sweep.json"  # exists only in the folder of a sweep


class StoreError(UserError, RuntimeError):
    """A run folder cannot be used as it is; the message says why and what to do."""


class ChangedError(StoreError):
    """A folder holds a result with another key."""


class CodeError(StoreError):
    """Loading would run somebody else's code, and the caller did not allow that."""


class FolderError(StoreError):
    """A folder cannot be used for results now."""


class StaleError(StoreError):
    """A later attempt has claimed the same stage; the results of this one are dropped."""


class FileError(StoreError):
    """A file of a run is missing or damaged; `path` is the file."""

    def __init__(self, path: Path, words: str) -> None:
        super().__init__(f"{path} {words}")
        self.path, self.words = path, words

    def __reduce__(self) -> tuple[Any, ...]:
        return FileError, (self.path, self.words), self.__dict__  # for pickle, so that processes can send it


def damaged_file(path: Path, why: object) -> FileError:
    """The FileError to raise for a damaged file."""
    return FileError(path, f"is damaged ({why})")


class Facts(BaseModel):
    """recipe.json: the full recipe, the fingerprints and classes of the data, versions, machine.

    `network` describes the students' network if the recipe names only files of it.
    """

    recipe: dict[str, Any]
    data: dict[str, Any] = {}
    images: dict[str, Any] = {}
    network: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    machine: dict[str, Any] = {}


class SweepFacts(BaseModel):
    """The parts of sweep.json that a report reads: the method of the sweep and its settings."""

    recipe: str
    method: str
    settings: dict[str, Any]
    own: dict[str, float | str | None]
    trials: int | None = None


class Done(BaseModel):
    """The parts of a training's done.json that a report reads."""

    seconds: float | None = None
    step_size: float | None = None
    adopted: str | None = None


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file for reading; raises a FileError if it is damaged."""
    try:
        with safetensors.safe_open(regular(path), framework="pt") as file:
            yield file
    except (safetensors.SafetensorError, OSError) as error:
        raise damaged_file(path, first_line(error)) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; raises a FileError if it is damaged."""
    with open_tensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)


def spec_key(spec: Spec) -> str:
    """SHA-256 of a spec's canonical JSON."""
    return sha256(json.dumps(spec, sort_keys=True, separators=(",", ":")).encode())


def flat(spec: Spec, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a.b": 1}"""
    leaves: dict[str, Any] = {}
    for name, value in spec.items():
        leaves |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return leaves


def write_atomically(path: Path, data: bytes | memoryview, attempt: Path | None = None) -> None:
    """Write a temporary file (in the folder `attempt`, if given), flush it, and rename it to `path`."""
    with atomic_path(path, attempt) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, as_json(value))


def as_json(value: dict[str, Any]) -> bytes:
    """Indented JSON as bytes."""
    return (json.dumps(value, indent=1) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; raises a StoreError if the file is missing or holds something else."""
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
    """The bytes of a file; raises a StoreError if it cannot be read."""
    try:
        return regular(path).read_bytes()
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read ({error.strerror}): check that it is there and may be read"
        ) from error


def read_object(path: Path, model: type[Model]) -> Model:
    """A JSON file, validated as this model; raises a StoreError if it is missing or invalid."""
    value = read_json(path)
    try:
        return model.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise damaged_file(path, explain(error.errors()[0])) from None


def read_table(run: Path, kind: type[Row]) -> list[Row]:
    """The rows of a run's table; raises a StoreError if the file is missing or damaged."""
    path = run / kind.file
    try:
        return from_csv(read_bytes(path).decode(), kind)
    except ValueError as error:
        raise damaged_file(path, first_line(error)) from error


def read_log(path: Path) -> list[dict[str, float]]:
    """A training log with one row per epoch; an unfinished last line is ignored."""
    try:
        text = read_bytes(path).decode()
        return [_epoch(json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]
    except ValueError as error:
        raise damaged_file(path, first_line(error)) from error


def _epoch(row: Any) -> dict[str, float]:
    numbers = isinstance(row, dict) and all(isinstance(value, int | float) for value in row.values())
    if not numbers or not isinstance(row.get("epoch"), int):
        raise ValueError("a line is not the numbers of an epoch")
    return dict(row)


def sha256(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
