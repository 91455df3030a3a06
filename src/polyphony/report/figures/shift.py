"""Inputs unlike those trained on: entropy on unknown classes, scores under corruption."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from polyphony import metrics
from polyphony.report.chart import SMALL, Absent, Chart, Panel, grouped
from polyphony.report.run import Run
from polyphony.report.style import MUTED, TEXT, Look
from polyphony.report.tables import Numbers, slug
from polyphony.rows import CorruptedScore
from polyphony.scores import TEACHERS
from polyphony.store import UNKNOWN

BINS = 30
_CORRUPTED = "What corruption does"
Scores = dict[str, dict[tuple[str, int], float]]  # model → (corruption, severity) → mean over seeds


@dataclass(frozen=True)
class Entropies:
    """A model's predictive entropies on known and unknown examples, in nats. [n], [u]"""

    known: Tensor
    unknown: Tensor


def entropy_histograms(run: Run) -> list[Chart | Absent]:
    """For each set of unknown classes: the entropy of predictions on it and on test images."""
    predicted = [split for model, _, split in run.predictions if model == TEACHERS]
    names = [split.removeprefix(UNKNOWN) for split in predicted if split.startswith(UNKNOWN)]
    if not names:
        why = "no unknown classes were predicted; 'polyphony evaluate RUN --ood NAME' does it."
        return [Absent("Does it know what it does not know?", why)]
    return [_entropies_on(run, name) for name in names]


def _entropies_on(run: Run, name: str) -> Chart:
    found = {}
    for model in run.models:
        known, unknown = run.pooled(model, "test"), run.pooled(model, f"{UNKNOWN}{name}")
        if known is not None and unknown is not None:
            sides = (metrics.entropy(p.log_probs()) for p in (known, unknown))
            found[model] = Entropies(*sides)
    classes = next(iter(run.predictions.values())).logits.shape[-1]
    return entropy_chart(name, found, math.log(classes), run.look)


def entropy_chart(name: str, found: Mapping[str, Entropies], top: float, look: Mapping[str, Look]) -> Chart:
    """A panel for each model; `top` is the entropy of a uniform prediction, ln K."""
    edges = np.linspace(0.0, top, BINS + 1)
    shares = {model: (_shares(e.known, edges), _shares(e.unknown, edges)) for model, e in found.items()}
    height = max(float(side.max()) for sides in shares.values() for side in sides)
    panels = tuple(
        Panel(
            model,
            partial(_histograms, entropies=e, sides=shares[model], edges=edges, top=height, look=look[model]),
            1.2,
        )
        for model, e in found.items()
    )
    rows = [
        (model, float(low), float(high), float(known), float(unknown))
        for model, (known_side, unknown_side) in shares.items()
        for low, high, known, unknown in zip(edges[:-1], edges[1:], known_side, unknown_side, strict=True)
    ]
    reading = (
        f"Entropy of the ensemble's prediction (of the mean, not the mean of entropies): grey on test images,"
        f" in colour on {name}, whose classes were never seen. Good is grey to the left and colour to the"
        " right; AUROC is the chance that an unknown is less certain than a known image."
    )
    header = ("model", "entropy_above", "entropy_to", "share_known", "share_unknown")
    title = f"Does it know what it does not know? {name}"
    return Chart(f"entropy-{slug(name)}", title, reading, panels, Numbers(header, tuple(rows)), width=SMALL)


def _shares(entropies: Tensor, edges: np.ndarray) -> np.ndarray:
    counts, _ = np.histogram(entropies.clamp(0.0, float(edges[-1])).numpy(), edges)
    return counts / len(entropies)


def _histograms(
    axes: Axes,
    *,
    entropies: Entropies,
    sides: tuple[np.ndarray, np.ndarray],
    edges: np.ndarray,
    top: float,
    look: Look,
) -> None:
    axes.stairs(sides[0], edges, fill=True, color=MUTED.light, alpha=0.45, linewidth=0)
    axes.stairs(sides[1], edges, fill=True, color=look.colour, alpha=0.55, linewidth=0)
    axes.stairs(sides[1], edges, color=look.colour, linewidth=1.2)
    auroc = metrics.detect(entropies.known, entropies.unknown).auroc
    lines = [
        (f"AUROC {auroc:.3f}", TEXT.light, "bold"),
        (f"mean known {float(entropies.known.mean()):.3f}", MUTED.light, "normal"),
        (f"mean unknown {float(entropies.unknown.mean()):.3f}", look.colour, "normal"),
    ]
    for place, (text, colour, weight) in enumerate(lines):
        at = 0.98 - 0.12 * place
        axes.text(0.98, at, text, transform=axes.transAxes, ha="right", va="top", color=colour, weight=weight)
    axes.set(xlim=(0, edges[-1]), ylim=(0, 1.55 * top), xlabel="entropy (nats)", ylabel="share of examples")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.grid(visible=False, axis="x")


