"""Quality against price: calibrated NLL over latency, size of the exported file, and training time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from polyphony._util.text import counted
from polyphony.metrics import MeanSd
from polyphony.report.chart import Absent, Chart, Margins, Panel, spread
from polyphony.report.style import RULE, Look, looks_of
from polyphony.report.tables import Numbers
from polyphony.runs.run import Run
from polyphony.runs.scores import TEACHERS

_TITLE = "Quality for its price"
# In points: the width of a panel, the height of a label, half a mark, from a mark to its label, a letter.
_WIDTH, _LINE, _MARK, _ASIDE, _LETTER = 400.0, 14.0, 6.0, 16.0, 6.6
_MARGINS = Margins(left=58.0, bottom=44.0, right=14.0, top=12.0)

Cost = Callable[[Run, str], float | None]  # of a run and a model; None if not measured


@dataclass(frozen=True)
class Priced:
    """A model's price and quality, and how it is drawn."""

    label: str
    price: float
    nll: MeanSd
    look: Look


def quality_for_price(run: Run, models: Sequence[str] = ()) -> Chart | Absent:
    """NLL against milliseconds of some models (default: all), every mark labelled."""
    row = run.price(TEACHERS)
    if row is None:
        return Absent(_TITLE, "latency was not measured: run 'polyphony analyse RUN latency'.")
    images, threads = counted(row.batch, "image"), counted(row.threads, "thread")
    reading = (
        f"Lower left is better. Milliseconds are for {images} ({row.runtime}, {threads}); bars are one"
        " standard deviation over seeds. The grey line is the mean of 1, 2, … teachers. A student below it is"
        " better than an ensemble of the same price."
    )
    return _chart("price", _TITLE, reading, run, {f"milliseconds for {images}": _milliseconds}, models)


def other_costs(run: Run) -> Chart:
    """NLL against the size of the file (if not measured, the parameters) and against training time."""
    size: dict[str, Cost] = {"megabytes of the exported file": _megabytes}
    if run.price(TEACHERS) is None:
        size = {"million parameters": lambda run, model: run.params(model) / 1e6}
    reading = (
        "Calibrated NLL against the size of a model and its training time. Lower left is better. The training"
        " time of a student does not include its teachers."
    )
    return _chart("costs", "Size and training time", reading, run, {**size, "seconds of training": _training})


def _milliseconds(run: Run, model: str) -> float | None:
    row = run.price(model)
    return row.milliseconds if row else None


def _megabytes(run: Run, model: str) -> float | None:
    row = run.price(model)
    return row.bytes / 1e6 if row and row.bytes else None


def _training(run: Run, model: str) -> float | None:
    seconds = run.seconds(model)
    if model == TEACHERS:
        return sum(seconds[: run.members]) if seconds else None
    return fmean(seconds) if seconds else None


def _chart(
    name: str, title: str, reading: str, run: Run, costs: Mapping[str, Cost], models: Sequence[str] = ()
) -> Chart:
    panels, rows, look = [], [], looks_of(run)
    for words, cost in costs.items():
        points = []
        for model in models or run.models:
            label = f"{run.members} teachers" if model == TEACHERS and run.members > 1 else model
            if (price := cost(run, model)) is not None:
                points.append(Priced(label, price, run.mean(model, "nll"), look[model]))
        if points:
            draw = partial(_draw, points=points, line=_ensembles(run, cost), label=words)
            aspect = min(1.5, _WIDTH / (90.0 + _LINE * len(points)))  # room for the labels of many models
            panels.append(Panel(words if len(costs) > 1 else "", draw, aspect, _MARGINS))
            rows += [(words, point.label, point.price, point.nll.mean, point.nll.sd) for point in points]
    numbers = Numbers(["cost", "model", "value", "nll", "nll_sd"], rows)
    return Chart(name, title, reading, panels, numbers, width=_WIDTH)


def _ensembles(run: Run, cost: Cost) -> list[tuple[float, float]]:
    """(price, NLL) of the mean of 1, 2, … teachers of the ensemble."""
    all_teachers, curve = cost(run, TEACHERS) or 0.0, run.curves.get("calibrated", [])
    sizes = list(enumerate(curve))[1 : run.members + 1]
    return [(size * all_teachers / run.members, nll) for size, nll in sizes]


def _draw(axes: Axes, *, points: Sequence[Priced], line: Sequence[tuple[float, float]], label: str) -> None:
    if len(line) > 1:
        axes.plot(*zip(*line, strict=True), color=RULE.light, linewidth=2.5, zorder=1)
    for point in points:
        mark = {**point.look.mark, "markersize": 7.5, "linestyle": "", "elinewidth": 1.4}
        axes.errorbar(point.price, point.nll.mean, spread(point.nll), **mark, zorder=3)
    axes.set_xlim(0, 1.1 * max(point.price for point in points))
    axes.margins(y=0.12)
    axes.set(xlabel=label, ylabel="calibrated NLL on test images")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    _write_labels(axes, points)


def _write_labels(axes: Axes, points: Sequence[Priced]) -> None:
    """Write each point's name in the nearest free place beside it, with a thin line to the point."""
    size = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())  # in inches
    across, up = 72 * size.width / axes.get_xlim()[1], 72 * size.height / float(np.ptp(axes.get_ylim()))
    marks = []
    for point in points:
        x, y = point.price * across, (point.nll.mean - axes.get_ylim()[0]) * up
        bar = max(_MARK, spread(point.nll) * up)
        marks.append(Bbox.from_extents(x - _MARK, y - bar, x + _MARK, y + bar))
    widths = [_LETTER * len(point.label) for point in points]
    places = free_places(marks, widths, 72 * size.width, 72 * size.height)
    for point, mark, place in zip(points, marks, places, strict=True):
        right, colour = place.x0 > mark.x0, point.look.colour
        offset = (place.x0 if right else place.x1) - (mark.x0 + mark.x1) / 2, place.y0 + _LINE / 2
        axes.annotate(
            point.label, (point.price, point.nll.mean), (offset[0], offset[1] - (mark.y0 + mark.y1) / 2),
            textcoords="offset points", ha="left" if right else "right", va="center", color=colour,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (not right, 0.5)},
        )  # fmt: skip


def free_places(marks: Sequence[Bbox], widths: Sequence[float], right: float, top: float) -> list[Bbox]:
    """For each mark, the nearest place inside the panel where its label overlaps no mark and no other label.

    If no place is free, the nearest inside the panel; if the label fits nowhere inside, the nearest of all.
    """
    occupied = list(marks)
    for mark, width in zip(marks, widths, strict=True):
        places = list(_around(mark, width, right, top))
        inside = [place for place in places if place.x0 >= 0 and place.x1 <= right]
        free = [place for place in inside if not any(map(place.overlaps, occupied))]
        occupied.append([*free, *inside, *places][0])
    return occupied[len(marks) :]


def _around(mark: Bbox, width: float, right: float, top: float) -> Iterator[Bbox]:
    """Places for a label, the nearest first: right and left of the mark, then the lines below and above."""
    x, y = (mark.x0 + mark.x1) / 2, (mark.y0 + mark.y1) / 2
    for line in range(2 * math.ceil(top / _LINE)):
        bottom = y + _LINE * ((line + 1) // 2 * (-1) ** line - 0.5)
        if 0 <= bottom <= top - _LINE:
            middle = min(max(x - width / 2, 0), right - width)
            for left in (*([middle] if line else []), x + _ASIDE, x - _ASIDE - width):
                yield Bbox.from_extents(left, bottom, left + width, bottom + _LINE - 1)
