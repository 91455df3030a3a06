"""Where the best of a sweep is: cells of a grid, a line over one parameter, or the marks of a search."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from polyphony.metrics import MeanSd
from polyphony.recipe.points import PARAMETERS, Value, text_of
from polyphony.report.chart import MEDIUM, Absent, Chart, Margins, Panel, spread
from polyphony.report.paper import Tuning
from polyphony.report.style import MUTED, TEXT, Ink, Look, Looks, assign
from polyphony.report.sweep_run import OTHER, SYMBOLS, SweepRun
from polyphony.report.tables import Numbers
from polyphony.runs.scores import JUDGE

_TITLE = "Where the best is"
ROOMY = Margins(left=58.0, bottom=44.0)  # for three digits behind a point
LABELS = {"alpha": "weight α", "temperature": "temperature τ", "step_size": "step size η"}
_ROW = 46.0  # height of a row of cells in points
_STRONGEST, _FAINTEST = 0.5, 0.04  # shades: letters on the strongest still have a contrast of 4.5 : 1
_MOST_WRITTEN, _MOST_SPREADS = 8, 6  # columns up to which a number, and its spread, has room in a cell

Corner = tuple[Value, Value]  # column, row


@dataclass(frozen=True)
class Cells:
    """A rectangle of points: which parameters go across and down, their values, and the NLL of each."""

    across: str
    down: str
    columns: Sequence[Value]
    rows: Sequence[Value]
    nll: Mapping[Corner, MeanSd]
    best: Corner | None = None
    close: frozenset[Corner] = frozenset()
    own: Corner | None = None

    def panel(self, title: str, shade: Shade) -> Panel:
        """The rectangle as a panel."""
        height = len(self.rows) * _ROW + ROOMY.bottom + ROOMY.top
        return Panel(title, partial(_cells, cells=self, shade=shade), MEDIUM / height, ROOMY)


@dataclass(frozen=True)
class Shade:
    """How strong a colour an NLL has: the best the strongest, the worst almost none.

    What is more than four times as far from the best as the median is as faint as can be, so that one point
    that failed does not make all others look alike.
    """

    ink: Ink
    best: float
    worst: float

    @classmethod
    def of(cls, ink: Ink, values: Sequence[float]) -> Shade:
        """The shades of these values."""
        finite = sorted(value for value in values if math.isfinite(value))
        best, worst, median = finite[0], finite[-1], statistics.median(finite)
        return cls(ink, best, min(worst, best + 4 * (median - best)) if median > best else worst)

    def strength(self, nll: float) -> float:
        """From 0, faint, to 1."""
        if self.worst <= self.best:
            return 1.0
        return min(1.0, max(0.0, (self.worst - nll) / (self.worst - self.best)))


def _cells(axes: Axes, *, cells: Cells, shade: Shade) -> None:
    for (x, column), (y, row) in itertools.product(enumerate(cells.columns), enumerate(cells.rows)):
        nll = cells.nll.get((column, row))
        if nll is None:
            axes.text(x, y, "–", ha="center", va="center", color=MUTED.light)
            continue
        strength = _FAINTEST + (_STRONGEST - _FAINTEST) * shade.strength(nll.mean)
        axes.add_patch(_square(x, y, 0.47, facecolor=shade.ink.light, alpha=strength, linewidth=0))
        _frame(axes, x, y, cells, (column, row))
        _written(axes, x, y, nll, len(cells.columns), (column, row) == cells.best)
    axes.set(xlim=(-0.53, len(cells.columns) - 0.47), ylim=(len(cells.rows) - 0.47, -0.53))
    axes.set_xticks(range(len(cells.columns)), [text_of(value, cells.across) for value in cells.columns])
    axes.set_yticks(range(len(cells.rows)), [text_of(value, cells.down) for value in cells.rows])
    axes.set(xlabel=LABELS[cells.across], ylabel=LABELS[cells.down])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _square(x: float, y: float, half: float, **style: object) -> Rectangle:
    return Rectangle((x - half, y - half), 2 * half, 2 * half, **style)  # type: ignore[arg-type]


def _frame(axes: Axes, x: float, y: float, cells: Cells, corner: Corner) -> None:
    width = 2.4 if corner == cells.best else 0.9 if corner in cells.close else 0.0
    if width:
        axes.add_patch(_square(x, y, 0.46, fill=False, edgecolor=TEXT.light, linewidth=width))
    if corner == cells.own:
        axes.plot(x + 0.38, y - 0.34, "o", color=TEXT.light, markersize=4.2)


def _written(axes: Axes, x: float, y: float, nll: MeanSd, columns: int, best: bool) -> None:
    if columns > _MOST_WRITTEN:
        return
    spread = columns <= _MOST_SPREADS and not math.isnan(nll.sd)
    middle: dict[str, Any] = {"ha": "center", "va": "center", "color": TEXT.light}
    weight = "bold" if best else "normal"
    axes.text(x, y - 0.13 * spread, f"{nll.mean:.3f}", **middle, size=11.0, weight=weight)
    if spread:
        axes.text(x, y + 0.23, f"± {nll.sd:.3f}", **middle, size=9.0)


def sweep_map(run: SweepRun) -> Chart | Absent:
    """Calibrated validation NLL over the parameters that were varied."""
    if not run.varied:
        return Absent(_TITLE, "one point alone was tried.")
    if len(run.varied) == 1:
        return _line_chart(run, run.varied[0])
    return _search_chart(run) if run.is_search else _grid_chart(run)


def swept_ink(run: SweepRun) -> Ink:
    """The colour of the method that was swept."""
    return assign([(run.method, run.perturbation(run.best.name))])[run.method].ink


def paper_map(cells: Sequence[Tuning], words: str, ink: Ink) -> Chart:
    """The paper's own table of hyper-parameters, drawn the same way."""
    nll: dict[Corner, MeanSd] = {(cell.alpha, cell.temperature): cell.mean("nll") for cell in cells}
    alphas, temperatures = (sorted(set(values)) for values in zip(*nll, strict=True))
    best = min(nll, key=lambda corner: nll[corner].mean)
    drawn = Cells("alpha", "temperature", alphas, temperatures, nll, best)
    shade = Shade.of(ink, [value.mean for value in nll.values()])
    reading = (
        f"Calibrated NLL on validation images of plain distillation, {words}, as the paper prints it"
        f" (n = {cells[0].n}). The heavy frame is its lowest."
    )
    rows = []
    for cell in cells:
        scores = [value for score in map(cell.mean, ("nll", "acc")) for value in (score.mean, score.sd)]
        rows.append([cell.alpha, cell.temperature, cell.n, *scores])
    numbers = Numbers(["alpha", "temperature", "n", "nll", "nll_sd", "acc", "acc_sd"], rows)
    return Chart("sweep-paper", "What the paper found", reading, [drawn.panel("", shade)], numbers)