def corruption_boxes(run: Run) -> list[Chart | Absent]:
    """For each corrupted data set: NLL and ECE over corruption types, at each severity."""
    rows = run.table(CorruptedScore)
    if not rows:
        why = "no corrupted images were predicted; 'polyphony evaluate RUN --corrupted NAME' does it."
        return [Absent(_CORRUPTED, why)]
    names = dict.fromkeys(row.data for row in rows)
    return [corruption_chart(name, [row for row in rows if row.data == name], run.look) for name in names]


def corruption_chart(name: str, rows: Sequence[CorruptedScore], look: Mapping[str, Look]) -> Chart:
    """Panels for NLL and ECE; rows as in corrupted.csv, of one data set."""
    scores = {column: by_corruption(rows, column) for column in ("nll", "ece")}
    models = [model for model in look if model in scores["nll"]]
    panels = tuple(panel for column, each in scores.items() for panel in _panels(column, each, models, look))
    numbers = [
        (model, kind, severity, nll, scores["ece"][model][kind, severity])
        for model in models
        for (kind, severity), nll in sorted(scores["nll"][model].items())
    ]
    types = len({kind for kind, _ in scores["nll"][models[0]]})
    reading = (
        f"Each box is spread over {types} kinds of corruption at one severity (line: median, box: quartiles,"
        " whiskers: all), seeds averaged; lower is better, and what matters is how slowly it rises."
    )
    header = ("model", "corruption", "severity", "nll", "ece")
    legend = tuple(look[model] for model in models)
    title = f"{_CORRUPTED}: {name}"
    return Chart(f"corrupted-{slug(name)}", title, reading, panels, Numbers(header, tuple(numbers)), legend)


def _panels(column: str, scores: Scores, models: Sequence[str], look: Mapping[str, Look]) -> list[Panel]:
    top = 1.05 * max(value for each in scores.values() for value in each.values())

    def draw(some: Sequence[str]) -> Callable[[Axes], None]:
        return partial(_boxes, scores=scores, models=some, look=look, label=column.upper(), top=top)

    return grouped(column.upper(), models, look, draw, 1.25)


def by_corruption(rows: Sequence[CorruptedScore], column: str) -> Scores:
    """Means over seeds of a column, by model and then (corruption, severity)."""
    values: dict[str, dict[tuple[str, int], list[float]]] = {}
    for row in rows:
        at = (row.corruption, row.severity)
        values.setdefault(row.model, {}).setdefault(at, []).append(getattr(row, column))
    return {
        model: {at: sum(seeds) / len(seeds) for at, seeds in each.items()} for model, each in values.items()
    }


def _boxes(
    axes: Axes, *, scores: Scores, models: Sequence[str], look: Mapping[str, Look], label: str, top: float
) -> None:
    severities = sorted({severity for _, severity in scores[models[0]]})
    step = 0.82 / len(models)
    for place, model in enumerate(models):
        at = [number + (place - (len(models) - 1) / 2) * step for number in range(len(severities))]
        each = [[v for (_, s), v in scores[model].items() if s == severity] for severity in severities]
        line = {"color": look[model].colour, "linewidth": 1.1}
        axes.boxplot(
            each, positions=at, widths=step * 0.8, whis=(0, 100), patch_artist=True, manage_ticks=False,
            medianprops={"color": look[model].colour, "linewidth": 2.0}, whiskerprops=line, showcaps=False,
            boxprops={"facecolor": look[model].colour, "edgecolor": look[model].colour, "alpha": 0.35},
        )  # fmt: skip
    axes.set_xticks(range(len(severities)), [str(severity) for severity in severities])
    axes.set(xlabel="severity", ylabel=label, ylim=(0, top))
    axes.grid(visible=False, axis="x")
