"""Learning curves: how training went, epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from polyphony.report.chart import Absent, Chart, Panel
from polyphony.report.run import Run
from polyphony.report.style import Look, looks
from polyphony.report.tables import Numbers

Series = list[tuple[int, float, float, float]]  # epoch, mean, least, largest over seeds
_COLUMNS = {"valid_nll": "validation NLL", "valid_acc": "validation accuracy"}
_TITLE = "How training went"


def learning_curves(run: Run) -> Chart | Absent:
    """Validation NLL and accuracy of the teachers and every student."""
    logs = {model: run.logs(model) for model in run.models}
    return learning_chart({model: log for model, log in logs.items() if log}, looks(run))


def learning_chart(
    logs: Mapping[str, Sequence[Sequence[Mapping[str, float]]]], look: Mapping[str, Look]
) -> Chart | Absent:
    """A panel for each column of the logs; models by name, a log for each of their trainings."""
    series = {
        column: {model: over_seeds(each, column) for model, each in logs.items()} for column in _COLUMNS
    }
    if not any(line for lines in series.values() for line in lines.values()):
        return Absent(_TITLE, "the run folder has no training logs.")
    panels = tuple(
        Panel(_COLUMNS[column], partial(_lines, lines=lines, look=look, column=column), 1.3)
        for column, lines in series.items()
    )
    rows = [
        (column, model, *point)
        for column, lines in series.items()
        for model, line in lines.items()
        for point in line
    ]
    reading = (
        "Lines are means over seeds and bands reach from the least to the largest; the model kept is the best"
        " on validation near the end. A curve that rises at the end means longer training would hurt."
    )
    numbers = Numbers(("score", "model", "epoch", "mean", "least", "largest"), tuple(rows))
    return Chart(
        "learning", _TITLE, reading, panels, numbers, tuple(look[model] for model in logs if model in look)
    )


def over_seeds(logs: Sequence[Sequence[Mapping[str, float]]], column: str) -> Series:
    """(epoch, mean, least, largest) of a column over the trainings that reached the epoch."""
    values: dict[int, list[float]] = {}
    for log in logs:
        for row in log:
            if math.isfinite(row.get(column, math.nan)):
                values.setdefault(int(row["epoch"]) + 1, []).append(row[column])
    return [(epoch, sum(v) / len(v), min(v), max(v)) for epoch, v in sorted(values.items())]


def _lines(axes: Axes, *, lines: Mapping[str, Series], look: Mapping[str, Look], column: str) -> None:
    for model, line in lines.items():
        if not line:
            continue
        epochs, mean, least, largest = (list(part) for part in zip(*line, strict=True))
        axes.fill_between(epochs, least, largest, color=look[model].colour, alpha=0.13, linewidth=0)
        axes.plot(epochs, mean, color=look[model].colour, linewidth=1.5)
    ends = [line[-1][1] for line in lines.values() if line]
    if column == "valid_nll":  # the first epochs are far above everything that matters
        axes.set_ylim(0.9 * min(ends), 3 * max(ends))
    else:
        axes.set_ylim(top=min(1.0, 1.02 * max(ends)))
    axes.set(xlabel="epoch", ylabel=_COLUMNS[column])
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
