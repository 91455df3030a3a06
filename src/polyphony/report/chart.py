"""A chart: panels, how to read them, and the numbers behind them; as SVG for the page, SVG and PDF as files.

On the page every panel is a drawing of its own, so that panels flow to the width of the screen and their text
keeps its size. In the files they stand side by side in one figure.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from polyphony.metrics import MeanSd
from polyphony.report.style import INKS, MUTED, RULE, TEXT, Look, Looks
from polyphony.report.tables import Numbers
from polyphony.runs.scores import TEACHERS

FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"
SMALL, MEDIUM = 270.0, 360.0  # widths of a panel in points, which are the page's pixels
BESIDE = 9  # panels, or models in a legend, up to which words stand beside a chart and not above it
LINES = 7  # models that one panel can show on top of each other
TRUETYPE = 42  # for letters of a PDF, which publishers ask for
_POINTS = 72.0
_TITLE, _LEGEND = 26.0, 30.0  # heights in points

Box = tuple[float, float, float, float]  # left, bottom, width, height

_SETTINGS: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10.5,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
    "axes.titley": 1.0,  # fixed, because automatic placement is slow
    "axes.labelsize": 10.5,
    "axes.labelcolor": MUTED.light,
    "axes.titlecolor": TEXT.light,
    "axes.edgecolor": RULE.light,
    "axes.linewidth": 1.0,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "grid.color": RULE.light,
    "grid.linewidth": 0.7,
    "grid.alpha": 0.75,
    "text.color": TEXT.light,
    "text.parse_math": False,  # a name may hold a dollar
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "pdf.fonttype": TRUETYPE,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
}
_TICKS = {"color": RULE.light, "labelcolor": MUTED.light, "labelsize": 10.0, "major.pad": 5.0}
_TICKS |= {"major.size": 0.0, "minor.size": 0.0}
_SETTINGS |= {f"{axis}tick.{name}": value for axis in "xy" for name, value in _TICKS.items()}


@dataclass(frozen=True)
class Margins:
    """Room around axes for their labels, in points; fixed, because automatic layout is slow."""

    left: float = 50.0
    right: float = 8.0
    bottom: float = 40.0
    top: float = 8.0

    def box(self, corner: tuple[float, float], width: float, height: float, figure: Figure) -> Box:
        """The box of the axes of a panel with this lower left corner, as shares of the figure."""
        across, up = (size * _POINTS for size in figure.get_size_inches())
        return (
            (corner[0] + self.left) / across,
            (corner[1] + self.bottom) / up,
            (width - self.left - self.right) / across,
            (height - self.bottom - self.top) / up,
        )


@dataclass(frozen=True)
class Panel:
    """One drawing: a title, a function that draws into axes, and its width over its height.

    Panels that show different models have a `legend` each; `of` is the number of panels that share them.
    """

    title: str
    draw: Callable[[Axes], None]
    aspect: float = 1.3
    margins: Margins = Margins()
    legend: Sequence[Look] = ()
    of: int = 1


@dataclass(frozen=True)
class Chart:
    """Panels that belong together, one sentence on how to read them, and their numbers."""

    name: str
    title: str
    reading: str
    panels: Sequence[Panel]
    numbers: Numbers
    legend: Sequence[Look] = ()
    width: float = MEDIUM

    @property
    def wide(self) -> bool:
        """Whether the chart takes the whole width of the page: many panels, many models, or rows of four."""
        many = len(self.page_legend) > BESIDE or any(panel.of > 2 for panel in self.panels)
        count = len(self.panels)
        return many or (self.width == SMALL and (count > BESIDE or (count % 3 == 1 and count > 1)))

    @property
    def page_legend(self) -> Sequence[Look]:
        """The legend of the chart on the page; empty if each panel has its own."""
        return () if any(panel.legend for panel in self.panels) else self.legend

    def figure(self) -> Figure:
        """All panels side by side, at most four in a row, with titles and a legend, for a file."""
        columns, foot = self._legend_room(min(4, len(self.panels)) * self.width)
        figure = self._drawn(self.panels, _TITLE, foot)
        if self.legend:
            with matplotlib.rc_context(_SETTINGS):
                marks = [Line2D([], [], **look.mark, label=look.label, markersize=5) for look in self.legend]
                figure.legend(handles=marks, loc="lower center", ncols=columns)
        return figure

    def _legend_room(self, width: float) -> tuple[int, float]:
        """How many entries of the legend fit into a row of a file, and how high all rows are, in points."""
        if not self.legend:
            return 1, 0.0
        entry = 55.0 + 6.4 * max(len(look.label) for look in self.legend)
        columns = max(1, min(len(self.legend), int(width / entry)))
        return columns, _LEGEND + 17.0 * (math.ceil(len(self.legend) / columns) - 1)

    def _drawn(self, panels: Sequence[Panel], title: float = 0.0, foot: float = 0.0) -> Figure:
        """Panels above a foot; `title` is the height of a panel's title, in points (default: no titles)."""
        across = min(4, len(panels))
        down = math.ceil(len(panels) / across)
        margins = replace(panels[0].margins, top=title or panels[0].margins.top)
        height = self.width / min(panel.aspect for panel in panels) + title
        with matplotlib.rc_context(_SETTINGS):
            figure = Figure((across * self.width / _POINTS, (down * height + foot) / _POINTS))
            for place, panel in enumerate(panels):
                row, column = divmod(place, across)
                corner = (column * self.width, foot + (down - 1 - row) * height)
                axes = figure.add_axes(margins.box(corner, self.width, height, figure))
                panel.draw(axes)
                if title:
                    axes.set_title(panel.title)
            return figure

    def drawings(self) -> list[tuple[Panel, Markup]]:
        """Each panel and its SVG for the page, without a fixed size, in the colours of the page."""
        found = []
        for place, panel in enumerate(self.panels):
            label = f"{self.title}: {panel.title}" if panel.title else self.title
            found.append((panel, _for_page(svg(self._drawn([panel]), f"{self.name}-{place}"), label)))
        return found

    def files(self) -> dict[str, bytes]:
        """NAME.svg, NAME.pdf and NAME.csv."""
        figure = self.figure()
        with matplotlib.rc_context(_SETTINGS):
            pdf = io.BytesIO()
            nothing = {"Creator": None, "Producer": None, "CreationDate": None}
            figure.savefig(pdf, format="pdf", metadata=nothing, facecolor="white")
            return {
                f"{self.name}.svg": svg(figure, self.name, "white").encode(),
                f"{self.name}.pdf": pdf.getvalue(),
                f"{self.name}.csv": self.numbers.csv().encode(),
            }


