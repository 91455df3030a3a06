"""Charts: panels, how to read them, and their numbers; as SVG on the page, and as SVG, PDF and CSV files.

On the page every panel is a separate drawing, so that panels flow to the width of the screen and their text
keeps its size. In a file they stand side by side in one figure.
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
SMALL, MEDIUM = 270.0, 360.0  # widths of a panel in points; a point is a pixel on the page
BESIDE = 9  # with more panels or models in the legend, the text stands above the chart, not beside it
LINES = 7  # most students in one panel of lines or boxes
TRUETYPE = 42  # the type of fonts in a PDF that publishers ask for
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
    "text.parse_math": False,  # a name may contain a dollar sign
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
    """The space around axes for their labels, in points; fixed, because automatic layout is slow."""

    left: float = 50.0
    right: float = 8.0
    bottom: float = 40.0
    top: float = 8.0

    def box(self, corner: tuple[float, float], width: float, height: float, figure: Figure) -> Box:
        """The box of the axes, as shares of the figure, of a panel with this lower left corner and size."""
        across, up = (size * _POINTS for size in figure.get_size_inches())
        return (
            (corner[0] + self.left) / across,
            (corner[1] + self.bottom) / up,
            (width - self.left - self.right) / across,
            (height - self.bottom - self.top) / up,
        )


@dataclass(frozen=True)
class Panel:
    """One drawing: a title, a function that draws into axes, and the ratio of width to height.

    If many models are divided among several panels, each panel has its own `legend`, and `of` is the number
    of these panels.
    """

    title: str
    draw: Callable[[Axes], None]
    aspect: float = 1.3
    margins: Margins = Margins()
    legend: Sequence[Look] = ()
    of: int = 1


@dataclass(frozen=True)
class Chart:
    """Panels that belong together, a text on how to read them, and their numbers."""

    name: str
    title: str
    reading: str
    panels: Sequence[Panel]
    numbers: Numbers
    legend: Sequence[Look] = ()
    width: float = MEDIUM

    @property
    def wide(self) -> bool:
        """Whether the chart takes the full width of the page: many panels or models, or rows of four."""
        many = len(self.page_legend) > BESIDE or any(panel.of > 2 for panel in self.panels)
        count = len(self.panels)
        return many or (self.width == SMALL and (count > BESIDE or (count % 3 == 1 and count > 1)))

    @property
    def page_legend(self) -> Sequence[Look]:
        """The legend of the chart on the page; empty if each panel has its own."""
        return () if any(panel.legend for panel in self.panels) else self.legend

    def figure(self) -> Figure:
        """All panels side by side, at most four in a row, with titles and a legend, for a file."""
        columns, foot = self._legend_size(min(4, len(self.panels)) * self.width)
        figure = self._draw(self.panels, _TITLE, foot)
        if self.legend:
            with matplotlib.rc_context(_SETTINGS):
                marks = [Line2D([], [], **look.mark, label=look.label, markersize=5) for look in self.legend]
                figure.legend(handles=marks, loc="lower center", ncols=columns)
        return figure

    def _legend_size(self, width: float) -> tuple[int, float]:
        """How many entries of the legend fit into a row of a file, and the height of all rows, in points."""
        if not self.legend:
            return 1, 0.0
        entry = 55.0 + 6.4 * max(len(look.label) for look in self.legend)
        columns = max(1, min(len(self.legend), int(width / entry)))
        return columns, _LEGEND + 17.0 * (math.ceil(len(self.legend) / columns) - 1)

    def _draw(self, panels: Sequence[Panel], title: float = 0.0, foot: float = 0.0) -> Figure:
        """A figure of panels; `title` and `foot` are the heights, in points, of titles and of the legend."""
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
        """Each panel with its SVG for the page, which has no fixed size and the colours of the page."""
        drawings = []
        for place, panel in enumerate(self.panels):
            label = f"{self.title}: {panel.title}" if panel.title else self.title
            drawings.append((panel, _for_page(svg(self._draw([panel]), f"{self.name}-{place}"), label)))
        return drawings

    def files(self) -> dict[str, bytes]:
        """NAME.svg, NAME.pdf and NAME.csv."""
        figure = self.figure()
        with matplotlib.rc_context(_SETTINGS):
            pdf = io.BytesIO()
            no_metadata = {"Creator": None, "Producer": None, "CreationDate": None}
            figure.savefig(pdf, format="pdf", metadata=no_metadata, facecolor="white")
            return {
                f"{self.name}.svg": svg(figure, self.name, "white").encode(),
                f"{self.name}.pdf": pdf.getvalue(),
                f"{self.name}.csv": self.numbers.csv().encode(),
            }


@dataclass(frozen=True)
class Absent:
    """A missing chart: its title, and why it is missing or which command makes it."""

    title: str
    why: str


def svg(figure: Figure, salt: str, background: str = "none") -> str:
    """A figure as SVG. Equal figures give equal text: it has no dates, and ids come from the salt."""
    with matplotlib.rc_context(_SETTINGS | {"svg.hashsalt": salt}):
        text = io.StringIO()
        no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(text, format="svg", metadata=no_metadata, facecolor=background)
    document = re.sub(r"\s+<metadata>.*?</metadata>", "", text.getvalue(), flags=re.DOTALL)
    return re.sub(r"'DejaVu Sans'(, [^;\"]*)?", FONTS, document)


def _for_page(document: str, label: str) -> Markup:
    """An SVG document as an element of an HTML page; its colours become the page's CSS variables."""
    element = document[document.index("<svg") :]
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
    """Panels with at most `LINES` students each; the teachers are in all of them.

    If there are several panels, each has its own legend. `draw` gets the axes, and the panel's models as the
    keyword `models`.
    """
    teachers = [model for model in models if model == TEACHERS]
    students = [model for model in models if model != TEACHERS]
    count = max(1, math.ceil(len(students) / LINES))
    edges = [round(place * len(students) / count) for place in range(count + 1)]
    groups = [[*teachers, *students[low:high]] for low, high in pairwise(edges)]
    panels = []
    for place, group in enumerate(groups, 1):
        part = [f"{place} of {count}"] if count > 1 else []
        legend = [look[model] for model in group] if count > 1 else []
        words = ", ".join([title, *part] if title else part)
        panels.append(Panel(words, partial(draw, models=group), aspect, legend=legend, of=count))
    return panels


def spread(value: MeanSd) -> float:
    """The length of an error bar: one standard deviation, or 0 if there is none."""
    return 0.0 if math.isnan(value.sd) else value.sd


def write(axes: Axes, at: tuple[float, float], words: str, **style: Any) -> None:
    """Write words with their upper right corner at `at`, in shares of the panel's width and height."""
    axes.text(*at, words, transform=axes.transAxes, ha="right", va="top", **style)


def diagonal(axes: Axes) -> None:
    """Draw a dashed line from (0, 0) to (1, 1)."""
    axes.plot([0, 1], [0, 1], color=MUTED.light, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
