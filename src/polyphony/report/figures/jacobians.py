"""Whether students have their teachers' Jacobians, and how clear the gradients are that teach them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from polyphony import metrics
from polyphony.report.chart import Absent, Chart, Panel, grouped, thin
from polyphony.report.run import Run
from polyphony.report.style import MUTED, Look, assign
from polyphony.report.tables import Cell, Numbers, Table, Value
from polyphony.rows import GradientSnr, JacobianCosine, columns

Cosines = dict[str, Tensor]  # by method
_TITLE = "Did Jacobians come across?"
_WORDS = {"train": "training images", "valid": "validation images", "test": "test images"}
_POINTS = 150


def jacobian_matching(run: Run) -> list[Chart | Table | Absent]:
    """ROC and distributions of the cosines between teacher j's and member j's Jacobians, and their table."""
    rows = run.table(JacobianCosine)
    if not rows:
        return [Absent(_TITLE, "Jacobians were not compared; 'polyphony analyse RUN jacobians' does it.")]
    against = references(run, list(dict.fromkeys(row.model for row in rows)))
    if not against:
        return [Absent(_TITLE, "there is no student from scratch to compare with.")]
    splits = {split: cosines(rows, split) for split in dict.fromkeys(row.split for row in rows)}
    return [jacobian_chart(splits, against, run.look), jacobian_table(splits, against)]


def references(run: Run, methods: Sequence[str]) -> dict[str, str]:
    """The student from scratch that each method is compared with: of its own form, or else the first."""
    scratch = [method for method in run.methods_with(None) if method in methods]
    if not scratch:
        return {}
    form = {method: run.recipe.form_table(method).label for method in methods}
    by_form = {form[method]: method for method in reversed(scratch)}
    return {m: m if m in scratch else by_form.get(form[m], scratch[0]) for m in methods}


def cosines(rows: Sequence[JacobianCosine], split: str) -> Cosines:
    """The cosines on a split, by method, all seeds and members together."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.split == split:
            values.setdefault(row.model, []).append(row.cosine)
    return {method: torch.tensor(each, dtype=torch.float64) for method, each in values.items()}


def roc(scratch: Tensor, distilled: Tensor) -> tuple[Tensor, Tensor]:
    """False and true positive rate as the threshold falls, from (0, 0) to (1, 1). [n], [u] → [g + 1] each

    A positive is a distilled student's cosine; ties move both rates in one step.
    """
    values, group = torch.unique(torch.cat([scratch, distilled]), return_inverse=True)
    rates = []
    for part in group.split([len(scratch), len(distilled)]):
        counts = torch.bincount(part, minlength=len(values)).flip(0).double().cumsum(0)
        rates.append(torch.cat([counts.new_zeros(1), counts / counts[-1]]))
    return rates[0], rates[1]


def jacobian_chart(
    splits: Mapping[str, Cosines], against: Mapping[str, str], look: Mapping[str, Look]
) -> Chart:
    """For each split panels of ROC curves against students from scratch, and panels of distributions."""
    rocs = [panel for split, each in splits.items() for panel in _rocs(split, each, against, look)]
    panels = rocs + [panel for split, each in splits.items() for panel in _densities(split, each, look)]
    rows: list[tuple[Value, ...]] = [
        (split, method, float(x), float(y))
        for split, each in splits.items()
        for method, values in each.items()
        if method != against[method]
        for x, y in zip(*roc(each[against[method]], values), strict=True)
    ]
    used = list(dict.fromkeys(against.values()))
    own = "" if len(used) == 1 else ", of the same form where there is one"
    reading = (
        "A student that copied its teacher's function also bends where the teacher does: the cosine between"
        " their Jacobians is high. The ROC asks how well that cosine tells a distilled student from one"
        f" trained without teachers ({', '.join(used)}{own}); further to the upper left is better."
    )
    shown = tuple(look[method] for method in look if any(method in each for each in splits.values()))
    header = ("split", "model", "false_positive_rate", "true_positive_rate")
    return Chart("jacobians", _TITLE, reading, tuple(panels), Numbers(header, tuple(rows)), shown)


def jacobian_table(splits: Mapping[str, Cosines], against: Mapping[str, str]) -> Table:
    """COS and AUROC of every method on every split."""
    methods = list(dict.fromkeys(method for each in splits.values() for method in each))
    header = ["Method"]
    for split in splits:
        header += [f"COS, {split} ↑", f"AUROC, {split} ↑"]
    body = []
    for method in methods:
        cells = [Cell(method)]
        for each in splits.values():
            cells += _summary(each, method, against[method])
        body.append(tuple(cells))
    used = list(dict.fromkeys(against.values()))
    own = "" if len(used) == 1 else ", that of the same form where there is one"
    caption = (
        "Cosine between the Jacobians of teacher j and member j, mean over examples, members and seeds (COS),"
        f" and the area under the ROC against {' or '.join(used)}{own} (AUROC)."
    )
    return Table("jacobians", caption, tuple(header), tuple(body))


