"""The pictures of docs/trust.md: python tools/trust_pictures.py RUN, written to docs/images/trust-*.svg.

First run `polyphony evaluate RUN --ood NAME`. The last picture needs a run with unlabelled images.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from polyphony.metrics import Predictions
from polyphony.metrics.calibration import confidence, reliability
from polyphony.metrics.detection import detect
from polyphony.metrics.quality import is_correct
from polyphony.report.chart import Chart, Margins, Panel, diagonal, write
from polyphony.report.figures.quality import risk_coverage
from polyphony.report.style import MUTED, TEXT, looks_of
from polyphony.report.tables import Numbers
from polyphony.report.verdict import best_on_validation
from polyphony.runs.predictions import UNKNOWN
from polyphony.runs.rows import SetScore, UnknownScore, UnlabelledKld
from polyphony.runs.run import Run
from polyphony.runs.scores import BEST_TEACHER, TEACHERS

IMAGES = Path(__file__).parent.parent / "docs" / "images"


def main(folder: str) -> None:
    """Write all pictures."""
    run = Run.open(Path(folder))
    save("risk-coverage", risk_coverage(run, [TEACHERS, BEST_TEACHER, best_on_validation(run)]))
    save("sets", chart(sets(run)))
    save("calibration", chart(calibration(run)))
    save("unknown", chart(unknown(run)))
    save("unlabelled", chart(unlabelled(run)))


def save(name: str, figure: Chart) -> None:
    """Write one picture."""
    path = IMAGES / f"trust-{name}.svg"
    path.write_bytes(figure.files()[f"{figure.name}.svg"])


def chart(panels: Sequence[Panel]) -> Chart:
    """Panels side by side."""
    return Chart("trust", "", "", panels, Numbers([], []))


def first_seed(run: Run, model: str, split: str) -> tuple[Predictions, float]:
    """The predictions of a model's first seed, and its temperature."""
    seed, predictions = next(iter(run.ensemble(model, split).items()))
    return predictions, run.temperatures[model, seed]


def sets(run: Run) -> list[Panel]:
    """Sizes of the prediction sets, and their coverage by class; means over seeds."""
    rows = [row for row in run.table(SetScore) if row.score == "lac"]
    student = best_on_validation(run)

    def sizes(axes: Axes) -> None:
        models = run.models[::-1]
        for place, wanted in enumerate((0.95, 0.9)):
            means = [
                fmean(row.size for row in rows if (row.model, row.wanted, row.label) == (model, wanted, None))
                for model in models
            ]
            heights = [k + 0.4 * place for k in range(len(models))]
            colours = [looks_of(run)[model].colour for model in models]
            axes.barh(heights, means, 0.36, color=colours, alpha=0.55 + 0.45 * place)
            for size, height in zip(means, heights, strict=True):
                axes.text(size + 0.01, height, f"{size:.2f} at {wanted:.0%}", va="center", fontsize=8)
        axes.set_yticks([k + 0.2 for k in range(len(models))], models)
        axes.set(xlabel="mean number of classes in a set", xlim=(1, 1.6))
        axes.grid(visible=False, axis="y")

    def coverage(axes: Axes) -> None:
        by_class = [
            row for row in rows if (row.model, row.wanted) == (student, 0.9) and row.label is not None
        ]
        labels = list(dict.fromkeys(str(row.label) for row in by_class))[::-1]
        means = [fmean(row.coverage for row in by_class if row.label == label) for label in labels]
        axes.barh(labels, means, color=looks_of(run)[student].colour)
        axes.axvline(0.9, color=TEXT.light, linewidth=1.2)
        axes.set(xlim=(0.6, 1.01), xlabel="coverage of the 90 % sets by class")
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(visible=False, axis="y")

    titles = ("Smaller sets are better", f"{student}: 90 % is an average")
    draws: tuple[Callable[[Axes], None], ...] = (sizes, coverage)
    margins = Margins(left=104, bottom=48)
    return [Panel(title, draw, margins=margins) for title, draw in zip(titles, draws, strict=True)]


