"""Tables of text as HTML, Markdown and LaTeX; tables of numbers as CSV; small helpers for both."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from polyphony.runs.rows import csv_text

MOST_ROWS = 60  # a chart with more rows shows its numbers only in the CSV file
DASH = "–"  # a cell without a value
Value = str | int | float | None
Row = TypeVar("Row")

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
        """A CSV file with all digits; None and NaN are empty."""
        return csv_text(
            self.header, ([None if _is_nan(value) else value for value in row] for row in self.rows)
        )

    def for_page(self) -> list[list[str]]:
        """The rows as text for the page; empty if there are more than 60."""
        rows = self.rows if len(self.rows) <= MOST_ROWS else ()
        return [[value_text(value) for value in row] for row in rows]


@dataclass(frozen=True)
class Cell:
    """A cell: its text, whether it is bold, the paper's number beside it, its range over seeds."""

    text: str
    best: bool = False
    paper: str = ""
    range: str = ""

    def written(self, escape: Callable[[str], str], bold: str) -> str:
        """The cell in Markdown or LaTeX; `bold` is a format with one %s."""
        text = escape(self.text)
        text = bold % text if self.best else text
        text = f"{text} ({escape(self.range)})" if self.range else text
        return f"{text} (paper {escape(self.paper)})" if self.paper else text


@dataclass(frozen=True)
class PageTable:
    """A table of text: names in the first column, numbers in the others. The page omits one without rows."""

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @classmethod
    def of(
        cls, name: str, caption: str, header: Sequence[str], rows: Iterable[Iterable[Cell | str]]
    ) -> PageTable:
        """A table whose cells may be plain text."""
        cells = [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
        return cls(name, caption, header, cells)

    @classmethod
    def from_rows(cls, name: str, caption: str, rows: Sequence[Mapping[str, Cell | str]]) -> PageTable:
        """A table from rows that map the same headings to cells."""
        return cls.of(name, caption, list(rows[0]) if rows else [], [row.values() for row in rows])

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


def by(rows: Iterable[Row], *columns: str) -> dict[Any, list[Row]]:
    """Rows grouped by the value of a column, or by the tuple of several values; in the order of the rows."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(attrgetter(*columns)(row), []).append(row)
    return groups


def binned(edges: Tensor | np.ndarray, *columns: Tensor | np.ndarray) -> list[tuple[Value, ...]]:
    """A row for each bin: its lower edge, its upper edge, and its value in each column."""
    lists = [edges[:-1].tolist(), edges[1:].tolist(), *(column.tolist() for column in columns)]
    return list(zip(*lists, strict=True))


def number(values: Iterable[float | None], digits: int = 2) -> str:
    """The mean of the values that are not None; a dash if all are."""
    known = [value for value in values if value is not None]
    return f"{fmean(known):.{digits}f}" if known else DASH


def share(values: Iterable[float | None], digits: int = 1) -> str:
    """The mean of the values that are not None, in per cent; a dash if all are."""
    mean = number((None if value is None else 100 * value for value in values), digits)
    return mean if mean == DASH else f"{mean} %"


def slug(name: str) -> str:
    """A name for a file name: all characters except letters, digits, . - _ become dashes."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)


def escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text)


def escape_latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def value_text(value: Value) -> str:
    """A value for the page: numbers with four digits, large ones without an exponent."""
    if value is None or _is_nan(value):
        return DASH
    if not isinstance(value, float):
        return str(value)
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"


def _is_nan(value: Value) -> bool:
    return isinstance(value, float) and math.isnan(value)
