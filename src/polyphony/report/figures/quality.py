"""The DEE curve with every student on it, reliability diagrams, and errors against coverage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from polyphony import metrics
from polyphony.metrics import Reliability
from polyphony.report.chart import SMALL, Absent, Chart, Panel, diagonal, grouped
from polyphony.report.style import RULE, TEXT, Look, Looks, looks_of
from polyphony.report.tables import Numbers, Value, binned
from polyphony.runs.run import Run
from polyphony.runs.scores import CALIBRATIONS, TEACHERS

COVERAGES = [percent / 100 for percent in range(50, 101)]  # below 50 % too few errors are left to compare
Points = Mapping[str, Sequence[tuple[float, float]]]  # (DEE, NLL) of each seed, by model
_DEE_TITLE = "How many teachers is a student worth?"
_RELIABILITY_TITLE = "Is confidence calibrated?"
_COVERAGE_TITLE = "Errors, if uncertain images go to a person"
_SEED: dict[str, Any] = {"linestyle": "", "markersize": 6.5, "markeredgewidth": 0, "alpha": 0.85, "zorder": 3}


def dee_curves(run: Run) -> Chart | Absent:
    """A panel for each calibration: NLL against the size of a deep ensemble, a mark for each student."""
    if not run.curves:
        return Absent(_DEE_TITLE, "the curve of teachers is not in the run folder.")
    panels: list[Panel] = []
    rows: list[Sequence[Value]] = []
    look = looks_of(run)
    for kind, curve in run.curves.items():
        points = {}
        for model in run.models[1:]:
            scored = run.scored(model, calibration=kind)
            points[model] = [(row.dee, row.nll) for row in scored if row.dee is not None]
        panels.append(Panel(kind, partial(_curve, curve=curve, points=points, look=look), 1.15))
        rows += [(kind, TEACHERS, None, float(size), nll) for size, nll in enumerate(curve)]
        for model, seeds in points.items():
            rows += [(kind, model, place, *point) for place, point in enumerate(seeds)]
    numbers = Numbers(["calibration", "model", "place", "dee", "nll"], rows)
    legend = [look[model] for model in run.models]
    return Chart("dee", _DEE_TITLE, dee_reading(run.teacher_count), panels, numbers, legend)


def dee_reading(size: int) -> str:
    """How to read the curve of `size` teachers."""
    sizes = "1 and 2" if size == 2 else f"1, 2, … {size}"
    line, end = f"{sizes} teachers averaged (mean over subsets)", f"all {size} together"
    if size == 1:
        line, end = "a uniform guess and of the only teacher", "that teacher"
    return (
        f"The line is the NLL of {line}. Each mark is one seed of a student. The lower axis is the number of"
        f" teachers that it is worth (DEE). Marks at “>{size}” are better than {end}."
    )


def _curve(axes: Axes, *, curve: Sequence[float], points: Points, look: Looks) -> None:
    size = len(curve) - 1
    beyond = size + 0.7  # where marks stand whose DEE is past the end of the curve
    axes.plot(range(size + 1), curve, color=TEXT.light, marker="o", markersize=4, zorder=2)
    axes.axvspan(size + 0.35, size + 1.05, color=RULE.light, alpha=0.45, linewidth=0)
    for model, seeds in points.items():
        x = [beyond if dee == math.inf else dee for dee, _ in seeds]
        axes.plot(x, [nll for _, nll in seeds], **look[model].mark, **_SEED)
    nlls = [*curve[1:], *(nll for seeds in points.values() for _, nll in seeds)]
    low, high = min(nlls), max(nlls)
    margin = 0.08 * (high - low) or 0.05
    axes.set(xlim=(0, size + 1.05), ylim=(low - margin, high + margin))
    axes.set(xlabel="teachers averaged", ylabel="NLL on test (nats)")
    step = max(1, math.ceil(size / 8))
    sizes = [n for n in range(0, size + 1, step) if n < size or step == 1]
    axes.set_xticks([*sizes, beyond], [*map(str, sizes), f">{size}"])


def reliability_diagrams(run: Run) -> Chart | Absent:
    """Accuracy against confidence, calibrated and as predicted, with a panel for each model."""
    panels: list[Panel] = []
    rows: list[Sequence[Value]] = []
    look = looks_of(run)
    for model in run.models:
        if diagrams := _reliabilities(run, model):
            panels.append(Panel(model, partial(_reliability, diagrams=diagrams, look=look[model]), 1.0))
        for kind, diagram in diagrams.items():
            bins = binned(diagram.edges, diagram.count.int(), diagram.confidence, diagram.accuracy)
            rows += [(model, kind, *numbers) for numbers in bins]
    if not panels:
        return Absent(_RELIABILITY_TITLE, "the test predictions are not in the run folder.")
    header = ["model", "calibration", "confidence_above", "confidence_to", "count", "confidence", "accuracy"]
    reading = (
        "On the diagonal, predictions with 80 % confidence are right 80 % of the time. Below it a model is"
        " overconfident, above it underconfident. Filled marks are calibrated, rings are as predicted. Larger"
        " marks hold more images. All seeds are together."
    )
    return Chart("reliability", _RELIABILITY_TITLE, reading, panels, Numbers(header, rows), width=SMALL)


def _reliabilities(run: Run, model: str) -> dict[str, Reliability]:
    """The reliability diagrams by calibration; one is missing if its predictions or temperatures are."""
    diagrams, predictions = {}, run.pooled(model, "test")
    for kind in CALIBRATIONS:
        log_probs = run.log_probs(model, kind)
        if predictions is not None and log_probs is not None:
            diagrams[kind] = metrics.reliability(log_probs, predictions.labels)
    return diagrams


def _reliability(axes: Axes, *, diagrams: Mapping[str, Reliability], look: Look) -> None:
    diagonal(axes)
    for kind, diagram in diagrams.items():
        filled = diagram.count > 0
        sizes = 8 + 70 * torch.sqrt(diagram.count[filled] / diagram.count.sum())
        x, y = diagram.confidence[filled].tolist(), diagram.accuracy[filled].tolist()
        width, alpha, fill = (1.4, 0.9, look.colour) if kind == "calibrated" else (0.9, 0.55, "none")
        axes.plot(x, y, color=look.colour, linewidth=width, alpha=alpha)
        axes.scatter(
            x, y, sizes.tolist(), color=fill, edgecolors=look.colour, linewidths=1.1, alpha=0.9, zorder=3
        )
    axes.set(xlim=(0, 1.03), ylim=(0, 1.03), xlabel="confidence", ylabel="accuracy")
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])


def risk_coverage(run: Run, models: Sequence[str] = ()) -> Chart | Absent:
    """A line for each model (default: all): error rate among its most confident answers, mean over seeds."""
    curves = {model: errors for model in models or run.models if (errors := _error_rates(run, model))}
    if not curves:
        return Absent(_COVERAGE_TITLE, "test predictions or temperatures are not in the run folder.")
    look = looks_of(run)

    def draw(axes: Axes, models: Sequence[str]) -> None:
        for model in models:
            axes.plot(COVERAGES, curves[model], **look[model].mark, markevery=10, linewidth=1.4)
        axes.set(xlim=(COVERAGES[0], 1.02), xlabel="coverage: share of images answered", ylabel="error rate")
        axes.set_ylim(bottom=0.0)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, decimals=0))

    rows = [
        (model, *point) for model, curve in curves.items() for point in zip(COVERAGES, curve, strict=True)
    ]
    numbers = Numbers(["model", "coverage", "error"], rows)
    reading = (
        "Images are sorted by calibrated confidence. At 80 % coverage a model answers the 80 % of images with"
        " the highest confidence; a person decides on the others. The line is the error rate among the"
        " answers, mean over seeds. Lower is better. At 100 % it is the error rate on all test images."
    )
    panels, legend = grouped("", list(curves), look, draw, 1.35), [look[model] for model in curves]
    return Chart("risk-coverage", _COVERAGE_TITLE, reading, panels, numbers, legend)


def _error_rates(run: Run, model: str) -> list[float]:
    """The error rate at each coverage, mean over seeds; empty if predictions or a temperature are missing."""
    by_seed = []
    for seed, predictions in run.ensemble(model, "test").items():
        if (temperature := run.temperatures.get((model, seed))) is None:
            return []
        selective = predictions.selective(temperature)["doubt"]
        by_seed.append([selective.risk_at(coverage) for coverage in COVERAGES])
    return [fmean(errors) for errors in zip(*by_seed, strict=True)]
