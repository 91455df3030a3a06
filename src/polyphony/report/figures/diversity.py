"""How much members differ, by their confidence and by the temperature."""

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
from polyphony.report.verdict import share_shown
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
    """Teachers on training images, as they are and perturbed, and on test images."""
    title = "Diversity of the teachers"
    groups, look = _teachers_on(run, "train", "training images"), looks_of(run)
    for names, seen in run.moved:
        groups.append(Group(f"training, as in {', '.join(names)}", look[names[0]].colour, seen))
    groups += _teachers_on(run, "test", "test images")
    if not groups:
        return Absent(title, "the teachers' predictions are not in the run folder.")
    reading = (
        "Each bar holds the images whose least confident member has this confidence. Its height is how far"
        " apart the members are there (mean pairwise KL); a darker bar holds more images. Perturbed training"
        " images should reveal as much disagreement as test images do."
    )
    return diversity_chart("diversity-teachers", title, reading, groups)


def student_diversity(run: Run) -> Chart | Absent:
    """Each student that has members, or a distribution, on test images, all seeds together."""
    title, look = "Diversity of the students", looks_of(run)
    pooled = {method: run.pooled(method, "test") for method in run.methods}
    tested = {method: each for method, each in pooled.items() if each is not None}
    groups = [Group(method, look[method].colour, each) for method, each in tested.items() if each.varies]
    single = [method for method, each in tested.items() if not each.varies]
    if not groups and single:
        return Absent(title, "every student is one network, without members.")
    if not groups:
        return Absent(title, "the students' test predictions are not in the run folder.")
    reading = "The same for every student on test images, all seeds together."
    if any(isinstance(group.predictions, DirichletPredictions) for group in groups):
        reading += (
            " A network that predicts a distribution is binned by the confidence of its mean prediction; its"
            " divergence is that of two draws."
        )
    if single:
        reading += f" Not drawn, since they are one network each: {', '.join(single)}."
    return diversity_chart("diversity-students", title, reading, groups)


def external_diversity(run: Run) -> Chart | Absent:
    """Teachers on training images that were perturbed by a network outside the ensemble."""
    title = "Does the perturbation transfer?"
    words, ods = "training, ODS of an extra teacher", run.methods_with("ods")
    external = _teachers_on(run, "train+external", words, ods)
    if not external:
        why = "needs an extra teacher (teachers.extra): run 'polyphony analyse RUN transfer'."
        return Absent(title, why)
    groups = _teachers_on(run, "train", "training images")
    for method in run.methods_with("gaussian")[:1]:
        groups += _teachers_on(run, f"train+{method}", f"training, as in {method}", [method])
    reading = (
        "In the last panel a network outside the ensemble chose the ODS directions. If it is higher than the"
        " others, such directions make the teachers disagree too."
    )
    return diversity_chart("diversity-external", title, reading, [*groups, *external])


def _teachers_on(run: Run, split: str, words: str, methods: Sequence[str] = ()) -> list[Group]:
    """The teachers of the ensemble on a split, if they predicted on it, in the first method's colour."""
    predictions = run.pooled(TEACHERS, split)
    colour = looks_of(run)[methods[0]].colour if methods else TEXT.light
    return [] if predictions is None else [Group(words, colour, predictions)]


def diversity_chart(name: str, title: str, reading: str, groups: Sequence[Group]) -> Chart:
    """One panel a group, all to the same height."""
    plots = [group.predictions.diversity_bins() for group in groups]
    top = max(float(plot.kld.nan_to_num(0.0, posinf=0.0).max()) for plot in plots)
    panels, rows = [], []
    for group, plot in zip(groups, plots, strict=True):
        mean = group.predictions.mean_kld()
        draw = partial(_bars, plot=plot, mean=mean, colour=group.colour, top=top)
        panels.append(Panel(group.label, draw, 1.25))
        rows += [(group.label, *each, mean) for each in binned(plot.edges, plot.count.int(), plot.kld)]
    header = ["examples", "confidence_above", "confidence_to", "count", "kld", "mean_kld"]
    return Chart(name, title, reading, panels, Numbers(header, rows), width=SMALL)


def _bars(axes: Axes, *, plot: DiversityBins, mean: float, colour: str, top: float) -> None:
    share = plot.count / plot.count.sum()
    heights = plot.kld.nan_to_num(0.0, posinf=top)
    width = float(plot.edges[1] - plot.edges[0])
    alphas = 0.3 + 0.7 * torch.sqrt(share / share.max())
    for low, height, alpha in zip(plot.edges[:-1].tolist(), heights.tolist(), alphas.tolist(), strict=True):
        if height > 0:
            axes.bar(low + width / 2, height, width * 0.86, color=colour, alpha=alpha, linewidth=0)
    axes.set(xlim=(0, 1), ylim=(0, 1.08 * top or 1.0), xlabel="least confidence", ylabel="KL (nats)")
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.grid(visible=False, axis="x")
    write(axes, (0.97, 0.97), f"{mean:.3f}", size=17, weight="bold")
    write(axes, (0.97, 0.81), "mean-KLD", size=9.5, color=MUTED.light)


def shown_by_temperature(run: Run) -> Chart | Absent:
    """The teachers' mean-KLD on training images, clean and perturbed, as a share of validation images."""
    title = "How much training images reveal"
    clean, held = (run.pooled(TEACHERS, split) for split in ("train", "valid"))
    if clean is None or held is None or not held.mean_kld():
        return Absent(title, "the teachers' predictions are not in the run folder, or do not differ.")
    seen = {Look("training images", MUTED, "o"): clean}
    for names, each in run.moved:
        own = looks_of(run)[names[0]]
        seen[Look(f"perturbed as in {', '.join(names)}", own.ink, own.marker)] = each
    shares = {look: [share_shown(each, held, t) for t in TEMPERATURES] for look, each in seen.items()}

    def draw(axes: Axes) -> None:
        for look, line in shares.items():
            axes.plot(TEMPERATURES, line, **look.mark, markersize=5.5)
        axes.axhline(1, color=MUTED.light, linewidth=1.0, linestyle=":")
        axes.set_xscale("log", base=2)
        axes.set_xticks(TEMPERATURES, [f"{temperature:g}" for temperature in TEMPERATURES])
        axes.set(xlabel="temperature τ", ylabel="share of validation images", ylim=(0, None))

    rows = [(look.label, *at) for look, line in shares.items() for at in zip(TEMPERATURES, line, strict=True)]
    numbers = Numbers(["images", "temperature", "share"], rows)
    reading = (
        "The teachers’ mean-KLD on training images as a share of that on validation images, at each"
        " temperature. Near 0 a student sees little more than labels; at 1 training images reveal as much as"
        " new ones. A higher temperature and a perturbation can both raise it."
    )
    return Chart("shown", title, reading, [Panel("", draw, 1.5)], numbers, list(shares))