def calibration(run: Run) -> list[Panel]:
    """Reliability in bins of equal width and of equal counts."""
    student = best_on_validation(run)
    predictions, temperature = first_seed(run, student, "test")
    log_probs = predictions.log_probs(temperature)
    confidences, correct = confidence(log_probs), is_correct(log_probs, predictions.labels)
    colour = looks_of(run)[student].colour

    def points(axes: Axes, x: torch.Tensor, y: torch.Tensor, count: torch.Tensor) -> None:
        diagonal(axes)
        axes.scatter(x, y, s=(8 + 300 * count / count.sum()).tolist(), color=colour, alpha=0.8, zorder=3)
        axes.set(xlim=(0, 1.03), ylim=(0, 1.03), xlabel="confidence", ylabel="accuracy")

    def width(axes: Axes) -> None:
        bins = reliability(log_probs, predictions.labels)
        points(axes, bins.confidence, bins.accuracy, bins.count)

    def mass(axes: Axes) -> None:
        order = confidences.argsort()
        parts = [(confidences[rows], correct[rows]) for rows in order.tensor_split(15)]
        means = torch.tensor([[float(a.mean()), float(b.mean()), len(a)] for a, b in parts]).T
        points(axes, *means)

    return [
        Panel("ECE: bins of equal width", width, 1.15),
        Panel("Adaptive ECE: as many images in each", mass, 1.15),
    ]


def unknown(run: Run) -> list[Panel]:
    """The best score of the best teacher and of the student, on test images and on unknown ones."""
    (name,) = {row.unknown for row in run.table(UnknownScore)}
    words = {
        "doubt": "1 − confidence",
        "energy": "energy of the mean logits",
        "max_logit": "−largest mean logit",
    }

    def histogram(axes: Axes, model: str, score: str) -> None:
        both = [first_seed(run, model, split)[0].alarms()[score] for split in ("test", f"{UNKNOWN}{name}")]
        edges = torch.linspace(float(torch.cat(both).min()), float(torch.cat(both).max()), 31)
        for side, colour in zip(both, (MUTED.light, looks_of(run)[model].colour), strict=True):
            counts = torch.histogram(side.double(), edges.double()).hist / len(side)
            axes.stairs(counts.numpy(), edges.numpy(), fill=True, color=colour, alpha=0.5, linewidth=0)
        write(axes, (0.98, 0.98), f"AUROC {detect(*both).auroc:.3f}", color=TEXT.light, weight="bold")
        axes.set(
            xlabel=words.get(score, score), ylabel="share of images", ylim=(0, 1.15 * axes.get_ylim()[1])
        )
        axes.grid(visible=False, axis="x")

    best = {row.model: row.score for row in run.table(UnknownScore) if row.best}
    return [
        Panel(f"{model}: test images (grey), {name}", partial(histogram, model=model, score=best[model]), 1.2)
        for model in (BEST_TEACHER, best_on_validation(run))
    ]


def unlabelled(run: Run) -> list[Panel]:
    """How much the teachers disagree on four kinds of images."""
    (row,) = run.table(UnlabelledKld)
    (method, *_) = run.methods_with("ods")
    klds = {
        "training images": run.pooled(TEACHERS, "train").mean_kld(),
        "moved by ODS": run.pooled(TEACHERS, f"train+{method}").mean_kld(),
        "unlabelled images": row.kld,
        "validation images": row.valid_kld,
    }

    def bars(axes: Axes) -> None:
        names = list(klds)[::-1]
        axes.barh(names, [klds[name] for name in names], color=looks_of(run)[TEACHERS].colour)
        axes.set(xlabel="mean-KLD of the teachers (nats)")
        axes.grid(visible=False, axis="y")

    return [Panel("Where do the teachers disagree?", bars, 1.9, Margins(left=122))]


if __name__ == "__main__":
    main(sys.argv[1])
