from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from polyphony.runs.rows import FactorDistance, TableRow
from polyphony.runs.store import StoreError
from polyphony.study.saved import SavedRows, write_table

ROWS = [FactorDistance("kd", 0, 0.1 + 0.2), FactorDistance("a, b", 1, math.inf)]


@dataclass(frozen=True)
class Wider(FactorDistance):
    file: ClassVar[str] = "wider.csv"
    norm: float = 0.0


def test_rows_come_back_to_the_last_bit_under_their_own_key_only(tmp_path):
    SavedRows(tmp_path / "a.json", "first", FactorDistance).save(ROWS)
    assert SavedRows(tmp_path / "a.json", "first", FactorDistance).load() == ROWS
    for missing in (("a.json", "second"), ("b.json", "first")):
        saved = SavedRows(tmp_path / missing[0], missing[1], FactorDistance)
        assert not saved.is_done()
        with pytest.raises(StoreError, match=f"{missing[0]} is not there"):
            saved.load()


def test_rows_that_lack_a_column_are_measured_again(tmp_path):
    SavedRows(tmp_path / "a.json", "first", FactorDistance).save(ROWS)
    assert SavedRows(tmp_path / "a.json", "first", FactorDistance).is_done()
    assert not SavedRows(tmp_path / "a.json", "first", Wider).is_done()


@pytest.mark.parametrize("rows", [None, [["kd", 0]], [1]])
def test_damaged_rows_are_one_sentence(tmp_path, rows):
    saved = SavedRows(tmp_path / "a.json", "k", FactorDistance)
    content = {"key": "k", "columns": ["model", "seed", "distance"]} | (
        {} if rows is None else {"rows": rows}
    )
    saved.path.write_text(json.dumps(content))
    with pytest.raises(StoreError, match=r"a\.json is damaged"):
        saved.load()
    saved.path.write_text('{"key": "k", "rows"')
    with pytest.raises(StoreError, match=r"a\.json is not JSON"):
        saved.load()


def test_a_table_that_says_so_already_is_left_alone(tmp_path):
    path = write_table(tmp_path, FactorDistance, ROWS)
    assert path == tmp_path / "analysis" / "factors.csv"
    with path.open() as file:
        assert list(csv.DictReader(file)) == [
            {"model": "kd", "seed": "0", "distance": "0.30000000000000004"},
            {"model": "a, b", "seed": "1", "distance": "inf"},
        ]
    before = path.stat()
    write_table(tmp_path, FactorDistance, ROWS)
    assert path.stat().st_ino == before.st_ino
    write_table(tmp_path, FactorDistance, [])
    assert path.read_text() == "model,seed,distance\n"


def test_a_row_says_which_file_it_is_of():
    with pytest.raises(AttributeError):
        TableRow.file  # noqa: B018 (no table's)
