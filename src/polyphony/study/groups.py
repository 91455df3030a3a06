"""Groups of test images, from a column of the user's CSV file; a run keeps them in groups.csv."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from polyphony._util.text import UserError, suggestion
from polyphony.runs.rows import csv_text
from polyphony.runs.store import damaged, write_whole

FILE = "groups.csv"
CLASS = "class"  # the groups that every run has
MOST = 1000  # groups in one column


class GroupsError(UserError, ValueError):
    """A CSV file does not give the group of each test image."""


def add_groups(folder: Path, source: str, images: int) -> str:
    """Store the column of "FILE.csv:COLUMN", which has a row for each test image; returns its name."""
    path, _, column = source.rpartition(":")
    if not path or not column:
        raise GroupsError(f"'{source}' names no column: write FILE.csv:COLUMN")
    if column == CLASS:
        raise GroupsError(f"every run has groups by '{CLASS}': rename the column")
    found = read_columns(Path(path))
    if column not in found:
        raise GroupsError(f"{path} has no column '{column}'; {suggestion(column, found)}")
    values = found[column]
    if len(values) != images:
        raise GroupsError(
            f"{path} has {len(values):,} rows, but the run has {images:,} test images: one for each"
        )
    if len(set(values)) > MOST:
        raise GroupsError(f"{path}: '{column}' has {len(set(values)):,} different values; at most {MOST:,}")
    columns = {**read_groups(folder), column: values}
    text = csv_text(list(columns), zip(*columns.values(), strict=True))
    write_whole(folder / FILE, text.encode())
    return column


def read_groups(folder: Path) -> Mapping[str, Sequence[str]]:
    """The groups of a run's test images by column; empty without groups.csv."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        return read_columns(path)
    except GroupsError as error:
        raise damaged(path, str(error)) from error


def read_columns(path: Path) -> dict[str, list[str]]:
    """The columns of a CSV file with a header."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *rows = [row for row in csv.reader(file, strict=True) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GroupsError(
            f"{path} cannot be read as a CSV file ({getattr(error, 'strerror', None) or error})"
        ) from error
    if any(len(row) != len(header) for row in rows):
        raise GroupsError(f"{path} has rows with more or fewer cells than its header")
    return {name: [row[at] for row in rows] for at, name in enumerate(header)}
