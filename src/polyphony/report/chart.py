"""A chart: panels, how to read them, and the numbers behind them; as SVG for the page, SVG and PDF as files.

On the page every panel is a drawing of its own, so that panels flow to the width of the screen and their text
keeps its size. In the files they stand side by side in one figure.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from polyphony.report.style import INKS, MUTED, RULE, TEXT, Look
from polyphony.report.tables import Numbers

FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"
SMALL, MEDIUM = 270.0, 360.0  # widths of a panel in points, which are the page's pixels
_POINTS = 72.0

_SETTINGS: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10.5,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
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
    "xtick.color": RULE.light,
    "ytick.color": RULE.light,
    "xtick.labelcolor": MUTED.light,
    "ytick.labelcolor": MUTED.light,
    "xtick.labelsize": 10.0,
    "ytick.labelsize": 10.0,
    "xtick.major.pad": 5.0,
    "ytick.major.pad": 5.0,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "text.color": TEXT.light,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
}


@dataclass(frozen=True)
class Panel:
    """One drawing: a title, how it is drawn into its axes, and its width over its height."""

    title: str
    draw: Callable[[Axes], None]
    aspect: float = 1.3


@dataclass(frozen=True)
class Chart:
    """Panels that belong together, one sentence on how to read them, and their numbers."""

    name: str
    title: str
    reading: str
    panels: tuple[Panel, ...]
    numbers: Numbers
    legend: tuple[Look, ...] = ()
    width: float = MEDIUM

    @property
    def wide(self) -> bool:
        """Whether small panels fill rows of four better than rows of three."""
        return self.width == SMALL and len(self.panels) % 3 == 1 and len(self.panels) > 1

    def figure(self, columns: int = 4) -> Figure:
        """All panels side by side, with a legend, for a file."""
        with matplotlib.rc_context(_SETTINGS):
            across = min(columns, len(self.panels))
            down = math.ceil(len(self.panels) / across)
            height = down * self.width / min(panel.aspect for panel in self.panels) + 34 * bool(self.legend)
            figure = Figure((across * self.width / _POINTS, height / _POINTS), layout="constrained")
            for place, panel in enumerate(self.panels):
                _draw(panel, figure.add_subplot(down, across, place + 1))
            if self.legend:
                handles = [_handle(look) for look in self.legend]
                figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
            return figure

    def drawing(self, place: int) -> Figure:
        """One panel by itself, without its title, which the page says in its own letters."""
        panel = self.panels[place]
        with matplotlib.rc_context(_SETTINGS):
            figure = Figure((self.width / _POINTS, self.width / panel.aspect / _POINTS), layout="constrained")
            axes = figure.add_subplot()
            panel.draw(axes)
            return figure

    def inline(self, place: int) -> str:
        """One panel as SVG for the page: no size of its own, its colours the page's."""
        label = f"{self.title}: {self.panels[place].title}" if self.panels[place].title else self.title
        return for_page(svg(self.drawing(place), f"{self.name}-{place}"), label)

    def files(self) -> dict[str, bytes]:
        """NAME.svg, NAME.pdf and NAME.csv."""
        figure = self.figure()
        figure.draw_without_rendering()  # places everything, so that neither file has to do it again
        figure.set_layout_engine("none")
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
    """A chart that cannot be drawn, and what would make it possible."""

    title: str
    why: str


def svg(figure: Figure, salt: str, background: str = "none") -> str:
    """A figure as SVG, the same bytes for the same drawing: no dates, ids from the salt."""
    with matplotlib.rc_context(_SETTINGS | {"svg.hashsalt": salt}):
        text = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(text, format="svg", metadata=nothing, facecolor=background)
    drawn = re.sub(r"\s+<metadata>.*?</metadata>", "", text.getvalue(), flags=re.DOTALL)
    return re.sub(r"'DejaVu Sans'(, [^;\"]*)?", FONTS.replace('"', "'"), drawn)


def for_page(drawn: str, label: str) -> str:
    """An SVG document as an element of an HTML page."""
    from markupsafe import escape

    element = drawn[drawn.index("<svg") :]
    element = re.sub(r' id="(?![mpDC][0-9a-f]{6,})[^"]*"', "", element)
    element = re.sub(
        r'<svg [^>]*viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" role="img" {_TITLE}>', element
    )
    element = element.replace(_TITLE, f'aria-label="{escape(label)}"')
    for ink in INKS:
        element = element.replace(ink.light, f"var({ink.variable})")
    return element.strip()


_TITLE = "TITLE"


def thin(values: Sequence[float], most: int) -> list[int]:
    """At most so many indices, first and last among them, evenly apart."""
    count = len(values)
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})


def _draw(panel: Panel, axes: Axes) -> None:
    panel.draw(axes)
    axes.set_title(panel.title)


def _handle(look: Look) -> Line2D:
    return Line2D([], [], color=look.colour, marker=look.marker, label=look.label, markersize=5)
