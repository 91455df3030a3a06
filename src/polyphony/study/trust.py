"""Tables about trust, from saved predictions: selective prediction, prediction sets, groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyphony.metrics import APS, Predictions, SetMeasure, lac, set_quality
from polyphony.runs.rows import GroupedScore, SelectiveScore, SetScore, Temperature, Threshold
from polyphony.runs.scores import thresholds
from polyphony.study.groups import read_groups
from polyphony.study.saved import write_table

Saved = Mapping[tuple[str, int | None, str], Predictions]
"""Predictions by model, seed and split."""

SETS: Mapping[str, SetMeasure] = {"lac": lac, "aps": APS()}
COVERAGES = (0.9, 0.95)


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


def selective_scores(saved: Saved, fit: Mapping[tuple[str, int | None], float]) -> Iterator[SelectiveScore]:
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
    fit: Mapping[tuple[str, int | None], float],
    groups: Mapping[str, Sequence[str]],
    classes: Sequence[str],
) -> Iterator[GroupedScore]:
    """A row for each calibrated model and each class and group of test images."""
    for (model, seed, split), tested in saved.items():
        if split != "test":
            continue
        labelled = {"class": [classes[k] for k in tested.labels.tolist()]}
        for by, values in {**labelled, **groups}.items():
            names = sorted(set(values), key=classes.index if by == "class" else None)
            which = torch.tensor([names.index(value) for value in values])
            for k, found in tested.groups(which, fit[model, seed]).items():
                label, answer = (classes[each] for each in found.confusion) if found.confusion else 2 * [None]
                numbers = found.n, found.acc, found.ece, found.confidence
                yield GroupedScore(model, seed, by, names[k], *numbers, label, answer, found.confused)
