"""Quality against price: calibrated NLL over milliseconds, bytes of the exported file, and training time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from polyphony._util.text import counted
from polyphony.metrics import MeanSd
from polyphony.report.chart import Absent, Chart, Margins, Panel, spread
from polyphony.report.run import Run
from polyphony.report.style import RULE, Look
from polyphony.report.tables import Numbers
from polyphony.runs.scores import TEACHERS

_TITLE = "Quality for its price"
_WIDTH, _LINE = 400.0, 14.0  # of a panel, and of a line of labels, in points
_MARGINS = Margins(left=58.0, bottom=44.0, right=14.0, top=12.0)


@dataclass(frozen=True)
class Priced:
    """A model's price and quality, and how it is drawn."""

    label: str
    price: float
    nll: MeanSd
    look: Look


Cost = Callable[[Run, str], float | None]


def quality_for_price(run: Run) -> Chart | Absent:
    """The picture that sells a student, or does not: NLL against milliseconds, every mark labelled."""
    row = run.price(TEACHERS)
    if row is None:
        return Absent(_TITLE, "latency was not measured: run 'polyphony analyse RUN latency'.")
    images, threads = counted(row.batch, "image"), counted(row.threads, "thread")
    reading = (
        f"Lower left is better. Milliseconds are for {images} ({row.runtime}, {threads}); bars are one"
        " standard deviation over seeds. The grey line averages 1, 2, … teachers. A student below it is"
        " better than an ensemble of the same price."
    )
    return _chart("price", _TITLE, reading, run, {f"milliseconds for {images}": _milliseconds})


def other_costs(run: Run) -> Chart:
    """NLL against the size of the file, or the parameters, and against training time."""
    size: dict[str, Cost] = {"megabytes of the exported file": _megabytes}
    if run.price(TEACHERS) is None:
        size = {"million parameters": lambda run, model: run.params(model) / 1e6}
    reading = (
        "The same against what a model takes to store and to train. The training time of a student does not"
        " include its teachers."
    )
    return _chart("costs", "Size and training time", reading, run, {**size, "seconds of training": _training})


def _milliseconds(run: Run, model: str) -> float | None:
    row = run.price(model)
    return row.milliseconds if row else None


def _megabytes(run: Run, model: str) -> float | None:
    row = run.price(model)
    return row.bytes / 1e6 if row and row.bytes else None


def _training(run: Run, model: str) -> float | None:
    seconds = run.seconds(model)[: run.members] if model == TEACHERS else run.seconds(model)
    return (sum(seconds) if model == TEACHERS else fmean(seconds)) if seconds else None


def _chart(name: str, title: str, reading: str, run: Run, costs: Mapping[str, Cost]) -> Chart:
    panels, rows = [], []
    for words, cost in costs.items():
        points = [point for model in run.models if (point := _priced(run, model, cost))]
        if points:
            draw = partial(_draw, points=points, line=_ensembles(run, cost), label=words)
            panels.append(Panel(words if len(costs) > 1 else "", draw, _aspect(len(points)), _MARGINS))
            rows += [(words, each.label, each.price, each.nll.mean, each.nll.sd) for each in points]
    numbers = Numbers(["cost", "model", "value", "nll", "nll_sd"], rows)
    return Chart(name, title, reading, panels, numbers, width=_WIDTH)


def _aspect(models: int) -> float:
    """Width over height: a panel of many models is higher, so that their labels have room."""
    return min(1.5, _WIDTH / (90.0 + _LINE * models))


def _priced(run: Run, model: str, cost: Cost) -> Priced | None:
    price = cost(run, model)
    label = f"{run.members} teachers" if model == TEACHERS and run.members > 1 else model
    return None if price is None else Priced(label, price, run.mean(model, "nll"), run.look[model])


def _ensembles(run: Run, cost: Cost) -> list[tuple[float, float]]:
    """(price, NLL) of the mean of 1, 2, … teachers, as far as there are in the ensemble."""
    together, curve = cost(run, TEACHERS), run.curves.get("calibrated", [])
    sizes = list(enumerate(curve))[1 : run.members + 1]
    return [(size * (together or 0.0) / run.members, nll) for size, nll in sizes]


def _draw(axes: Axes, *, points: Sequence[Priced], line: Sequence[tuple[float, float]], label: str) -> None:
    if len(line) > 1:
        axes.plot(*zip(*line, strict=True), color=RULE.light, linewidth=2.5, zorder=1)
    for each in points:
        mark = {**each.look.mark, "markersize": 7.5, "linestyle": "", "elinewidth": 1.4}
        axes.errorbar(each.price, each.nll.mean, spread(each.nll), **mark, zorder=3)
    axes.set_xlim(0, 1.08 * max(each.price for each in points))
    axes.margins(y=0.12)
    axes.set(xlabel=label, ylabel="calibrated NLL on test images")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    middle = axes.get_xlim()[1] / 2
    for right in (True, False):
        _write_labels(axes, [each for each in points if (each.price <= middle) == right], right)


def _write_labels(axes: Axes, points: Sequence[Priced], right: bool) -> None:
    """The names of points beside them, moved up or down until no two overlap, with a thin line to each."""
    low, high = axes.get_ylim()
    tall = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted()).height * 72
    order = sorted(points, key=lambda each: each.nll.mean)
    wanted = [(each.nll.mean - low) / (high - low) * tall for each in order]
    for each, at, height in zip(order, wanted, apart(wanted, _LINE, tall), strict=True):
        axes.annotate(
            each.label, (each.price, each.nll.mean), (16 if right else -16, height - at),
            textcoords="offset points", ha="left" if right else "right", va="center", color=each.look.colour,
            arrowprops={"arrowstyle": "-", "color": each.look.colour, "linewidth": 0.6, "shrinkA": 1},
        )  # fmt: skip


def apart(heights: Sequence[float], gap: float, top: float) -> list[float]:
    """Ascending heights, moved as little as need be so that neighbours are `gap` apart and none is above."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    for at in reversed(range(len(placed))):
        placed[at] = min(placed[at], top - gap * (len(placed) - 1 - at))
    return placed
