"""NLL against what a model costs: parameters and milliseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from polyphony.metrics import MeanSd
from polyphony.report.chart import Absent, Chart, Panel
from polyphony.report.run import TEACHERS, Row, Run
from polyphony.report.style import TEXT, Look, looks
from polyphony.report.tables import Numbers, Value


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


def quality_for_cost(run: Run, curves: Mapping[str, Sequence[float]]) -> list[Chart | Absent]:
    """NLL against parameters, and against milliseconds where they were measured."""
    found = {"parameters": by_parameters(run, curves)}
    rows = run.analysis("latency")
    if not rows:
        why = "latencies were not measured; 'polyphony analyse' does it."
        return [cost_chart(found, looks(run)), Absent("Quality for its time", why)]
    found["milliseconds"] = by_latency(run, rows)
    how = f" Milliseconds are for a batch of {rows[0]['batch']} on {rows[0]['threads']} thread(s)."
    return [cost_chart(found, looks(run), how)]


def by_parameters(run: Run, curves: Mapping[str, Sequence[float]]) -> Costs:
    """Deep ensembles of every size (`ensemble_curves`), and every student, at their parameters."""
    students = [Priced(m, run.scored(m)[0].params, run.mean(m, "nll")) for m in run.methods]
    together = run.scored(TEACHERS)[0].params
    sizes = list(enumerate(curves.get("calibrated", [])))[1:]
    ensembles = [(size * together / run.members, nll) for size, nll in sizes]
    return Costs(students, ensembles or [(together, run.mean(TEACHERS, "nll").mean)])


def by_latency(run: Run, rows: Sequence[Row]) -> Costs:
    """The teachers together, and every student, at the milliseconds of latency.csv."""
    times = {row["model"]: float(row["milliseconds"]) for row in rows}
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
        " standard deviation over seeds. A student below the line is cheaper than deep ensembles as"
        f" good.{how} Rank-one members save memory, not arithmetic."
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
    for student in costs.students:
        spread = 0.0 if math.isnan(student.nll.sd) else student.nll.sd
        axes.errorbar(
            student.cost, student.nll.mean, yerr=spread, color=look[student.model].colour,
            marker=look[student.model].marker, markersize=7, linestyle="", elinewidth=1.4, alpha=0.9,
        )  # fmt: skip
    each = [student.cost for student in costs.students] + [price for price, _ in costs.ensembles]
    if max(each) > 3 * min(each):
        _logarithmic(axes, min(each), max(each))
        label = f"{label} (log scale)"
    else:
        axes.set_xlim(0, 1.15 * max(each))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.set(xlabel=label, ylabel="calibrated NLL on test")


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