def _summary(each: Cosines, method: str, scratch: str) -> list[Cell]:
    if method not in each:
        return [Cell("–"), Cell("–")]
    mean = f"{float(each[method].mean()):.3f}"
    if method == scratch:
        return [Cell(mean), Cell("–")]
    return [Cell(mean), Cell(f"{metrics.detect(each[scratch], each[method]).auroc:.3f}")]


def _rocs(split: str, each: Cosines, against: Mapping[str, str], look: Mapping[str, Look]) -> list[Panel]:
    def draw(methods: Sequence[str]) -> Callable[[Axes], None]:
        return partial(_roc, each=each, methods=methods, against=against, look=look)

    distilled = [method for method in each if method != against[method]]
    return grouped(f"ROC, {_WORDS.get(split, split)}", distilled, look, draw, 1.15)


def _roc(
    axes: Axes, *, each: Cosines, methods: Sequence[str], against: Mapping[str, str], look: Mapping[str, Look]
) -> None:
    axes.plot([0, 1], [0, 1], color=MUTED.light, linewidth=1, linestyle=(0, (3, 3)))
    for method in methods:
        x, y = roc(each[against[method]], each[method])
        kept = thin(x.tolist(), _POINTS)
        axes.plot(x[kept].tolist(), y[kept].tolist(), color=look[method].colour)
    axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="false positive rate", ylabel="true positive rate")


def _densities(split: str, each: Cosines, look: Mapping[str, Look]) -> list[Panel]:
    low = min(float(values.min()) for values in each.values())
    high = max(float(values.max()) for values in each.values())
    fewest = min(len(values) for values in each.values())
    edges = np.linspace(low, high, min(40, max(8, round(2 * fewest ** (1 / 3)))) + 1)

    heights = {m: np.histogram(values.numpy(), edges, density=True)[0] for m, values in each.items()}
    top = 1.05 * max(float(height.max()) for height in heights.values())

    def draw(methods: Sequence[str]) -> Callable[[Axes], None]:
        some = {method: heights[method] for method in methods}
        return partial(_density, heights=some, edges=edges, top=top, look=look)

    return grouped(f"cosines, {_WORDS.get(split, split)}", list(each), look, draw, 1.15)


def _density(
    axes: Axes, *, heights: Mapping[str, np.ndarray], edges: np.ndarray, top: float, look: Mapping[str, Look]
) -> None:
    for method, height in heights.items():
        axes.stairs(height, edges, color=look[method].colour, linewidth=1.6)
    axes.set(xlabel="cosine of Jacobians", ylabel="density", ylim=(0, top))
    axes.grid(visible=False, axis="x")


def gradient_snr(run: Run) -> Chart | Absent:
    """Signal-to-noise ratio of the Jacobian-matching gradient against the step size."""
    rows = run.table(GradientSnr)
    if not rows:
        return Absent(
            "How clear is the lesson?", "gradients were not measured; 'polyphony analyse RUN snr' does it."
        )
    kinds = dict.fromkeys(row.perturbation for row in rows)
    return snr_chart(rows, assign([(kind, kind) for kind in kinds]))


def snr_chart(rows: Sequence[GradientSnr], look: Mapping[str, Look]) -> Chart:
    """One panel; rows as in snr.csv."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        lines.setdefault(row.perturbation, []).append((row.step_size, row.snr))
    reading = (
        "How much of the gradient that matches Jacobians is signal: its mean over random perturbations,"
        " divided by its spread. Higher means fewer steps are wasted."
    )
    return Chart(
        "snr",
        "How clear is the lesson?",
        reading,
        (Panel("", partial(_snr, lines=lines, look=look), 1.3),),
        Numbers(tuple(columns(GradientSnr)), tuple(map(astuple, rows))),
        tuple(look[kind] for kind in lines),
    )


def _snr(axes: Axes, *, lines: Mapping[str, Sequence[tuple[float, float]]], look: Mapping[str, Look]) -> None:
    for kind, points in lines.items():
        x, y = zip(*sorted(points), strict=True)
        axes.plot(
            [255 * step for step in x], y, color=look[kind].colour, marker=look[kind].marker, markersize=5
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel="step size (in 1/255, RMS per pixel)", ylabel="signal-to-noise ratio", ylim=(0, None))
