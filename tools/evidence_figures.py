"""The figures of the evidence: differences, and the price of quality."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from evidence_runs import WAYS, WORDS, cost, results, runs_of, tried, valid_nll
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from polyphony.metrics import MeanSd
from polyphony.report.chart import Chart, Margins, Panel, spread
from polyphony.report.style import MUTED, Look, assign
from polyphony.report.tables import Numbers

ODS_MARK = {"marker": "o", "markersize": 5.5, "color": "#d14f00"}


def difference_chart(folder: Path) -> Chart:
    """The differences of calibrated NLL, with their intervals over sets of teachers."""
    shown = [
        (f"{each.comparison.study}: {each.comparison.words}", each)
        for each in results(folder)
        if each.comparison.front
    ]

    def draw(axes: Axes) -> None:
        for place, (_, result) in enumerate(shown):
            several = result.sets.n > 1
            axes.errorbar(
                result.mean.mean,
                place,
                xerr=half(result.sets) or 0.0,
                elinewidth=1.6,
                markerfacecolor=ODS_MARK["color"] if several else "none",
                **ODS_MARK,
            )
        axes.axvline(0, color=MUTED.light, linewidth=1.0)
        axes.set_yticks(range(len(shown)), [label for label, _ in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlabel("difference of calibrated test NLL")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.grid(visible=False, axis="y")

    header = ["comparison", "sets", "difference", "half_interval"]
    rows = [(label, each.sets.n, each.mean.mean, half(each.sets)) for label, each in shown]
    margins = Margins(left=5.9 * max((len(label) for label, _ in shown), default=10))
    reading = (
        "Mean difference of calibrated test NLL with its 95 % interval over sets of teachers; a hollow point"
        " is one set. Left of zero the first method is better."
    )
    panel = Panel("", draw, 2.0, margins)
    return Chart("differences", "Differences", reading, [panel], Numbers(header, rows), width=760.0)


def half(mean: MeanSd) -> float | None:
    """Half of the 95 % interval; None for one value."""
    return mean.half if mean.n > 1 else None


Points = Mapping[str, Sequence[tuple[float, MeanSd]]]  # label of a way → cost, validation NLL


def price_chart(folder: Path) -> Chart:
    """Calibrated validation NLL against training cost: a curve for each way."""
    labels = list(dict.fromkeys(way.label for ways in WAYS.values() for way in ways))
    look = assign([(label, None) for label in labels])
    points = {WORDS.get(name, name): priced(folder, name) for name in WAYS if runs_of(folder, name)}
    margins = Margins(left=58.0, bottom=44.0)
    panels = [
        Panel(title, partial(draw_prices, points=each, look=look), 1.2, margins)
        for title, each in points.items()
    ]
    rows = [
        (title, label, price, nll.mean, None if math.isnan(nll.sd) else nll.sd)
        for title, each in points.items()
        for label, line in each.items()
        for price, nll in line
    ]
    reading = (
        "Calibrated validation NLL against the cost of one training. A curve is one way to train with"
        " different numbers of epochs; bars are one standard deviation over sets and seeds. Lower left is"
        " better."
    )
    numbers = Numbers(["study", "way", "multiply_adds_1e12", "nll", "nll_sd"], rows)
    return Chart(
        "price", "Price of quality", reading, panels, numbers, [look[label] for label in labels], 340.0
    )


def priced(folder: Path, name: str) -> Points:
    """The cost (10¹²) and the validation NLL of every training of each way of a study."""
    return {
        way.label: [
            (cost(*found) / 1e12, valid_nll(*found))
            for method in way.methods
            if (found := tried(folder, name, method))
        ]
        for way in WAYS[name]
    }


def draw_prices(axes: Axes, points: Points, look: Mapping[str, Look]) -> None:
    """A curve with its spread for each way."""
    for label, line in points.items():
        costs, nlls = [price for price, _ in line], [nll for _, nll in line]
        bars = [spread(nll) for nll in nlls]
        axes.errorbar(costs, [nll.mean for nll in nlls], bars, **look[label].mark, elinewidth=1.2)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="multiply-adds of one training (10¹²)", ylabel="calibrated validation NLL")
