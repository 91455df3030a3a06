from __future__ import annotations

import csv
import math

import pytest

from polyphony.analysis import SavedRows, write_table
from polyphony.store import StoreError


def test_rows_come_back_to_the_last_bit_under_their_own_key_only(tmp_path):
    rows = [["kd", 0, 0.1 + 0.2, None], ["scratch", 1, math.inf, 1e-300]]
    SavedRows(tmp_path / "a.json", "first").save(rows)
    assert SavedRows(tmp_path / "a.json", "first").load() == rows
    assert SavedRows(tmp_path / "a.json", "second").load() is None
    assert SavedRows(tmp_path / "b.json", "first").load() is None


def test_a_damaged_part_is_one_sentence(tmp_path):
    (tmp_path / "a.json").write_text('{"key": "k", "rows"')
    with pytest.raises(StoreError, match=r"a\.json is not JSON"):
        SavedRows(tmp_path / "a.json", "k").load()


def test_a_table_that_says_so_already_is_left_alone(tmp_path):
    path = tmp_path / "table.csv"
    write_table(path, ("model", "seed", "acc"), [("a, b", None, 0.25), ("c", 1, 0.5)])
    with path.open() as file:
        assert list(csv.DictReader(file)) == [
            {"model": "a, b", "seed": "", "acc": "0.25"},
            {"model": "c", "seed": "1", "acc": "0.5"},
        ]
    before = path.stat()
    write_table(path, ("model", "seed", "acc"), [("a, b", None, 0.25), ("c", 1, 0.5)])
    assert path.stat().st_ino == before.st_ino
    write_table(path, ("model", "seed", "acc"), [])
    assert path.read_text() == "model,seed,acc\n"