def layout(values: Mapping[str, Sequence[Value]]) -> tuple[str, str, str]:
    """(across, down, panels): the parameter of most values goes down, that of fewest makes the panels.

    Of equals α goes across and τ down, as in the paper's table, and η makes the panels.
    """
    usual = ("temperature", "alpha", "step_size")
    down, across, panels = sorted(usual, key=lambda name: -len(values[name]))
    return across, down, panels


def _grid_chart(run: SweepRun) -> Chart:
    across, down, third = layout(run.values)
    panels = []
    for value in run.values[third]:
        here = [each for each in run.tried if each.settings[third] == value]
        corners = {each.name: (each.settings[across], each.settings[down]) for each in here}
        cells = Cells(
            across,
            down,
            run.values[across],
            run.values[down],
            {corners[each.name]: each.nll for each in here},
            corners.get(run.best.name),
            frozenset(corners[each.name] for each in run.close if each.name in corners),
            corners.get(run.own.name) if run.own else None,
        )
        title = "" if value is None else f"{LABELS[third]} = {text_of(value, third)}"
        panels.append(cells.panel(title, _shade(run)))
    return _chart(run, panels, _cell_reading(run))


def _shade(run: SweepRun) -> Shade:
    return Shade.of(swept_ink(run), [each.nll.mean for each in run.tried])


