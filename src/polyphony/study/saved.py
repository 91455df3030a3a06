"""Files of results: rows, tensors, predictions. Each has the key of everything that it depends on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import safetensors.torch
from torch import Tensor

from polyphony._util.text import first_line
from polyphony.metrics import Predictions
from polyphony.runs.predictions import read_predictions, save_predictions, saved_key
from polyphony.runs.rows import TableRow, columns, to_csv
from polyphony.runs.store import FileError, damaged_file, read_json, write_atomically

Kind = TypeVar("Kind", bound=TableRow)
Saved = Mapping[tuple[str, int | None, str], Predictions]  # by model, seed and split


@dataclass(frozen=True)
class SavedRows(Generic[Kind]):
    """A file with rows of a table, the result of one job."""

    path: Path
    key: str
    kind: type[Kind]

    def is_done(self) -> bool:
        """Whether the file has this key and the current columns."""
        if not self.path.exists():
            return False
        content = read_json(self.path)
        return (content.get("key"), content.get("columns")) == (self.key, columns(self.kind))

    def load(self) -> list[Kind]:
        """The rows; raises a FileError if they are missing or damaged."""
        if not self.is_done():
            raise FileError(self.path, "is not there")
        return load_rows(self.path, self.key, self.kind)

    def save(self, rows: Iterable[Kind]) -> None:
        names = columns(self.kind)
        cells = [[getattr(row, name) for name in names] for row in rows]
        text = json.dumps({"key": self.key, "columns": names, "rows": cells}) + "\n"
        write_atomically(self.path, text.encode())


def load_rows(path: Path, start: str, kind: type[Kind]) -> list[Kind]:
    """The rows of a file; an empty list if its key does not begin with `start`.

    Files of other versions can be read: unknown columns are ignored, missing ones get their default. Raises a
    FileError if the file is damaged.
    """
    content: dict[str, Any] = read_json(path)
    if not str(content.get("key")).startswith(start):
        return []
    try:
        rows = [dict(zip(content["columns"], row, strict=True)) for row in content["rows"]]
        return [kind(**{name: row[name] for name in columns(kind) if name in row}) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise damaged_file(path, first_line(error)) from error


def write_table(folder: Path, kind: type[Kind], rows: Iterable[Kind]) -> Path:
    """Write a table of a run as CSV, unless the file has this content already; returns its path."""
    path, data = folder / kind.file, to_csv(rows, kind).encode()
    if not path.exists() or path.read_bytes() != data:
        write_atomically(path, data)
    return path


@dataclass(frozen=True)
class SavedFile:
    """A safetensors file with its key."""

    path: Path
    key: str

    def is_done(self) -> bool:
        return saved_key(self.path) == self.key


class SavedTensors(SavedFile):
    """Tensors by name."""

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        write_atomically(self.path, safetensors.torch.save(dict(tensors), metadata={"key": self.key}))


class SavedPredictions(SavedFile):
    """The predictions of a model on some images."""

    def load(self) -> Predictions:
        """The predictions; raises a FileError if they are missing."""
        if not self.is_done():
            raise FileError(self.path, "is not there")
        return read_predictions(self.path)

    def save(self, predictions: Predictions) -> None:
        save_predictions(self.path, predictions, self.key)
