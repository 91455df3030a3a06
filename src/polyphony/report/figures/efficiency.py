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
from polyphony.report.style import TEXT, Look
from polyphony.report.tables import Numbers, Value
from polyphony.rows import Latency
from polyphony.scores import TEACHERS


@dataclass(frozen=True)
class Priced:
    """A model: its cost, and its NLL over seeds."""

    model: str
    cost: float
    nll: MeanSd


@dataclass(frozen=True)
class Costs:
    """Students, and deep ensembles as (cost, NLL)."""

    students: Sequence[Priced]
    ensembles: Sequence[tuple[float, float]]


def quality_for_cost(run: Run) -> list[Chart | Absent]:
    """NLL against parameters, seconds of training, and milliseconds where they were measured."""
    found = {"parameters": by_parameters(run)}
    trained = by_training(run)
    if trained.students:
        found["seconds of training"] = trained
    rows = run.table(Latency)
    if not rows:
        why = "latencies were not measured; 'polyphony analyse' does it."
        return [cost_chart(found, run.look), Absent("Quality for its time", why)]
    found["milliseconds"] = by_latency(run, rows)
    how = f" Milliseconds are for a batch of {rows[0].batch} on {rows[0].threads} thread(s)."
    return [cost_chart(found, run.look, how)]


def by_parameters(run: Run) -> Costs:
    """Deep ensembles of every size, and every student, at their parameters."""
    students = [Priced(m, run.scored(m)[0].params, run.mean(m, "nll")) for m in run.methods]
    together = run.scored(TEACHERS)[0].params
    sizes = list(enumerate(run.curves.get("calibrated", [])))[1:]
    ensembles = [(size * together / run.members, nll) for size, nll in sizes]
    return Costs(students, ensembles or [(together, run.mean(TEACHERS, "nll").mean)])


def by_training(run: Run) -> Costs:
    """Deep ensembles at the time their teachers took, and every student at its own, without its teachers'."""
    times = {model: run.seconds(model) for model in run.models}
    students = [Priced(m, fmean(times[m]), run.mean(m, "nll")) for m in run.methods if times[m]]
    if not times[TEACHERS]:
        return Costs(students, [])
    sizes = list(enumerate(run.curves.get("calibrated", [])))[1:]
    each = fmean(times[TEACHERS])
    together = [(run.members, run.mean(TEACHERS, "nll").mean)]
    return Costs(students, [(size * each, nll) for size, nll in sizes or together])


def by_latency(run: Run, rows: Sequence[Latency]) -> Costs:
    """The teachers together, and every student, at the milliseconds of latency.csv."""
    times = {row.model: row.milliseconds for row in rows}
    students = [Priced(m, times[m], run.mean(m, "nll")) for m in run.methods if m in times]
    return Costs(students, [(times[TEACHERS], run.mean(TEACHERS, "nll").mean)] if TEACHERS in times else [])


def cost_chart(found: Mapping[str, Costs], look: Mapping[str, Look], how: str = "") -> Chart:
    """A panel for each kind of cost: students as marks with error bars, deep ensembles as a line."""
    panels = tuple(
        Panel(f"NLL against {cost}", partial(_scatter, costs=costs, look=look, label=cost), 1.15)
        for cost, costs in found.items()
    )
    rows: list[tuple[Value, ...]] = []
    for cost, costs in found.items():
        rows += [(cost, TEACHERS, price, nll, None) for price, nll in costs.ensembles]
        rows += [(cost, each.model, each.cost, each.nll.mean, each.nll.sd) for each in costs.students]
    reading = (
        "Lower left is better: the line is 1, 2, … teachers averaged, the marks are students with their"
        " standard deviation over seeds; marks of equal cost stand side by side. A student below the line is"
        " cheaper than deep ensembles as good; its training time does not count its teachers'."
        f"{how} Rank-one members save memory, not arithmetic."
    )
    numbers = Numbers(("cost", "model", "value", "nll", "nll_sd"), tuple(rows))
    return Chart("pareto", "Quality for its cost", reading, panels, numbers, tuple(look.values()))


def _scatter(
    axes: Axes,
    *,
    costs: Costs,
    look: Mapping[str, Look],
    label: str,
) -> None:
    if costs.ensembles:
        x, y = zip(*costs.ensembles, strict=True)
        axes.plot(x, y, color=TEXT.light, marker="o", markersize=4.5)
    each = [student.cost for student in costs.students] + [price for price, _ in costs.ensembles]
    logarithmic = max(each) > 3 * min(each)
    if logarithmic:
        _logarithmic(axes, min(each), max(each))
        label = f"{label} (log scale)"
    else:
        axes.set_xlim(0, 1.15 * max(each))
    places = side_by_side([s.cost for s in costs.students], axes.get_xlim(), logarithmic=logarithmic)
    for student, place in zip(costs.students, places, strict=True):
        axes.errorbar(
            place, student.nll.mean, spread(student.nll), color=look[student.model].colour,
            marker=look[student.model].marker, markersize=7, linestyle="", elinewidth=1.4, alpha=0.9,
        )  # fmt: skip
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.set(xlabel=label, ylabel="calibrated NLL on test")


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
        between = FuncFormatter(lambda value, _: short(value) if _leading(value) in (2, 5) else "")
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


def _leading(value: float) -> int:
    return int(f"{value:e}"[0])
