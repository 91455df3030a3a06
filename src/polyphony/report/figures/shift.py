"""Images unlike the training images: entropy on unknown classes, scores under corruption."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from polyphony import metrics
from polyphony.report.chart import SMALL, Absent, Chart, Panel, grouped, write
from polyphony.report.style import MUTED, TEXT, Look, Looks, looks_of
from polyphony.report.tables import Numbers, Value, binned, by, slug
from polyphony.runs.predictions import UNKNOWN
from polyphony.runs.rows import CorruptedScore
from polyphony.runs.run import Run
from polyphony.runs.scores import TEACHERS

BINS = 30
_UNKNOWN = "Unknown classes"
_CORRUPTED = "Corrupted images"
Scores = dict[str, dict[tuple[str, int], float]]  # model → (corruption, severity) → mean over seeds


def entropy_histograms(run: Run) -> list[Chart | Absent]:
    """For each set of unknown classes: the entropy of predictions on it and on test images."""
    predicted = [split for model, _, split in run.predictions if model == TEACHERS]
    names = [split.removeprefix(UNKNOWN) for split in predicted if split.startswith(UNKNOWN)]
    if not names or "test" not in predicted:
        return [Absent(_UNKNOWN, "run 'polyphony evaluate RUN --ood NAME', for example svhn.")]
    return [_entropy_chart(run, name) for name in names]


def _entropy_chart(run: Run, name: str) -> Chart:
    """A panel for each model, up to the entropy of a uniform prediction, ln K."""
    classes = next(iter(run.predictions.values())).logits.shape[-1]
    edges = np.linspace(0.0, math.log(classes), BINS + 1)
    entropies = {model: sides for model in run.models if (sides := _entropies(run, model, name))}
    shares = {model: [_shares(side, edges) for side in sides] for model, sides in entropies.items()}
    top = max(float(side.max()) for both in shares.values() for side in both)
    panels: list[Panel] = []
    rows: list[Sequence[Value]] = []
    for model, sides in entropies.items():
        draw = partial(_histograms, entropies=sides, edges=edges, top=top, look=looks_of(run)[model])
        panels.append(Panel(model, partial(draw, shares=shares[model]), 1.2))
        rows += [(model, *row) for row in binned(edges, *shares[model])]
    reading = (
        f"Entropy of the mean prediction. Grey: test images. In colour: {name}, whose classes the models were"
        " not trained on. Good models have grey on the left and colour on the right. AUROC is the probability"
        " that an unknown image has a higher entropy than a test image."
    )
    numbers = Numbers(["model", "entropy_above", "entropy_to", "share_known", "share_unknown"], rows)
    return Chart(f"entropy-{slug(name)}", f"{_UNKNOWN}: {name}", reading, panels, numbers, width=SMALL)


def _entropies(run: Run, model: str, name: str) -> list[Tensor]:
    """Entropies on test images and on unknown images, in nats; empty if predictions on either are missing."""
    test, unknown = (run.pooled(model, split) for split in ("test", f"{UNKNOWN}{name}"))
    if test is None or unknown is None:
        return []
    return [metrics.entropy(predictions.log_probs()) for predictions in (test, unknown)]


def _shares(entropies: Tensor, edges: np.ndarray) -> np.ndarray:
    counts, _ = np.histogram(entropies.clamp(0.0, float(edges[-1])).numpy(), edges)
    return counts / len(entropies)


def _histograms(
    axes: Axes,
    *,
    entropies: Sequence[Tensor],
    shares: Sequence[np.ndarray],
    edges: np.ndarray,
    top: float,
    look: Look,
) -> None:
    axes.stairs(shares[0], edges, fill=True, color=MUTED.light, alpha=0.45, linewidth=0)
    axes.stairs(shares[1], edges, fill=True, color=look.colour, alpha=0.55, linewidth=0)
    axes.stairs(shares[1], edges, color=look.colour, linewidth=1.2)
    known, unknown = (float(side.mean()) for side in entropies)
    auroc = metrics.detect(*entropies).auroc
    write(axes, (0.98, 0.98), f"AUROC {auroc:.3f}", color=TEXT.light, weight="bold")
    write(axes, (0.98, 0.86), f"mean known {known:.3f}", color=MUTED.light)
    write(axes, (0.98, 0.74), f"mean unknown {unknown:.3f}", color=look.colour)
    axes.set(xlim=(0, edges[-1]), ylim=(0, 1.55 * top), xlabel="entropy (nats)", ylabel="share of examples")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.grid(visible=False, axis="x")


def corruption_boxes(run: Run) -> list[Chart | Absent]:
    """For each corrupted data set: boxes of NLL and ECE over all corruptions, at each severity."""
    sets = by(run.table(CorruptedScore), "data")
    if not sets:
        why = "run 'polyphony evaluate RUN --corrupted NAME', for example cifar10-c."
        return [Absent(_CORRUPTED, why)]
    return [_corruption_chart(name, rows, looks_of(run)) for name, rows in sets.items()]


def _corruption_chart(name: str, rows: Sequence[CorruptedScore], look: Looks) -> Chart:
    nll, ece = (by_corruption(rows, column) for column in ("nll", "ece"))
    models = [model for model in look if model in nll]
    panels: list[Panel] = []
    for label, scores in (("NLL", nll), ("ECE", ece)):
        draw = partial(_boxes, scores=scores, look=look, label=label)
        panels += grouped(label, models, look, draw, 1.25)
    lines = [(m, *at, nll[m][at], ece[m][at]) for m in models for at in sorted(nll[m])]
    numbers = Numbers(["model", "corruption", "severity", "nll", "ece"], lines)
    reading = (
        f"Each box holds the means over seeds of {len(by(rows, 'corruption'))} kinds of corruption at one"
        " severity. Line: median. Box: quartiles. Whiskers: lowest and highest. Lower is better."
    )
    title, legend = f"{_CORRUPTED}: {name}", [look[model] for model in models]
    return Chart(f"corrupted-{slug(name)}", title, reading, panels, numbers, legend)


def by_corruption(rows: Sequence[CorruptedScore], column: str) -> Scores:
    """Means over seeds of a column, by model and then (corruption, severity)."""
    means: Scores = {}
    for (model, corruption, severity), seeds in by(rows, "model", "corruption", "severity").items():
        mean = sum(getattr(row, column) for row in seeds) / len(seeds)
        means.setdefault(model, {})[corruption, severity] = mean
    return means


def _boxes(axes: Axes, *, models: Sequence[str], scores: Scores, look: Looks, label: str) -> None:
    severities = sorted({severity for _, severity in scores[models[0]]})
    step = 0.82 / len(models)
    for place, model in enumerate(models):
        positions = [number + (place - (len(models) - 1) / 2) * step for number in range(len(severities))]
        boxes = [[v for (_, s), v in scores[model].items() if s == severity] for severity in severities]
        colour = look[model].colour
        axes.boxplot(
            boxes, positions=positions, widths=step * 0.8, whis=(0, 100), patch_artist=True,
            manage_ticks=False, showcaps=False, medianprops={"color": colour, "linewidth": 2.0},
            whiskerprops={"color": colour, "linewidth": 1.1},
            boxprops={"facecolor": colour, "edgecolor": colour, "alpha": 0.35},
        )  # fmt: skip
    axes.set_xticks(range(len(severities)), [str(severity) for severity in severities])
    top = 1.05 * max(value for values in scores.values() for value in values.values())
    axes.set(xlabel="severity", ylabel=label, ylim=(0, top))
    axes.grid(visible=False, axis="x")
