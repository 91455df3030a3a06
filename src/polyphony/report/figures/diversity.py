"""Diversity plots: how much members differ, for examples they are more or less sure of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FormatStrFormatter, MaxNLocator
from torch import Tensor

from polyphony.metrics import DirichletPredictions, DiversityBins, Predictions
from polyphony.report.chart import SMALL, Absent, Chart, Panel
from polyphony.report.run import Run
from polyphony.report.style import MUTED, TEXT
from polyphony.report.tables import Numbers
from polyphony.scores import TEACHERS

EXTERNAL = "train+external"
_READING = (
    "Each bar holds the examples whose least confident member has this confidence; its height is how far"
    " apart the members are there (mean pairwise KL), its shade how many examples that is."
)


@dataclass(frozen=True)
class Group:
    """What differs on some examples, in one colour."""

    label: str
    colour: str
    predictions: Predictions


def teacher_diversity(run: Run) -> Chart | Absent:
    """Teachers on training images, as they are and perturbed, and on test images."""
    splits = {f"train+{names[0]}": f"training, as in {', '.join(names)}" for names in seen_alike(run)}
    title = "Diversity of the teachers"
    groups = _teachers_on(run, {"train": "training images", **splits, "test": "test images"})
    if not groups:
        return Absent(title, "the teachers' predictions are not in the run folder.")
    return diversity_chart("diversity-teachers", title, f"{_READING} {_POINT}", groups)


_POINT = (
    "The point of the method: perturbed training images should show the students as much as test images do."
)


def seen_alike(run: Run) -> list[list[str]]:
    """The methods that perturb, together where the teachers predicted the same: they saw the same images."""
    groups: list[tuple[Tensor, list[str]]] = []
    for method in run.methods:
        saved = run.predictions.get((TEACHERS, None, f"train+{method}"))
        if saved is not None:
            same = [names for logits, names in groups if logits.equal(saved.logits)]
            same[0].append(method) if same else groups.append((saved.logits, [method]))
    return [names for _, names in groups]


def student_diversity(run: Run) -> Chart | Absent:
    """Each student that has members, or a distribution, on test images, all seeds together."""
    pooled = {method: run.pooled(method, "test") for method in run.methods}
    tested = {method: each for method, each in pooled.items() if each is not None}
    single = [method for method, each in tested.items() if not each.varies]
    groups = [Group(method, run.look[method].colour, each) for method, each in tested.items() if each.varies]
    title = "Diversity of the students"
    if not groups:
        if single:
            return Absent(title, "every student is one network, without members.")
        return Absent(title, "the students' test predictions are not in the run folder.")
    reading = (
        "The same for every student on test images, all seeds together: compare with the teachers on test."
    )
    if any(isinstance(group.predictions, DirichletPredictions) for group in groups):
        reading += (
            " Where one network predicts a distribution, bars are by its mean prediction's confidence, and"
            " the divergence is that of two draws."
        )
    if single:
        reading += f" Not shown, as one network each: {', '.join(single)}."
    return diversity_chart("diversity-students", title, reading, groups)


def external_diversity(run: Run) -> Chart | Absent:
    """Teachers on training images that a network outside the ensemble perturbed."""
    title = "Does the perturbation transfer?"
    if (TEACHERS, None, EXTERNAL) not in run.predictions:
        return Absent(
            title, "no training images were perturbed by an extra teacher; 'polyphony analyse' does it."
        )
    gaussian = {f"train+{m}": f"training, as in {m}" for m in run.methods_with("gaussian")[:1]}
    external = {EXTERNAL: "training, ODS of an extra teacher"}
    reading = (
        "ODS directions of a network outside the ensemble still pull its members apart, if the last panel is"
        " higher than the others."
    )
    groups = _teachers_on(run, {"train": "training images", **gaussian, **external})
    return diversity_chart("diversity-external", title, reading, groups)


def diversity_chart(name: str, title: str, reading: str, groups: Sequence[Group]) -> Chart:
    """One panel a group, all to the same height."""
    plots = [group.predictions.diversity_bins() for group in groups]
    means = [group.predictions.mean_kld() for group in groups]
    top = max(float(plot.kld.nan_to_num(0.0, posinf=0.0).max()) for plot in plots)
    panels = [
        Panel(group.label, partial(_bars, plot=plot, mean=mean, colour=group.colour, top=top), 1.25)
        for group, plot, mean in zip(groups, plots, means, strict=True)
    ]
    rows = [
        (group.label, float(low), float(high), int(count), float(kld), mean)
        for group, plot, mean in zip(groups, plots, means, strict=True)
        for low, high, count, kld in zip(plot.edges[:-1], plot.edges[1:], plot.count, plot.kld, strict=True)
    ]
    header = ("examples", "confidence_above", "confidence_to", "count", "kld", "mean_kld")
    return Chart(name, title, reading, tuple(panels), Numbers(header, tuple(rows)), width=SMALL)


def _teachers_on(run: Run, splits: Mapping[str, str]) -> list[Group]:
    """The ensemble's teachers on each split that was predicted, under the words given for it."""
    found = []
    for split, words in splits.items():
        predictions = run.predictions.get((TEACHERS, None, split))
        if predictions is not None:
            external = run.methods_with("ods")[:1] if split == EXTERNAL else []
            method = external[0] if external else split.removeprefix("train+")
            colour = run.look[method].colour if method in run.look else TEXT.light
            found.append(Group(words, colour, predictions.first(run.members)))
    return found


def _bars(axes: Axes, *, plot: DiversityBins, mean: float, colour: str, top: float) -> None:
    share = plot.count / plot.count.sum()
    heights = plot.kld.nan_to_num(0.0, posinf=top)
    width = float(plot.edges[1] - plot.edges[0])
    alphas = 0.3 + 0.7 * torch.sqrt(share / share.max())
    for low, height, alpha in zip(plot.edges[:-1].tolist(), heights.tolist(), alphas.tolist(), strict=True):
        if height > 0:
            axes.bar(low + width / 2, height, width * 0.86, color=colour, alpha=alpha, linewidth=0)
    axes.set(xlim=(0, 1), ylim=(0, 1.08 * top or 1.0), xlabel="least member's confidence", ylabel="KL (nats)")
    axes.xaxis.set_major_locator(FixedLocator([0, 0.5, 1]))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.grid(visible=False, axis="x")
    axes.text(
        0.97, 0.97, f"{mean:.3f}", transform=axes.transAxes, ha="right", va="top", size=17, weight="bold"
    )
    axes.text(
        0.97, 0.81, "mean-KLD", transform=axes.transAxes, ha="right", va="top", size=9.5, color=MUTED.light
    )
