"""Tables about trust, from saved predictions: selective prediction, prediction sets, groups.

Groups of test images come from a column of the user's CSV file; a run keeps them in groups.csv.
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
from polyphony.runs.store import damaged, write_whole
from polyphony.study.saved import Saved, write_table
from polyphony.study.study import Model

SETS: Mapping[str, SetMeasure] = {"lac": lac, "aps": APS()}
COVERAGES = (0.9, 0.95)
GROUPS = "groups.csv"  # in the folder of a run
CLASS = "class"  # the groups that every run has
MOST_GROUPS = 1000  # in one column


def write_trust(
    folder: Path, saved: Saved, temperatures: Sequence[Temperature], classes: Sequence[str]
) -> None:
    """Write selective.csv, sets.csv, thresholds.csv and groups.csv for a run's models."""
    fit = {(row.model, row.seed): row.temperature for row in temperatures}
    write_table(folder, SelectiveScore, selective_scores(saved, fit))
    write_table(folder, SetScore, set_scores(saved, classes))
    valid = {(model, seed): found for (model, seed, split), found in saved.items() if split == "valid"}
    rows = (row for key, found in valid.items() for row in thresholds(*key, found, fit[key]))
    write_table(folder, Threshold, rows)
    write_table(folder, GroupedScore, grouped_scores(saved, fit, read_groups(folder), classes))


def selective_scores(saved: Saved, fit: Mapping[Model, float]) -> Iterator[SelectiveScore]:
    """A row for each model, held-out split, calibration and uncertainty."""
    for (model, seed, split), predictions in saved.items():
        if split not in ("valid", "test"):
            continue
        for kind, temperature in {"standard": 1.0, "calibrated": fit[model, seed]}.items():
            for score, found in predictions.selective(temperature).items():
                columns: dict[str, Any] = found.scores()
                yield SelectiveScore(model, seed, split, kind, score, **columns)


def set_scores(saved: Saved, classes: Sequence[str]) -> Iterator[SetScore]:
    """A row for each model, kind of sets, coverage, and class or all classes, on test images."""
    for (model, seed, split), tested in saved.items():
        if split != "test":
            continue
        for score, measure in SETS.items():
            rule = saved[model, seed, "valid"].set_rule(measure)
            for wanted in COVERAGES:
                sets = rule.sets(tested.log_probs(), wanted)
                for label, rows in by_label(tested.labels, classes).items():
                    found = set_quality(sets[rows], tested.labels[rows])
                    made = found.n, found.coverage, found.size, found.empty
                    yield SetScore(model, seed, score, wanted, label, *made, rule.fitted, len(rule.scores))


def by_label(labels: Tensor, classes: Sequence[str]) -> dict[str | None, Tensor]:
    """The rows of all images, and of the images of each class."""
    everything: dict[str | None, Tensor] = {None: torch.arange(len(labels))}
    return everything | {classes[k]: (labels == k).nonzero()[:, 0] for k in labels.unique().tolist()}


def grouped_scores(
    saved: Saved,
    fit: Mapping[Model, float],
    groups: Mapping[str, Sequence[str]],
    classes: Sequence[str],
) -> Iterator[GroupedScore]:
    """A row for each calibrated model and each class and group of test images."""
    for (model, seed, split), tested in saved.items():
        if split != "test":
            continue
        labelled = {CLASS: [classes[k] for k in tested.labels.tolist()]}
        for by, values in {**labelled, **groups}.items():
            names = sorted(set(values), key=classes.index if by == CLASS else None)
            which = torch.tensor([names.index(value) for value in values])
            for k, found in tested.groups(which, fit[model, seed]).items():
                label, answer = (classes[each] for each in found.confusion) if found.confusion else 2 * [None]
                numbers = found.n, found.acc, found.ece, found.confidence
                yield GroupedScore(model, seed, by, names[k], *numbers, label, answer, found.confused)


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
        raise GroupsError(f"{path} has {len(values):,} rows, but the run has {images:,} test images")
    if len(set(values)) > MOST_GROUPS:
        raise GroupsError(f"{path}: '{column}' has more than {MOST_GROUPS:,} different values")
    columns = {**read_groups(folder), column: values}
    text = csv_text(list(columns), zip(*columns.values(), strict=True))
    write_whole(folder / GROUPS, text.encode())
    return column


def read_groups(folder: Path) -> Mapping[str, Sequence[str]]:
    """The groups of a run's test images by column; empty without groups.csv."""
    path = folder / GROUPS
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
