"""What is computed once: rows, tensors and predictions in files, under the key of what they depend on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import safetensors.torch
from torch import Tensor

from polyphony._util.text import first_line
from polyphony.metrics import Predictions
from polyphony.runs.predictions import load_predictions, save_predictions, saved_key
from polyphony.runs.rows import TableRow, columns, to_csv
from polyphony.runs.store import FileError, damaged, opened, read_json, write_whole

Kind = TypeVar("Kind", bound=TableRow)


@dataclass(frozen=True)
class SavedRows(Generic[Kind]):
    """Rows of a table that were made together, in a file of their own."""

    path: Path
    key: str
    kind: type[Kind]

    def is_done(self) -> bool:
        """Whether the rows are there."""
        return self.load() is not None

    def load(self) -> list[Kind] | None:
        """The rows, or nothing where there are none, they depend on something else or have other columns."""
        if not self.path.exists():
            return None
        return load_rows(self.path, self.key, self.kind, columns(self.kind))

    def save(self, rows: Iterable[Kind]) -> None:
        """Keep rows, whole."""
        names = columns(self.kind)
        cells = [[getattr(row, name) for name in names] for row in rows]
        write_whole(
            self.path, (json.dumps({"key": self.key, "columns": names, "rows": cells}) + "\n").encode()
        )


def load_rows(
    path: Path, start: str, kind: type[Kind], exactly: Sequence[str] | None = None
) -> list[Kind] | None:
    """The rows of a file whose key begins so, or nothing; or only where it has `exactly` these columns.

    Otherwise columns that another version had are passed over, and those with a default may be missing.
    """
    found: dict[str, Any] = read_json(path)
    if not str(found.get("key")).startswith(start) or exactly not in (None, found.get("columns")):
        return None
    try:
        rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
        return [kind(**{name: row[name] for name in columns(kind) if name in row}) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, first_line(error)) from error


def write_table(folder: Path, kind: type[Kind], rows: Iterable[Kind]) -> Path:
    """A run's table, whole; left alone where it says so already."""
    path, data = folder / kind.file, to_csv(rows, kind).encode()
    if not path.exists() or path.read_bytes() != data:
        write_whole(path, data)
    return path


@dataclass(frozen=True)
class SavedTensors:
    """Tensors by name in a file of their own."""

    path: Path
    key: str

    def is_done(self) -> bool:
        """Whether the tensors are there."""
        return self.load() is not None

    def load(self) -> dict[str, Tensor] | None:
        """The tensors, or nothing where there are none or they depend on something else."""
        if not self.path.exists():
            return None
        with opened(self.path) as file:
            here = (file.metadata() or {}).get("key") == self.key
            return {name: file.get_tensor(name) for name in file.keys()} if here else None  # noqa: SIM118

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Keep tensors, whole."""
        write_whole(self.path, safetensors.torch.save(dict(tensors), metadata={"key": self.key}))


@dataclass(frozen=True)
class SavedPredictions:
    """What a model predicted on some images."""

    path: Path
    key: str

    def is_done(self) -> bool:
        """Whether the predictions are there."""
        return self.path.exists() and saved_key(self.path) == self.key

    def load(self) -> Predictions:
        """The predictions; raises where they are not there."""
        predictions = load_predictions(self.path, self.key)
        if predictions is None:
            raise FileError(self.path, "is not there")
        return predictions

    def save(self, predictions: Predictions) -> None:
        """Keep predictions, whole."""
        save_predictions(self.path, predictions, self.key)