def _cell_reading(run: SweepRun) -> str:
    over = f"mean ± s.d. over {run.best.nll.n} seeds" if run.best.nll.n > 1 else "one seed"
    reading = f"Calibrated NLL on validation images, {over}: the stronger the shade, the lower."
    frames = ", thin frames are within one s.d. of it." if run.close else "."
    dot = " The dot is where the recipe is now." if run.own else ""
    return f"{reading} The heavy frame is the best point{frames}{dot}"


def _line_chart(run: SweepRun, name: str) -> Chart:
    looks = {
        JUDGE: Look("calibrated, which decides", swept_ink(run), "o"),
        OTHER: Look("standard", MUTED, "s"),
    }
    panel = Panel("", partial(_line, run=run, name=name, looks=looks), 1.5, Margins(left=58.0))
    reading = (
        f"NLL on validation images over the {LABELS[name]}, mean and s.d. over seeds; lower is better. The"
        " ring is the best point."
    )
    return _chart(run, [panel], reading, list(looks.values()))


def _search_chart(run: SweepRun) -> Chart:
    panels = []
    for across, down in itertools.combinations(run.varied, 2):
        draw = partial(_marks, run=run, across=across, down=down, shade=_shade(run))
        panels.append(Panel(f"{SYMBOLS[down]} against {SYMBOLS[across]}", draw, 1.2, ROOMY))
    reading = (
        "Each mark is a point that the search tried: the stronger its shade, the lower the calibrated NLL on"
        " validation images. The ring is the best"
        + ("; the diamond is where the recipe is now." if run.own else ".")
    )
    return _chart(run, panels, reading)


def _chart(run: SweepRun, panels: Sequence[Panel], reading: str, looks: Sequence[Look] = ()) -> Chart:
    rows = []
    for each in run.ranked:
        rank = "best" if each is run.best else "within one s.d." if each in run.close else None
        other = each.scores[OTHER]["nll"]
        scores = [each.nll.mean, each.nll.sd, other.mean, other.sd, each.nll.n]
        rows.append([each.name, *each.settings.values(), *scores, rank])
    header = ["point", *PARAMETERS, "nll", "nll_sd", "standard_nll", "standard_nll_sd", "n", "rank"]
    return Chart("sweep-map", _TITLE, reading, panels, Numbers(header, rows), looks)


def _line(axes: Axes, *, run: SweepRun, name: str, looks: Looks) -> None:
    order = [next(each for each in run.tried if each.settings[name] == v) for v in run.values[name]]
    places = range(len(order))
    for kind, look in reversed(list(looks.items())):
        nll = [each.scores[kind]["nll"] for each in order]
        means, bars = [value.mean for value in nll], [spread(value) for value in nll]
        axes.errorbar(places, means, bars, **look.mark, markersize=5.5, elinewidth=1.3, linewidth=1.5)
    best = order.index(run.best)
    axes.plot(best, run.best.nll.mean, "o", markersize=13, fillstyle="none", color=TEXT.light)
    axes.set_xticks(places, [text_of(value, name) for value in run.values[name]])
    axes.set(xlabel=LABELS[name], ylabel="NLL on validation")
    axes.grid(visible=False, axis="x")


def _marks(axes: Axes, *, run: SweepRun, across: str, down: str, shade: Shade) -> None:
    for each in reversed(run.ranked):  # the best on top
        at = [_number(each.settings[name], name) for name in (across, down)]
        strength = 0.12 + 0.88 * shade.strength(each.nll.mean)
        axes.plot(*at, "o", markersize=9, color=shade.ink.light, alpha=strength, markeredgewidth=0)
        if each is run.best:
            axes.plot(*at, "o", markersize=15, fillstyle="none", color=TEXT.light)
        if each is run.own:
            axes.plot(*at, "D", markersize=13, fillstyle="none", color=TEXT.light)
    axes.set(xscale=_scale(across), yscale=_scale(down))
    for axis, name in ((axes.xaxis, across), (axes.yaxis, down)):
        if _scale(name) == "log":
            axis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 3.0, 5.0)))
            axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    units = {**LABELS, "step_size": "step size η × 255"}
    axes.set(xlabel=units[across], ylabel=units[down])


def _scale(name: str) -> str:
    return "linear" if name == "alpha" else "log"


def _number(value: Value, name: str) -> float:
    number = value if isinstance(value, float) else math.nan
    return 255 * number if name == "step_size" else number
