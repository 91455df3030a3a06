from __future__ import annotations

import csv
import io
import math

from hypothesis import given
from hypothesis import strategies as st

from polyphony.report.tables import Cell, Numbers, PageTable, value_text

TABLE = PageTable(
    "scores",
    "50 % of a_b & more",
    ("Model", "NLL ↓"),
    ((Cell("kd_{x}|*"), Cell("0.180 ± 0.001", best=True, paper="0.181 ± 0.002")), (Cell("b"), Cell(">8"))),
)


def test_markdown_is_a_table_whose_text_stays_text():
    assert TABLE.markdown().splitlines() == [
        "50 % of a\\_b & more",
        "",
        "| Model | NLL ↓ |",
        "| --- | ---: |",
        "| kd\\_{x}\\|\\* | **0.180 ± 0.001** (paper 0.181 ± 0.002) |",
        "| b | \\>8 |",
    ]


def test_latex_is_a_table_whose_text_stays_text():
    latex = TABLE.latex()
    assert r"\caption{50 \% of a\_b \& more}" in latex
    assert r"kd\_\{x\}|* & \textbf{0.180 $\pm$ 0.001} (paper 0.181 $\pm$ 0.002) \\" in latex
    assert r"b & $>$8 \\" in latex
    assert latex.count(r"\begin") == latex.count(r"\end") == 2


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_csv_keeps_every_digit(values: list[float]):
    text = Numbers(("x",), tuple((value,) for value in values)).csv()
    assert [float(row["x"]) for row in csv.DictReader(io.StringIO(text))] == values


def test_missing_values_are_empty_in_a_csv():
    assert Numbers(("a", "b", "c"), ((None, math.nan, 3),)).csv() == "a,b,c\n,,3\n"


def test_numbers_as_text_for_the_page():
    texts = [value_text(v) for v in (0.12345, 9999.7, 12345.6, 0.0, math.inf, -math.inf, math.nan)]
    assert texts == ["0.1235", "10,000", "12,346", "0", "∞", "−∞", "–"]
    assert [value_text(v) for v in (None, 3, "x", 0.5)] == ["–", "3", "x", "0.5"]
