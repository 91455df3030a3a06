"""How good predictions are: the DEE curve with every student on it, and reliability diagrams."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FormatStrFormatter

from polyphony import metrics
from polyphony.metrics import Reliability
from polyphony.report.chart import SMALL, Absent, Chart, Panel
from polyphony.report.run import Run
from polyphony.report.style import MUTED, RULE, TEXT, Look
from polyphony.report.tables import Numbers, Value
from polyphony.scores import CALIBRATIONS, TEACHERS

Points = Mapping[str, Sequence[tuple[float, float]]]  # (DEE, NLL) of each seed, by model


def dee_curves(run: Run) -> Chart | Absent:
    """NLL against the size of a deep ensemble, and where each student is on it."""
    if not run.curves:
        return Absent(
            "How many teachers is a student worth?", "the curve of teachers is not in the run folder."
        )
    points = {
        kind: {
            model: [(s.dee, s.nll) for s in run.scored(model, calibration=kind) if s.dee is not None]
            for model in run.methods
        }
        for kind in CALIBRATIONS
    }
    return dee_chart(run.curves, points, run.look)


def dee_chart(
    curves: Mapping[str, Sequence[float]], points: Mapping[str, Points], look: Mapping[str, Look]
) -> Chart:
    """A panel for each calibration: the curve, and a mark for each seed of each student."""
    panels = tuple(
        Panel(kind, partial(_curve, curve=curve, points=points[kind], look=look), 1.15)
        for kind, curve in curves.items()
    )
    rows: list[tuple[Value, ...]] = []
    for kind, curve in curves.items():
        rows += [(kind, TEACHERS, None, float(size), value) for size, value in enumerate(curve)]
        for model, seeds in points[kind].items():
            rows += [(kind, model, place, dee, nll) for place, (dee, nll) in enumerate(seeds)]
    size = len(next(iter(curves.values()))) - 1
    line, all_of_them = _averaged(size)
    reading = (
        f"The line is {line}; each mark is one"
        " seed of a student at its own NLL, and below it on the axis is the number of teachers it is worth."
        f" Marks at “>{size}” are better than {all_of_them}."
    )
    return Chart(
        "dee",
        "How many teachers is a student worth?",
        reading,
        panels,
        Numbers(("calibration", "model", "place", "dee", "nll"), tuple(rows)),
        tuple(look[model] for model in look),
    )


def _averaged(size: int) -> tuple[str, str]:
    """What the curve of so many teachers is of, and what is at its end."""
    if size == 1:
        return "the NLL of no teacher and of the one there is", "that teacher"
    sizes = "1 and 2" if size == 2 else f"1, 2, … {size}"
    return f"the NLL of {sizes} teachers averaged, a mean over many subsets", f"all {size} together"


def _curve(axes: Axes, *, curve: Sequence[float], points: Points, look: Mapping[str, Look]) -> None:
    size = len(curve) - 1
    past = size + 0.7
    axes.plot(range(size + 1), curve, color=TEXT.light, marker="o", markersize=4, zorder=2)
    axes.axvspan(size + 0.35, size + 1.05, color=RULE.light, alpha=0.45, linewidth=0)
    for model, seeds in points.items():
        x = [past if dee == math.inf else dee for dee, _ in seeds]
        axes.plot(
            x, [nll for _, nll in seeds], linestyle="", marker=look[model].marker, color=look[model].colour,
            markersize=6.5, markeredgewidth=0, alpha=0.85, zorder=3,
        )  # fmt: skip
    shown = [nll for seeds in points.values() for _, nll in seeds] + list(curve[1:])
    low, high = min(shown), max(shown)
    margin = 0.08 * (high - low) or 0.05
    axes.set(xlim=(0, size + 1.05), ylim=(low - margin, high + margin), ylabel="NLL on test (nats)")
    axes.set_xlabel("teachers averaged")
    step = max(1, math.ceil(size / 8))
    sizes = [n for n in range(0, size + 1, step) if n <= size - 1 or step == 1]
    axes.set_xticks([*sizes, past], [*map(str, sizes), f">{size}"])


def reliability_diagrams(run: Run) -> Chart | Absent:
    """Accuracy against confidence, for the teachers and every student, standard and calibrated."""
    found: dict[str, dict[str, Reliability]] = {}
    for model in run.models:
        diagrams = {}
        for kind in CALIBRATIONS:
            pairs = run.log_probs(model, "test", kind)
            if pairs:
                log_probs, labels = (torch.cat(part) for part in zip(*pairs, strict=True))
                diagrams[kind] = metrics.reliability(log_probs, labels)
        if diagrams:
            found[model] = diagrams
    if not found:
        return Absent("Can confidences be trusted?", "the test predictions are not in the run folder.")
    return reliability_chart(found, run.look)


def reliability_chart(found: Mapping[str, Mapping[str, Reliability]], look: Mapping[str, Look]) -> Chart:
    """A panel for each model."""
    panels = tuple(
        Panel(model, partial(_reliability, diagrams=diagrams, look=look[model]), 1.0)
        for model, diagrams in found.items()
    )
    rows = [
        (model, kind, float(low), float(high), int(count), float(confidence), float(accuracy))
        for model, diagrams in found.items()
        for kind, each in diagrams.items()
        for low, high, count, confidence, accuracy in zip(
            each.edges[:-1], each.edges[1:], each.count, each.confidence, each.accuracy, strict=True
        )
    ]
    header = ("model", "calibration", "confidence_above", "confidence_to", "count", "confidence", "accuracy")
    reading = (
        "On the diagonal, predictions made with 80% confidence are right 80% of the time; below it a model"
        " is too sure, above it too timid. Filled marks are calibrated, rings are as predicted, seeds pooled;"
        " larger marks hold more examples."
    )
    numbers = Numbers(header, tuple(rows))
    return Chart("reliability", "Can confidences be trusted?", reading, panels, numbers, width=SMALL)


def _reliability(axes: Axes, *, diagrams: Mapping[str, Reliability], look: Look) -> None:
    axes.plot([0, 1], [0, 1], color=MUTED.light, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
    for kind, each in diagrams.items():
        some = each.count > 0
        sizes = 8 + 70 * torch.sqrt(each.count[some] / each.count.sum())
        x, y = each.confidence[some].tolist(), each.accuracy[some].tolist()
        filled = kind == "calibrated"
        axes.plot(x, y, color=look.colour, linewidth=1.4 if filled else 0.9, alpha=0.9 if filled else 0.55)
        axes.scatter(
            x, y, s=sizes.tolist(), color=look.colour if filled else "none", edgecolors=look.colour,
            linewidths=1.1, alpha=0.9, zorder=3,
        )  # fmt: skip
    axes.set(xlim=(0, 1.03), ylim=(0, 1.03), xlabel="confidence", ylabel="accuracy")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator([0, 0.5, 1]))
        axis.set_major_formatter(FormatStrFormatter("%g"))
