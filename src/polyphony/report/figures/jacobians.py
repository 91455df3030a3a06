"""How close students' Jacobians are to their teachers', and the signal-to-noise ratio of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from polyphony import metrics
from polyphony.report.chart import Absent, Chart, Panel, diagonal, grouped
from polyphony.report.style import Looks, assign, looks_of
from polyphony.report.tables import DASH, Numbers, PageTable, by
from polyphony.runs.rows import GradientSnr, JacobianCosine, columns
from polyphony.runs.run import Run

Cosines = Mapping[str, Tensor]  # by method, all seeds and members together
_TITLE = "Jacobians of members and teachers"
_SNR_TITLE = "Signal-to-noise ratio of gradients"
_WORDS = {"train": "training images", "valid": "validation images", "test": "test images"}
_POINTS = 150  # most points of a curve


def jacobian_matching(run: Run) -> list[Chart | PageTable | Absent]:
    """Cosines between the Jacobians of teacher j and member j: their ROC curves, distributions and table."""
    rows = [row for row in run.table(JacobianCosine) if row.model in run.methods]
    if not rows:
        return [Absent(_TITLE, "run 'polyphony analyse RUN jacobians' (minutes).")]
    references = scratch_references(run, list(by(rows, "model")))
    if not references:
        return [Absent(_TITLE, "the recipe has no student without teachers to compare with.")]
    splits = {
        split: {
            method: torch.tensor([row.cosine for row in method_rows], dtype=torch.float64)
            for method, method_rows in by(split_rows, "model").items()
        }
        for split, split_rows in by(rows, "split").items()
    }
    names = list(dict.fromkeys(references.values()))
    same_form = "" if len(names) == 1 else ", of the same form if there is one"
    reading = (
        "A student that copies its teacher's function also reacts to its input as the teacher does: the"
        " cosine between their Jacobians is high. The ROC shows how well this cosine separates a distilled"
        f" student from one without teachers ({', '.join(names)}{same_form}). Closer to the upper left is"
        " better."
    )
    caption = (
        "COS: the cosine between the Jacobians of teacher j and member j, mean over examples, members and"
        f" seeds. AUROC: the area under the ROC against {' or '.join(names)}{same_form}."
    )
    table = PageTable.from_rows("jacobians", caption, _table_rows(splits, references))
    return [_chart(splits, references, looks_of(run), reading), table]


def scratch_references(run: Run, methods: Sequence[str]) -> dict[str, str]:
    """For each method the student without teachers to compare with: that of its form, or else the first."""
    scratch = [method for method in run.methods_with(None) if method in methods]
    if not scratch:
        return {}
    form = {method: run.recipe.form_table(method).label for method in methods}
    by_form = {form[method]: method for method in reversed(scratch)}
    return {m: m if m in scratch else by_form.get(form[m], scratch[0]) for m in methods}


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


def _chart(splits: Mapping[str, Cosines], references: Mapping[str, str], look: Looks, reading: str) -> Chart:
    """For each split: panels of ROC curves against students from scratch, and panels of distributions."""
    rocs: list[Panel] = []
    densities: list[Panel] = []
    rows = []
    for split, cosines in splits.items():
        words = _WORDS.get(split, split)
        curves = {m: roc(cosines[references[m]], cosines[m]) for m in cosines if m != references[m]}
        draw = partial(_roc, curves=curves, look=look)
        rocs += grouped(f"ROC, {words}", list(curves), look, draw, 1.15)
        densities += _densities(f"cosines, {words}", cosines, look)
        for method, (x, y) in curves.items():
            rows += [(split, method, *point) for point in zip(x.tolist(), y.tolist(), strict=True)]
    numbers = Numbers(["split", "model", "false_positive_rate", "true_positive_rate"], rows)
    legend = [look[method] for method in look if any(method in cosines for cosines in splits.values())]
    return Chart("jacobians", _TITLE, reading, [*rocs, *densities], numbers, legend)


def _table_rows(splits: Mapping[str, Cosines], references: Mapping[str, str]) -> list[dict[str, str]]:
    """COS and AUROC of every method on every split."""
    rows = []
    for method, scratch in references.items():
        row = {"Method": method}
        for split, cosines in splits.items():
            mean = auroc = DASH
            if method in cosines:
                mean = f"{float(cosines[method].mean()):.3f}"
            if method in cosines and method != scratch:
                auroc = f"{metrics.detect(cosines[scratch], cosines[method]).auroc:.3f}"
            row |= {f"COS, {split} ↑": mean, f"AUROC, {split} ↑": auroc}
        rows.append(row)
    return rows


def _roc(
    axes: Axes, *, models: Sequence[str], curves: Mapping[str, tuple[Tensor, Tensor]], look: Looks
) -> None:
    diagonal(axes)
    for method in models:
        x, y = curves[method]
        points = np.linspace(0, len(x) - 1, min(len(x), _POINTS)).round().astype(int)
        axes.plot(x[points].tolist(), y[points].tolist(), color=look[method].colour)
    axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="false positive rate", ylabel="true positive rate")


def _densities(title: str, cosines: Cosines, look: Looks) -> list[Panel]:
    everything, fewest = torch.cat(list(cosines.values())), min(len(values) for values in cosines.values())
    bins = min(40, max(8, round(2 * fewest ** (1 / 3))))
    edges = np.linspace(float(everything.min()), float(everything.max()), bins + 1)
    heights = {m: np.histogram(values.numpy(), edges, density=True)[0] for m, values in cosines.items()}

    def draw(axes: Axes, models: Sequence[str]) -> None:
        for method in models:
            axes.stairs(heights[method], edges, color=look[method].colour, linewidth=1.6)
        top = 1.05 * max(float(height.max()) for height in heights.values())
        axes.set(xlabel="cosine of Jacobians", ylabel="density", ylim=(0, top))
        axes.grid(visible=False, axis="x")

    return grouped(title, list(cosines), look, draw, 1.15)


def gradient_snr(run: Run) -> Chart | Absent:
    """Signal-to-noise ratio of the Jacobian-matching gradient against the step size."""
    rows = run.table(GradientSnr)
    if not rows:
        return Absent(_SNR_TITLE, "run 'polyphony analyse RUN snr' (minutes).")
    lines = by(rows, "perturbation")
    look = assign([(kind, kind) for kind in lines])

    def draw(axes: Axes) -> None:
        for kind, line in lines.items():
            x, y = zip(*sorted((row.step_size, row.snr) for row in line), strict=True)
            axes.plot([255 * step for step in x], y, **look[kind].mark, markersize=5)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set(xlabel="step size (in 1/255, RMS per pixel)", ylabel="signal-to-noise ratio", ylim=(0, None))

    numbers = Numbers(columns(GradientSnr), [astuple(row) for row in rows])
    reading = (
        "The ratio belongs to the part of the gradient that matches Jacobians: its mean over random"
        " perturbations divided by its spread. Higher is better: fewer training steps are lost to noise."
    )
    legend = [look[kind] for kind in lines]
    return Chart("snr", _SNR_TITLE, reading, [Panel("", draw, 1.3)], numbers, legend)
