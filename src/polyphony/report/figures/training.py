"""Learning curves: validation scores by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from polyphony.report.chart import Absent, Chart, Panel, grouped
from polyphony.report.style import Looks, looks_of
from polyphony.report.tables import Numbers, Value
from polyphony.runs.run import Run

Series = list[tuple[int, float, float, float]]  # epoch; mean, least and largest over seeds
_COLUMNS = {
    "valid_nll": "validation NLL",
    "valid_acc": "validation accuracy",
    "valid_kld": "members’ mean-KLD on validation",
}
_TITLE = "Learning curves"


def learning_curves(run: Run) -> Chart | Absent:
    """Validation NLL, accuracy and (if logged) mean-KLD of the teachers and students, by epoch."""
    logs = {model: log for model in run.trained if (log := run.logs(model))}  # of all trainings of a model
    look = looks_of(run)
    panels: list[Panel] = []
    rows: list[Sequence[Value]] = []
    for column, words in _COLUMNS.items():
        lines = {model: line for model, log in logs.items() if (line := over_seeds(log, column))}
        rows += [(column, model, *point) for model, line in lines.items() for point in line]
        if lines:
            draw = partial(_lines, lines=lines, look=look, column=column)
            panels += grouped(words, list(lines), look, draw, 1.3)
    if not panels:
        return Absent(_TITLE, "the run folder has no training logs.")
    reading = (
        "Lines are means over seeds; bands go from the lowest to the highest seed. The saved weights are the"
        " best on validation images near the end. If the NLL rises there, longer training would hurt."
    )
    if any(column == "valid_kld" for column, *_ in rows):
        reading += " If the mean-KLD falls towards 0, the members become one predictor."
    numbers = Numbers(["score", "model", "epoch", "mean", "least", "largest"], rows)
    return Chart("learning", _TITLE, reading, panels, numbers, [look[model] for model in logs])


def over_seeds(logs: Sequence[Sequence[Mapping[str, float]]], column: str) -> Series:
    """(epoch, mean, least, largest) of a column over the trainings that reached this epoch."""
    values: dict[int, list[float]] = {}
    for row in (row for log in logs for row in log):
        if math.isfinite(row.get(column, math.nan)):
            values.setdefault(int(row["epoch"]) + 1, []).append(row[column])
    return [(epoch, sum(v) / len(v), min(v), max(v)) for epoch, v in sorted(values.items())]


def _lines(
    axes: Axes, *, models: Sequence[str], lines: Mapping[str, Series], look: Looks, column: str
) -> None:
    for model in models:
        epochs, mean, least, largest = (list(part) for part in zip(*lines[model], strict=True))
        axes.fill_between(epochs, least, largest, color=look[model].colour, alpha=0.13, linewidth=0)
        axes.plot(epochs, mean, color=look[model].colour, linewidth=1.5)
        axes.plot(epochs[-1], mean[-1], **look[model].mark, markersize=5)
    low, high = _limits(column, list(lines.values()))
    if low < high:  # false if all lines are the same horizontal line
        axes.set_ylim(low, high)
    axes.set(xlabel="epoch", ylabel=_COLUMNS[column])
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _limits(column: str, lines: Sequence[Series]) -> tuple[float, float]:
    """The range of the vertical axis, without the extreme values of the first epochs."""
    if column == "valid_nll":
        ends = [line[-1][1] for line in lines]
        highest = max(largest for line in lines for *_, largest in line)
        return 0.9 * min(ends), min(3 * max(ends), 1.05 * highest)
    late = [point for line in lines for point in line[len(line) // 5 :]]
    low, high = min(least for *_, least, _ in late), max(largest for *_, largest in late)
    return (0.0, 1.1 * high) if column == "valid_kld" else (low - 0.05 * (high - low), min(1.0, 1.02 * high))
