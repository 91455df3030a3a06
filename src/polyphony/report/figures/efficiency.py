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
from polyphony.report.figures.quality import ensemble_curves
from polyphony.report.run import TEACHERS, Run
from polyphony.report.style import TEXT, Look, looks
from polyphony.report.tables import Numbers, Value


@dataclass(frozen=True)
class Priced:
    """A model: its cost, and its NLL over seeds."""

    model: str
    cost: float
    nll: MeanSd


def nll_against_parameters(run: Run) -> Chart | Absent:
    """Deep ensembles of every size, and every student, at their parameters."""
    students = [Priced(m, run.scored(m)[0].params, run.mean(m, "nll")) for m in run.methods]
    one = run.scored(TEACHERS)[0].params / run.members
    curve = ensemble_curves(run).get("calibrated", [])
    ensembles = [(size * one, nll) for size, nll in enumerate(curve) if size > 0]
    if not ensembles:
        ensembles = [(run.scored(TEACHERS)[0].params, run.mean(TEACHERS, "nll").mean)]
    reading = (
        "Lower left is better: the dark line is 1, 2, … teachers averaged, the marks are students with their"
        " standard deviation over seeds. A student below the line is cheaper than any deep ensemble as good."
    )
    return cost_chart("nll-parameters", "Quality for its size", reading, "parameters", students, ensembles, looks(run))


def nll_against_latency(run: Run) -> Chart | Absent:
    """The same at the milliseconds one batch takes."""
    rows = run.analysis("latency")
    if not rows:
        return Absent("Quality for its time", "latencies were not measured; 'polyphony analyse' does it.")
    times = {row["model"]: float(row["milliseconds"]) for row in rows}
    students = [Priced(m, times[m], run.mean(m, "nll")) for m in run.methods if m in times]
    ensembles = [(times[TEACHERS], run.mean(TEACHERS, "nll").mean)] if TEACHERS in times else []
    how = f"batches of {rows[0]['batch']} on {rows[0]['threads']} thread(s)"
    reading = (
        f"Lower left is better: milliseconds for one batch ({how}), all members included."
        " Rank-one members save memory, not arithmetic: each still computes its own prediction."
    )
    return cost_chart("nll-latency", "Quality for its time", reading, "milliseconds", students, ensembles, looks(run))


def cost_chart(
    name: str,
    title: str,
    reading: str,
    cost: str,
    students: Sequence[Priced],
    ensembles: Sequence[tuple[float, float]],
    look: Mapping[str, Look],
) -> Chart:
    """One panel: students as marks with error bars, deep ensembles (cost, NLL) as a line."""
    draw = partial(_scatter, students=students, ensembles=ensembles, look=look, cost=cost)
    rows: list[tuple[Value, ...]] = [
        (TEACHERS, place + 1 if len(ensembles) > 1 else None, price, nll, None)
        for place, (price, nll) in enumerate(ensembles)
    ]
    rows += [(s.model, None, s.cost, s.nll.mean, s.nll.sd) for s in students]
    numbers = Numbers(("model", "teachers", cost, "nll", "nll_sd"), tuple(rows))
    shown = (look[TEACHERS], *(look[student.model] for student in students))
    return Chart(name, title, reading, (Panel("", draw, 1.3),), numbers, shown)


def _scatter(
    axes: Axes,
    *,
    students: Sequence[Priced],
    ensembles: Sequence[tuple[float, float]],
    look: Mapping[str, Look],
    cost: str,
) -> None:
    if ensembles:
        x, y = zip(*ensembles, strict=True)
        axes.plot(x, y, color=TEXT.light, marker="o", markersize=4.5)
    for student in students:
        spread = 0.0 if math.isnan(student.nll.sd) else student.nll.sd
        axes.errorbar(
            student.cost, student.nll.mean, yerr=spread, color=look[student.model].colour,
            marker=look[student.model].marker, markersize=7, linestyle="", elinewidth=1.4, alpha=0.9,
        )  # fmt: skip
    axes.set_xscale("log")
    costs = [student.cost for student in students] + [price for price, _ in ensembles]
    axes.set_xlim(min(costs) / 1.5, max(costs) * 1.5)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    few = max(costs) / min(costs) < 12
    axes.xaxis.set_minor_formatter(
        FuncFormatter(lambda value, _: short(value) if _leading(value) in (2, 5) else "") if few else NullFormatter()
    )
    axes.tick_params(axis="x", which="minor", labelsize=9)
    axes.set(xlabel=f"{cost} (log scale)", ylabel="calibrated NLL on test")


def short(value: float) -> str:
    """1200000 → "1.2M"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _leading(value: float) -> int:
    return round(value / 10 ** math.floor(math.log10(value)))
