"""Tables for people, as HTML cells, Markdown and LaTeX; and tables of numbers, as CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from polyphony.rows import csv_text

Value = str | int | float | None

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
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
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|])")


@dataclass(frozen=True)
class Numbers:
    """The numbers behind a chart: a header and rows."""

    header: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def csv(self) -> str:
        """A CSV file; numbers with all their digits, what is missing or not a number empty."""
        return csv_text(
            self.header, ([None if _is_nan(value) else value for value in row] for row in self.rows)
        )


@dataclass(frozen=True)
class Cell:
    """Words or a number in a table; perhaps the best of its column, perhaps with the paper's beside it."""

    text: str
    best: bool = False
    paper: str = ""


@dataclass(frozen=True)
class Table:
    """A table for people: the first column says what a row is, the others are numbers."""

    name: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def markdown(self) -> str:
        """A Markdown table under its caption."""
        lines = [
            _row([_MARKDOWN.sub(r"\\\1", name) for name in self.header]),
            _row(["---", *["---:"] * (len(self.header) - 1)]),
            *(_row([_markdown(cell) for cell in row]) for row in self.rows),
        ]
        return "\n".join([_MARKDOWN.sub(r"\\\1", self.caption), "", *lines]) + "\n"

    def latex(self) -> str:
        """A LaTeX table with booktabs rules."""
        body = [" & ".join(_latex(cell) for cell in row) + r" \\" for row in self.rows]
        return "\n".join(
            [
                r"\begin{table}",
                rf"  \caption{{{escape_latex(self.caption)}}}",
                r"  \centering",
                rf"  \begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}",
                r"    \toprule",
                f"    {' & '.join(map(escape_latex, self.header))} " + r"\\",
                r"    \midrule",
                *(f"    {line}" for line in body),
                r"    \bottomrule",
                r"  \end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def files(self) -> dict[str, bytes]:
        """NAME.md and NAME.tex."""
        return {f"{self.name}.md": self.markdown().encode(), f"{self.name}.tex": self.latex().encode()}


def slug(name: str) -> str:
    """A name as part of a file's name: what is not a letter, digit, dot, dash or underscore is a dash."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def shown(value: Value) -> str:
    """A number or word of a chart, for the page: four digits, no exponent where it can be helped."""
    if value is None or _is_nan(value):
        return "–"
    if not isinstance(value, float):
        return str(value)
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _is_nan(value: Value) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(cell: Cell) -> str:
    text = _MARKDOWN.sub(r"\\\1", cell.text)
    text = f"**{text}**" if cell.best else text
    return f"{text} (paper {cell.paper})" if cell.paper else text


def _latex(cell: Cell) -> str:
    text = escape_latex(cell.text)
    text = rf"\textbf{{{text}}}" if cell.best else text
    return f"{text} (paper {escape_latex(cell.paper)})" if cell.paper else text
