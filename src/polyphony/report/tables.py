"""Tables for people, as HTML cells, Markdown and LaTeX; and tables of numbers, as CSV."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from polyphony.runs.rows import csv_text

MOST_ROWS = 60  # of a chart's numbers on the page; the file has them all
Value = str | int | float | None

_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "…": r"\dots{}",
    ">": r"$>$",
    "<": r"$<$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "−": r"$-$",
    "×": r"$\times$",
    "–": "--",
}
_LATEX_TABLE = r"""\begin{table}
  \caption{%s}
  \centering
  \begin{tabular}{%s}
    \toprule
%s    \midrule
%s    \bottomrule
  \end{tabular}
\end{table}
"""


@dataclass(frozen=True)
class Numbers:
    """The numbers behind a chart: a header and rows."""

    header: Sequence[str]
    rows: Sequence[Sequence[Value]]

    def csv(self) -> str:
        """A CSV file; numbers with all their digits, what is missing or not a number empty."""
        return csv_text(self.header, ([None if _is_nan(each) else each for each in row] for row in self.rows))

    def for_page(self) -> list[list[str]]:
        """The rows for the page, if they are few enough to read."""
        return (
            [[value_text(each) for each in row] for row in self.rows] if len(self.rows) <= MOST_ROWS else []
        )


@dataclass(frozen=True)
class Cell:
    """Text or a number in a table; perhaps the best of its column, with its range or the paper's number."""

    text: str
    best: bool = False
    paper: str = ""
    range: str = ""

    def written(self, escape: Callable[[str], str], bold: str) -> str:
        """The cell in a language with its own way to escape and to write bold."""
        text = escape(self.text)
        text = bold % text if self.best else text
        text = f"{text} ({escape(self.range)})" if self.range else text
        return f"{text} (paper {escape(self.paper)})" if self.paper else text


@dataclass(frozen=True)
class PageTable:
    """A table for people: the first column says what a row is, the others are numbers."""

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @classmethod
    def of(
        cls, name: str, caption: str, header: Sequence[str], rows: Iterable[Iterable[Cell | str]]
    ) -> PageTable:
        """A table most of whose cells are text and no more."""
        cells = [[Cell(each) if isinstance(each, str) else each for each in row] for row in rows]
        return cls(name, caption, header, cells)

    def markdown(self) -> str:
        """A Markdown table under its caption."""
        header = [escape_markdown(name) for name in self.header]
        rule = ["---", *["---:"] * (len(self.header) - 1)]
        rows = [[cell.written(escape_markdown, "**%s**") for cell in row] for row in self.rows]
        lines = [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]
        caption = textwrap.wrap(escape_markdown(self.caption), 120, break_on_hyphens=False)
        return "\n".join([*caption, "", *lines, ""])

    def latex(self) -> str:
        """A LaTeX table with booktabs rules."""
        header = [escape_latex(name) for name in self.header]
        rows = [[cell.written(escape_latex, r"\textbf{%s}") for cell in row] for row in self.rows]
        first, *others = [f"    {' & '.join(cells)} \\\\\n" for cells in (header, *rows)]
        columns = "l" + "r" * (len(self.header) - 1)
        return _LATEX_TABLE % (escape_latex(self.caption), columns, first, "".join(others))

    def files(self) -> dict[str, bytes]:
        """NAME.md and NAME.tex."""
        return {f"{self.name}.md": self.markdown().encode(), f"{self.name}.tex": self.latex().encode()}


def binned(edges: Tensor | np.ndarray, *columns: Tensor | np.ndarray) -> list[tuple[Value, ...]]:
    """The numbers of each bin: its lower edge, its upper one, and its part of each column."""
    each = [edges[:-1].tolist(), edges[1:].tolist(), *(column.tolist() for column in columns)]
    return list(zip(*each, strict=True))


def slug(name: str) -> str:
    """A name as part of a file's name: what is not a letter, digit, dot, dash or underscore is a dash."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)


def escape_markdown(text: str) -> str:
    """Text as Markdown shows it."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text)


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def value_text(value: Value) -> str:
    """A number or word of a chart, for the page: four digits, no exponent where it can be helped."""
    if value is None or _is_nan(value):
        return "–"
    if not isinstance(value, float):
        return str(value)
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"


def _is_nan(value: Value) -> bool:
    return isinstance(value, float) and math.isnan(value)
