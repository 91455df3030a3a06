"""Files of an analysis: rows that were made together are kept under a key, tables are made of them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from polyphony.store import StoreError, first_line, read_json, write_whole

Cell = str | int | float | None
Row = Sequence[Cell]


@dataclass(frozen=True)
class SavedRows:
    """Rows of a table, in a file of their own with the key of what they depend on."""

    path: Path
    key: str

    def load(self) -> list[list[Any]] | None:
        """The rows, or nothing where there are none or they depend on something else."""
        if not self.path.exists():
            return None
        found: dict[str, Any] = read_json(self.path)
        return found["rows"] if found.get("key") == self.key else None

    def save(self, rows: Iterable[Row]) -> None:
        """Keep rows, whole."""
        write_whole(
            self.path, (json.dumps({"key": self.key, "rows": [list(row) for row in rows]}) + "\n").encode()
        )


def load_parts(folder: Path, pattern: str, start: str) -> list[list[Any]]:
    """The rows of all parts in a folder whose key begins so."""
    found = [read_json(path) for path in sorted(folder.glob(pattern))]
    return [row for part in found if str(part.get("key")).startswith(start) for row in part["rows"]]


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """A CSV file, whole; left alone where it says so already. Missing values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_text(path: Path, text: str) -> None:
    """A text file, whole; left alone where it says so already."""
    data = text.encode()
    if not path.exists() or path.read_bytes() != data:
        write_whole(path, data)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], key: str) -> None:
    """Tensors under their names in one file, whole, with the key of what they depend on."""
    write_whole(path, safetensors.torch.save(dict(tensors), metadata={"key": key}))


def saved_key(path: Path) -> str | None:
    """The key that tensors were saved under, or nothing where there are none."""
    if not path.exists():
        return None
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get("key")
    except safetensors.SafetensorError as error:
        raise StoreError(f"{path} is damaged ({first_line(error)}): delete it to make it again") from error
