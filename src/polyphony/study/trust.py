"""Tables for selective prediction, prediction sets and groups of test images, from saved predictions.

The user can define groups by a column of a CSV file; the run stores them in groups.csv.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyphony._util.text import UserError, suggestion
from polyphony.metrics import APS, SetMeasure, lac, set_quality
from polyphony.runs.rows import GroupedScore, SelectiveScore, SetScore, Temperature, Threshold, csv_text
from polyphony.runs.scores import thresholds
from polyphony.runs.store import damaged_file, write_atomically
from polyphony.study.saved import Saved, write_table
from polyphony.study.study import Model

SETS: Mapping[str, SetMeasure] = {"lac": lac, "aps": APS()}
COVERAGES = (0.9, 0.95)
GROUPS = "groups.csv"  # in the folder of a run
CLASS = "class"  # every run has groups by class
MOST_GROUPS = 1000  # in one column


def write_trust(
    folder: Path, saved: Saved, temperatures: Sequence[Temperature], classes: Sequence[str]
) -> None:
    """Write the tables of selective prediction, prediction sets, thresholds and groups."""
    fit = {(row.model, row.seed): row.temperature for row in temperatures}
    write_table(folder, SelectiveScore, selective_scores(saved, fit))
    write_table(folder, SetScore, set_scores(saved, classes))
    rows = [
        row
        for (model, seed, split), predictions in saved.items()
        if split == "valid"
        for row in thresholds(model, seed, predictions, fit[model, seed])
    ]
    write_table(folder, Threshold, rows)
    write_table(folder, GroupedScore, grouped_scores(saved, fit, read_groups(folder), classes))


def selective_scores(saved: Saved, fit: Mapping[Model, float]) -> Iterator[SelectiveScore]:
    """A row for each model, held-out split, calibration and uncertainty."""
    for (model, seed, split), predictions in saved.items():
        if split not in ("valid", "test"):
            continue
        for kind, temperature in {"standard": 1.0, "calibrated": fit[model, seed]}.items():
            for score, curve in predictions.selective(temperature).items():
                columns: dict[str, Any] = curve.scores()
                yield SelectiveScore(model, seed, split, kind, score, **columns)


def set_scores(saved: Saved, classes: Sequence[str]) -> Iterator[SetScore]:
    """A row for each model, kind of sets, coverage, and class, on test images; class None means all."""
    for (model, seed, split), test in saved.items():
        if split != "test":
            continue
        for score, measure in SETS.items():
            rule = saved[model, seed, "valid"].set_rule(measure)
            for coverage in COVERAGES:
                sets = rule.sets(test.log_probs(), coverage)
                for label, rows in by_label(test.labels, classes).items():
                    quality = set_quality(sets[rows], test.labels[rows])
                    numbers = quality.n, quality.coverage, quality.size, quality.empty
                    yield SetScore(
                        model, seed, score, coverage, label, *numbers, rule.fitted, len(rule.scores)
                    )


def by_label(labels: Tensor, classes: Sequence[str]) -> dict[str | None, Tensor]:
    """Class → indices of its images; None → indices of all images."""
    all_images: dict[str | None, Tensor] = {None: torch.arange(len(labels))}
    return all_images | {classes[k]: (labels == k).nonzero()[:, 0] for k in labels.unique().tolist()}


def grouped_scores(
    saved: Saved,
    fit: Mapping[Model, float],
    groups: Mapping[str, Sequence[str]],
    classes: Sequence[str],
) -> Iterator[GroupedScore]:
    """A row for each calibrated model and each class and group of test images."""
    for (model, seed, split), test in saved.items():
        if split != "test":
            continue
        by_class = {CLASS: [classes[k] for k in test.labels.tolist()]}
        for column, values in {**by_class, **groups}.items():
            names = sorted(set(values), key=classes.index if column == CLASS else None)
            group_of_image = torch.tensor([names.index(value) for value in values])
            for k, group in test.groups(group_of_image, fit[model, seed]).items():
                label, answer = (classes[c] for c in group.confusion) if group.confusion else (None, None)
                numbers = group.n, group.acc, group.ece, group.confidence
                yield GroupedScore(model, seed, column, names[k], *numbers, label, answer, group.confused)


class GroupsError(UserError, ValueError):
    """A CSV file cannot be used as groups of the test images."""


def add_groups(folder: Path, source: str, images: int) -> str:
    """Store the groups in "FILE.csv:COLUMN", a row for each test image; returns the name of the column.

    Raises a GroupsError if the file cannot be read or does not fit the test images.
    """
    path, _, column = source.rpartition(":")
    if not path or not column:
        raise GroupsError(f"'{source}' names no column: write FILE.csv:COLUMN")
    if column == CLASS:
        raise GroupsError(f"every run has groups by '{CLASS}': rename the column")
    table = read_columns(Path(path))
    if column not in table:
        raise GroupsError(f"{path} has no column '{column}'; {suggestion(column, table)}")
    values = table[column]
    if len(values) != images:
        raise GroupsError(f"{path} has {len(values):,} rows, but the run has {images:,} test images")
    if len(set(values)) > MOST_GROUPS:
        raise GroupsError(f"{path}: '{column}' has more than {MOST_GROUPS:,} different values")
    groups = {**read_groups(folder), column: values}
    text = csv_text(list(groups), zip(*groups.values(), strict=True))
    write_atomically(folder / GROUPS, text.encode())
    return column


def read_groups(folder: Path) -> Mapping[str, Sequence[str]]:
    """Column → the group of each test image of a run; empty without groups.csv."""
    path = folder / GROUPS
    if not path.exists():
        return {}
    try:
        return read_columns(path)
    except GroupsError as error:
        raise damaged_file(path, str(error)) from error


def read_columns(path: Path) -> dict[str, list[str]]:
    """The columns of a CSV file by their names; raises a GroupsError if it cannot be read."""
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
