"""Error rate against the share of images that a model answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from polyphony.report.chart import Absent, Chart, grouped
from polyphony.report.style import Looks, looks_of
from polyphony.report.tables import Numbers, Value
from polyphony.runs.run import Run

COVERAGES = [percent / 100 for percent in range(50, 101)]  # below, few errors are left to compare
_TITLE = "How often is it wrong if it may pass images to a person?"

Curves = Mapping[str, Sequence[float]]  # error rates at `COVERAGES` by model


def risk_coverage(run: Run, models: Sequence[str] = ()) -> Chart | Absent:
    """A line for each model (default: all): error rate among its most confident answers, mean over seeds."""
    curves = {model: found for model in models or run.models if (found := _curve(run, model))}
    if not curves:
        return Absent(_TITLE, "test predictions or temperatures are not in the run folder.")
    legend = [looks_of(run)[model] for model in curves]

    def draw(axes: Axes, models: Sequence[str]) -> None:
        _lines(axes, {model: curves[model] for model in models}, looks_of(run))

    rows: list[Sequence[Value]] = [
        (model, *at) for model, curve in curves.items() for at in zip(COVERAGES, curve, strict=True)
    ]
    reading = (
        "Images are sorted by calibrated confidence. At 80 % coverage a model answers the 80 % of which it is"
        " most sure; the line is the error rate among those, the mean over seeds. Lower is better. At 100 %"
        " it is the error rate on all test images."
    )
    panels = grouped("", list(curves), looks_of(run), draw, 1.35)
    return Chart(
        "risk-coverage", _TITLE, reading, panels, Numbers(["model", "coverage", "error"], rows), legend
    )


def _curve(run: Run, model: str) -> list[float]:
    """The error rate at each coverage, mean over seeds; nothing where there are no calibrated predictions."""
    found = []
    for seed, tested in run.ensemble(model, "test").items():
        if (temperature := run.temperatures.get((model, seed))) is None:
            return []
        selective = tested.selective(temperature)["doubt"]
        found.append([selective.risk_at(coverage) for coverage in COVERAGES])
    return [fmean(errors) for errors in zip(*found, strict=True)]


def _lines(axes: Axes, curves: Curves, look: Looks) -> None:
    for model, curve in curves.items():
        axes.plot(
            COVERAGES, curve, color=look[model].colour, marker=look[model].marker, markevery=10, linewidth=1.4
        )
    axes.set(xlim=(COVERAGES[0], 1.02), xlabel="coverage: share of images answered", ylabel="error rate")
    axes.set_ylim(bottom=0.0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
