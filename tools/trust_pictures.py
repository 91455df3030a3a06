"""The pictures of docs/trust.md: python tools/trust_pictures.py RUN, written to docs/images/trust-*.svg.

RUN needs `polyphony evaluate RUN --ood NAME`, and images without labels for the last picture.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from polyphony.metrics import Predictions
from polyphony.metrics.calibration import confidence, reliability
from polyphony.metrics.detection import detect, energy
from polyphony.metrics.quality import is_correct
from polyphony.report.chart import Chart, Margins, Panel, diagonal, write
from polyphony.report.figures.trust import risk_coverage
from polyphony.report.run import Run
from polyphony.report.style import MUTED, TEXT
from polyphony.report.tables import Numbers
from polyphony.runs.rows import SetScore, UnlabelledKld
from polyphony.runs.scores import TEACHERS

IMAGES = Path(__file__).parent.parent / "docs" / "images"
STUDENT = "kd-ods"


def main(folder: str) -> None:
    """Write every picture that the run has the numbers for."""
    run = Run.open(Path(folder))
    save("risk-coverage", risk_coverage(run))
    save("sets", chart(sets(run)))
    save("calibration", chart(calibration(run)))
    save("unknown", chart(unknown(run)))
    save("unlabelled", chart(unlabelled(run)))


def save(name: str, drawn: Chart) -> None:
    """Write one picture."""
    path = IMAGES / f"trust-{name}.svg"
    path.write_bytes(drawn.files()[f"{drawn.name}.svg"])


def chart(panels: Sequence[Panel]) -> Chart:
    """Panels side by side."""
    return Chart("trust", "", "", panels, Numbers([], []))


def asked(run: Run, split: str) -> tuple[Predictions, float]:
    """The student's predictions, and its temperature."""
    ((seed, found),) = run.ensemble(STUDENT, split).items()
    return found, run.temperatures[STUDENT, seed]


def sets(run: Run) -> list[Panel]:
    """How large sets are, and how often they hold each class."""
    rows = [row for row in run.table(SetScore) if row.score == "lac"]

    def sizes(axes: Axes) -> None:
        for place, wanted in enumerate((0.9, 0.95)):
            at = [row for row in rows if (row.wanted, row.label) == (wanted, None)]
            places = [k + 0.38 * place for k in range(len(at))]
            axes.bar(places, [row.size for row in at], 0.34, color=[run.look[row.model].colour for row in at])
            for x, row in zip(places, at, strict=True):
                axes.text(x, row.size, f"{row.size:.2f}", ha="center", va="bottom", fontsize=8.5)
        axes.set_xticks(
            [k + 0.19 for k in range(len(run.models))], [name.replace(" ", "\n") for name in run.models]
        )
        axes.set(ylabel="classes in a set")
        axes.grid(visible=False, axis="x")

    def coverage(axes: Axes) -> None:
        mine = [row for row in rows if (row.model, row.wanted) == (STUDENT, 0.9) and row.label is not None]
        axes.barh(
            [str(row.label) for row in mine], [row.coverage for row in mine], color=run.look[STUDENT].colour
        )
        axes.axvline(0.9, color=TEXT.light, linewidth=1.2)
        axes.set(xlim=(0.6, 1.01), xlabel="coverage of the 90 % sets by class")
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(visible=False, axis="y")

    titles = ("Mean size at 90 % and 95 %", f"{STUDENT}: 90 % is an average")
    draws: tuple[Callable[[Axes], None], ...] = (sizes, coverage)
    margins = Margins(left=92, bottom=48)
    return [Panel(title, draw, margins=margins) for title, draw in zip(titles, draws, strict=True)]


def calibration(run: Run) -> list[Panel]:
    """Reliability in bins of equal width and of equal counts."""
    found, temperature = asked(run, "test")
    log_probs = found.log_probs(temperature)
    sure, right = confidence(log_probs), is_correct(log_probs, found.labels)
    colour = run.look[STUDENT].colour

    def points(axes: Axes, x: torch.Tensor, y: torch.Tensor, count: torch.Tensor) -> None:
        diagonal(axes)
        axes.scatter(x, y, s=(8 + 300 * count / count.sum()).tolist(), color=colour, alpha=0.8, zorder=3)
        axes.set(xlim=(0, 1.03), ylim=(0, 1.03), xlabel="confidence", ylabel="accuracy")

    def width(axes: Axes) -> None:
        each = reliability(log_probs, found.labels)
        points(axes, each.confidence, each.accuracy, each.count)

    def mass(axes: Axes) -> None:
        order = sure.argsort()
        parts = [(sure[rows], right[rows]) for rows in order.tensor_split(15)]
        means = torch.tensor([[float(a.mean()), float(b.mean()), len(a)] for a, b in parts]).T
        points(axes, *means)

    return [
        Panel("ECE: bins of equal width", width, 1.15),
        Panel("Adaptive ECE: as many images in each", mass, 1.15),
    ]


def unknown(run: Run) -> list[Panel]:
    """Two scores on test images and on unknown ones."""
    (split,) = {split for _, _, split in run.predictions if split.startswith("ood-")}
    (known, _), (others, _) = asked(run, "test"), asked(run, split)
    values = {
        "doubt": tuple(each.uncertainties()["doubt"] for each in (known, others)),
        "energy": tuple(energy(each.logits) for each in (known, others)),
    }

    def histogram(axes: Axes, name: str) -> None:
        both = values[name]
        low, high = (float(f(torch.cat(both))) for f in (torch.min, torch.max))
        edges = torch.linspace(low, high, 31)
        for side, colour in zip(both, (MUTED.light, run.look[STUDENT].colour), strict=True):
            counts = torch.histogram(side.double(), edges.double()).hist / len(side)
            axes.stairs(counts.numpy(), edges.numpy(), fill=True, color=colour, alpha=0.5, linewidth=0)
        write(axes, (0.98, 0.98), f"AUROC {detect(*both).auroc:.3f}", color=TEXT.light, weight="bold")
        words = {"doubt": "1 − confidence", "energy": "energy of the mean logits"}
        axes.set(xlabel=words[name], ylabel="share of images", ylim=(0, 1.15 * axes.get_ylim()[1]))
        axes.grid(visible=False, axis="x")

    title = f"grey: test images, colour: {split.removeprefix('ood-')}"
    return [Panel(title, lambda axes, name=name: histogram(axes, name), 1.2) for name in values]


def unlabelled(run: Run) -> list[Panel]:
    """How far the teachers disagree on four kinds of images."""
    (row,) = run.table(UnlabelledKld)
    klds = {
        "training images": run.pooled(TEACHERS, "train").mean_kld(),
        "moved by ODS": run.pooled(TEACHERS, f"train+{STUDENT}").mean_kld(),
        "unlabelled images": row.kld,
        "validation images": row.valid_kld,
    }

    def bars(axes: Axes) -> None:
        names = list(klds)[::-1]
        axes.barh(names, [klds[name] for name in names], color=run.look[TEACHERS].colour)
        axes.set(xlabel="mean-KLD of the teachers (nats)")
        axes.grid(visible=False, axis="y")

    return [Panel("Where do the teachers disagree?", bars, 1.9, Margins(left=122))]


if __name__ == "__main__":
    main(sys.argv[1])
