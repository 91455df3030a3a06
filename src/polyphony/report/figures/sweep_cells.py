"""Cells of a grid, shaded by how good they are, with their numbers in them."""

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

from polyphony.metrics import MeanSd
from polyphony.recipe.points import Value, text_of
from polyphony.report.chart import MEDIUM, Margins, Panel
from polyphony.report.style import MUTED, TEXT, Ink

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
