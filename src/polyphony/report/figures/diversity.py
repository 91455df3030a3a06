"""How much members disagree, by confidence and by temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from polyphony.metrics import DirichletPredictions, DiversityBins, Predictions
from polyphony.report.chart import SMALL, Absent, Chart, Panel, write
from polyphony.report.style import MUTED, TEXT, Look, looks_of
from polyphony.report.tables import Numbers, binned
from polyphony.report.verdict import visible_share
from polyphony.runs.run import Run
from polyphony.runs.scores import TEACHERS

TEMPERATURES = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Group:
    """Predictions on some images, drawn in one colour."""

    label: str
    colour: str
    predictions: Predictions


def teacher_diversity(run: Run) -> Chart | Absent:
    """The teachers on clean training images, on perturbed training images, and on test images."""
    title = "Diversity of the teachers"
    groups, look = _teachers_on(run, "train", "training images"), looks_of(run)
    for names, perturbed in run.perturbed_training:
        groups.append(Group(f"training, as in {', '.join(names)}", look[names[0]].colour, perturbed))
    groups += _teachers_on(run, "test", "test images")
    if not groups:
        return Absent(title, "the teachers' predictions are not in the run folder.")
    reading = (
        "Images are grouped by the confidence of their least confident member. A bar’s height is how much the"
        " members disagree there (mean pairwise KL); a darker bar holds more images. Perturbed training"
        " images should reveal as much disagreement as test images do."
    )
    return diversity_chart("diversity-teachers", title, reading, groups)


def student_diversity(run: Run) -> Chart | Absent:
    """Each student that has members, or predicts a distribution, on test images, all seeds together."""
    title, look = "Diversity of the students", looks_of(run)
    pooled = {method: run.pooled(method, "test") for method in run.methods}
    saved = {method: predictions for method, predictions in pooled.items() if predictions is not None}
    groups = [Group(method, look[method].colour, saved[method]) for method in saved if saved[method].varies]
    single = [method for method in saved if not saved[method].varies]
    if not groups and single:
        return Absent(title, "every student is one network, without members.")
    if not groups:
        return Absent(title, "the students' test predictions are not in the run folder.")
    reading = "The same bars for every student on test images, all seeds together."
    if any(isinstance(group.predictions, DirichletPredictions) for group in groups):
        reading += (
            " A network that predicts a distribution is binned by the confidence of its mean prediction; its"
            " KL is between two draws from that distribution."
        )
    if single:
        reading += f" Not drawn, because they are one network without members: {', '.join(single)}."
    return diversity_chart("diversity-students", title, reading, groups)


def external_diversity(run: Run) -> Chart | Absent:
    """The teachers on training images that a network outside the ensemble perturbed."""
    title = "Does the perturbation transfer?"
    label, ods = "training, ODS of an extra teacher", run.methods_with("ods")
    external = _teachers_on(run, "train+external", label, ods)
    if not external:
        why = "needs an extra teacher (teachers.extra): run 'polyphony analyse RUN transfer'."
        return Absent(title, why)
    groups = _teachers_on(run, "train", "training images")
    for method in run.methods_with("gaussian")[:1]:
        groups += _teachers_on(run, f"train+{method}", f"training, as in {method}", [method])
    reading = (
        "In the last panel a network outside the ensemble chose the ODS directions. If its bars are higher"
        " than those of the other panels, such directions make the teachers disagree too."
    )
    return diversity_chart("diversity-external", title, reading, [*groups, *external])


def _teachers_on(run: Run, split: str, label: str, methods: Sequence[str] = ()) -> list[Group]:
    """The teachers on a split, in the first method's colour (default: the text's); empty if not predicted."""
    predictions = run.pooled(TEACHERS, split)
    colour = looks_of(run)[methods[0]].colour if methods else TEXT.light
    return [] if predictions is None else [Group(label, colour, predictions)]


def diversity_chart(name: str, title: str, reading: str, groups: Sequence[Group]) -> Chart:
    """A panel for each group, all with the same height of the axis."""
    group_bins = [group.predictions.diversity_bins() for group in groups]
    top = max(float(bins.kld.nan_to_num(0.0, posinf=0.0).max()) for bins in group_bins)
    panels, rows = [], []
    for group, bins in zip(groups, group_bins, strict=True):
        mean = group.predictions.mean_kld()
        draw = partial(_bars, bins=bins, mean=mean, colour=group.colour, top=top)
        panels.append(Panel(group.label, draw, 1.25))
        rows += [(group.label, *row, mean) for row in binned(bins.edges, bins.count.int(), bins.kld)]
    header = ["examples", "confidence_above", "confidence_to", "count", "kld", "mean_kld"]
    return Chart(name, title, reading, panels, Numbers(header, rows), width=SMALL)


def _bars(axes: Axes, *, bins: DiversityBins, mean: float, colour: str, top: float) -> None:
    share = bins.count / bins.count.sum()
    heights = bins.kld.nan_to_num(0.0, posinf=top)
    width = float(bins.edges[1] - bins.edges[0])
    alphas = 0.3 + 0.7 * torch.sqrt(share / share.max())
    for low, height, alpha in zip(bins.edges[:-1].tolist(), heights.tolist(), alphas.tolist(), strict=True):
        if height > 0:
            axes.bar(low + width / 2, height, width * 0.86, color=colour, alpha=alpha, linewidth=0)
    axes.set(xlim=(0, 1), ylim=(0, 1.08 * top or 1.0), xlabel="least confidence", ylabel="KL (nats)")
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.grid(visible=False, axis="x")
    write(axes, (0.97, 0.97), f"{mean:.3f}", size=17, weight="bold")
    write(axes, (0.97, 0.81), "mean-KLD", size=9.5, color=MUTED.light)


def disagreement_by_temperature(run: Run) -> Chart | Absent:
    """The teachers' mean-KLD on training images, clean and perturbed, as a share of that on validation."""
    title = "How much disagreement training images reveal"
    train, valid = (run.pooled(TEACHERS, split) for split in ("train", "valid"))
    if train is None or valid is None or not valid.mean_kld():
        return Absent(title, "the teachers' predictions are not in the run folder, or do not differ.")
    lines = {Look("training images", MUTED, "o"): train}
    for names, perturbed in run.perturbed_training:
        first = looks_of(run)[names[0]]
        lines[Look(f"perturbed as in {', '.join(names)}", first.ink, first.marker)] = perturbed
    shares = {look: [visible_share(images, valid, t) for t in TEMPERATURES] for look, images in lines.items()}

    def draw(axes: Axes) -> None:
        for look, values in shares.items():
            axes.plot(TEMPERATURES, values, **look.mark, markersize=5.5)
        axes.axhline(1, color=MUTED.light, linewidth=1.0, linestyle=":")
        axes.set_xscale("log", base=2)
        axes.set_xticks(TEMPERATURES, [f"{temperature:g}" for temperature in TEMPERATURES])
        axes.set(xlabel="temperature τ", ylabel="share of validation images", ylim=(0, None))

    rows = [
        (look.label, temperature, share)
        for look, values in shares.items()
        for temperature, share in zip(TEMPERATURES, values, strict=True)
    ]
    numbers = Numbers(["images", "temperature", "share"], rows)
    reading = (
        "The teachers’ mean-KLD on training images as a share of that on validation images, at each"
        " temperature. Near 0 a student sees little more than labels; at 1 training images reveal as much as"
        " new images. A higher temperature and a perturbation can both raise the share."
    )
    return Chart("shown", title, reading, [Panel("", draw, 1.5)], numbers, list(shares))
