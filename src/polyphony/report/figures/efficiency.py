"""NLL against what a model costs: parameters, training time and milliseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from polyphony.metrics import MeanSd
from polyphony.report.chart import Absent, Chart, Panel, spread
from polyphony.report.run import Run
from polyphony.report.style import TEXT, Looks
from polyphony.report.tables import Numbers, Value
from polyphony.runs.rows import Latency
from polyphony.runs.scores import TEACHERS


@dataclass(frozen=True)
class Costs:
    """(cost, NLL over seeds) of students by method, and (cost, NLL) of deep ensembles."""

    students: Mapping[str, tuple[float, MeanSd]]
    ensembles: Sequence[tuple[float, float]]


def quality_for_cost(run: Run) -> list[Chart | Absent]:
    """NLL against parameters, seconds of training, and milliseconds where they were measured."""
    found = {"parameters": by_parameters(run), "seconds of training": by_training(run)}
    rows = run.table(Latency)
    if not rows:
        why = "latencies were not measured; 'polyphony analyse' does it."
        return [cost_chart(found, run.look), Absent("Quality for its time", why)]
    found["milliseconds"] = by_latency(run)
    how = f" Milliseconds are for a batch of {rows[0].batch} on {rows[0].threads} thread(s)."
    return [cost_chart(found, run.look, how)]


def by_parameters(run: Run) -> Costs:
    """Deep ensembles of every size, and every student, at their parameters."""
    students = _students(run, {method: run.params(method) for method in run.methods})
    return Costs(students, _ensembles(run, run.params(TEACHERS) / run.members))


def by_training(run: Run) -> Costs:
    """Deep ensembles at the time their teachers took, and every student at its own, without its teachers'."""
    times = {model: fmean(seconds) for model, seconds in run.times().items() if seconds}
    return Costs(_students(run, times), _ensembles(run, times[TEACHERS]) if TEACHERS in times else [])


def by_latency(run: Run) -> Costs:
    """The teachers together, and every student, at the milliseconds of latency.csv."""
    times = {row.model: row.milliseconds for row in run.table(Latency)}
    together = [(times[TEACHERS], run.mean(TEACHERS, "nll").mean)] if TEACHERS in times else []
    return Costs(_students(run, times), together)


def _students(run: Run, costs: Mapping[str, float]) -> dict[str, tuple[float, MeanSd]]:
    return {method: (costs[method], run.mean(method, "nll")) for method in run.methods if method in costs}


def _ensembles(run: Run, teacher: float) -> list[tuple[float, float]]:
    """Deep ensembles of every size on the DEE curve, or all teachers where there is none, at so much each."""
    sizes = list(enumerate(run.curves.get("calibrated", [])))[1:]
    return [(size * teacher, nll) for size, nll in sizes or [(run.members, run.mean(TEACHERS, "nll").mean)]]


def cost_chart(found: Mapping[str, Costs], look: Looks, how: str = "") -> Chart:
    """A panel for each kind of cost: students as marks with error bars, deep ensembles as a line."""
    panels: list[Panel] = []
    rows: list[Sequence[Value]] = []
    for cost, costs in found.items():
        if costs.students:
            panels.append(
                Panel(f"NLL against {cost}", partial(_draw, costs=costs, look=look, label=cost), 1.15)
            )
            rows += [(cost, TEACHERS, *each, None) for each in costs.ensembles]
            rows += [(cost, m, price, nll.mean, nll.sd) for m, (price, nll) in costs.students.items()]
    reading = (
        "Lower left is better: the line is 1, 2, … teachers averaged, the marks are students with their"
        " standard deviation over seeds; marks of equal cost stand side by side. A student below the line is"
        " cheaper than deep ensembles as good; its training time does not count its teachers'."
        f"{how} Rank-one members save memory, not arithmetic."
    )
    numbers = Numbers(["cost", "model", "value", "nll", "nll_sd"], rows)
    return Chart("pareto", "Quality for its cost", reading, panels, numbers, list(look.values()))


def _draw(axes: Axes, *, costs: Costs, look: Looks, label: str) -> None:
    if costs.ensembles:
        axes.plot(*zip(*costs.ensembles, strict=True), color=TEXT.light, marker="o", markersize=4.5)
    prices = [price for price, _ in costs.students.values()]
    every = [*prices, *(price for price, _ in costs.ensembles)]
    logarithmic = max(every) > 3 * min(every)
    if logarithmic:
        _logarithmic(axes, min(every), max(every))
    else:
        axes.set_xlim(0, 1.15 * max(every))
    places = side_by_side(prices, axes.get_xlim(), logarithmic=logarithmic)
    for place, (method, (_, nll)) in zip(places, costs.students.items(), strict=True):
        at, mark = (place, nll.mean, spread(nll)), look[method].mark
        axes.errorbar(*at, **mark, markersize=7, linestyle="", elinewidth=1.4, alpha=0.9)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.set(xlabel=f"{label} (log scale)" if logarithmic else label, ylabel="calibrated NLL on test")


def side_by_side(costs: Sequence[float], limits: tuple[float, float], *, logarithmic: bool) -> list[float]:
    """Where marks stand: those of equal cost spread evenly around it, three hundredths of the axis apart."""
    across = [math.log(value) for value in costs] if logarithmic else list(costs)
    low, high = map(math.log, limits) if logarithmic else limits
    places = []
    for place, value in enumerate(across):
        same = [other for other, each in enumerate(across) if math.isclose(each, value)]
        at = value + (same.index(place) - (len(same) - 1) / 2) * 0.03 * (high - low)
        places.append(math.exp(at) if logarithmic else at)
    return places


def _logarithmic(axes: Axes, low: float, high: float) -> None:
    axes.set_xscale("log")
    axes.set_xlim(low / 1.5, high * 1.5)
    if high / low < 12:  # one power of ten would be the only number on the axis
        between = FuncFormatter(lambda value, _: short(value) if f"{value:e}"[0] in "25" else "")
        axes.xaxis.set_minor_formatter(between)
        axes.tick_params(axis="x", which="minor", labelsize=10)
    else:
        axes.xaxis.set_minor_formatter(NullFormatter())


def short(value: float) -> str:
    """1200000 → "1.2M"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