@dataclass(frozen=True)
class Absent:
    """A chart that cannot be drawn, and what to do about it."""

    title: str
    why: str


def svg(figure: Figure, salt: str, background: str = "none") -> str:
    """A figure as SVG; reproducible: no dates, and ids come from the salt."""
    with matplotlib.rc_context(_SETTINGS | {"svg.hashsalt": salt}):
        text = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(text, format="svg", metadata=nothing, facecolor=background)
    drawn = re.sub(r"\s+<metadata>.*?</metadata>", "", text.getvalue(), flags=re.DOTALL)
    return re.sub(r"'DejaVu Sans'(, [^;\"]*)?", FONTS, drawn)


def _for_page(drawn: str, label: str) -> Markup:
    """An SVG document as an element of an HTML page."""
    element = drawn[drawn.index("<svg") :]
    element = re.sub(r' id="(?![mpDC][0-9a-f]{6,})[^"]*"', "", element)
    box = re.search(r'viewBox="([^"]*)"', element)
    head = f'<svg viewBox="{box.group(1) if box else ""}" role="img" aria-label="{escape(label)}">'
    element = head + element[element.index(">") + 1 :]
    for ink in INKS:
        element = element.replace(ink.light, f"var({ink.variable})")
    return Markup(element.strip())


def grouped(
    title: str, models: Sequence[str], look: Looks, draw: Callable[..., None], aspect: float
) -> list[Panel]:
    """Panels with at most `LINES` students each, and the teachers in all of them.

    Several panels have a legend each. `draw` is called with axes and `models`, the models of the panel.
    """
    always = [model for model in models if model == TEACHERS]
    others = [model for model in models if model != TEACHERS]
    count = max(1, math.ceil(len(others) / LINES))
    edges = [round(place * len(others) / count) for place in range(count + 1)]
    groups = [[*always, *others[low:high]] for low, high in pairwise(edges)]
    panels = []
    for place, shown in enumerate(groups, 1):
        words = f"{title}, {place} of {count}" if count > 1 else title
        legend = [look[model] for model in shown] if count > 1 else []
        panels.append(Panel(words, partial(draw, models=shown), aspect, legend=legend, of=count))
    return panels


def spread(value: MeanSd) -> float:
    """The length of an error bar: one standard deviation, or 0 if there is none."""
    return 0.0 if math.isnan(value.sd) else value.sd


def write(axes: Axes, at: tuple[float, float], words: str, **style: Any) -> None:
    """Write words; `at` is their upper right corner, as shares of the width and height of the panel."""
    axes.text(*at, words, transform=axes.transAxes, ha="right", va="top", **style)


def diagonal(axes: Axes) -> None:
    """A dashed line from corner to corner."""
    axes.plot([0, 1], [0, 1], color=MUTED.light, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
