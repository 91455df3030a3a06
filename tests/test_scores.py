from __future__ import annotations

import csv
import hashlib
import io
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyphony.predictions import Predictions
from polyphony.scores import Score, dee_curves, to_csv
from polyphony.seeds import generator

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(finite, st.none() | finite | st.just(math.inf), st.none() | st.integers(0, 99))
def test_rows_are_read_back_as_they_were_written(value: float, dee: float | None, seed: int | None):
    row = Score("kd, or so", seed, "test", "standard", value, value, value, value, dee, value, 123)
    assert [Score.of(each) for each in csv.DictReader(io.StringIO(to_csv([row, row])))] == [row, row]


@dataclass(frozen=True)
class Pair:
    name: str
    value: float | None


def test_rows_of_another_kind_have_its_columns():
    rows = [Pair("a, b", None), Pair("c", math.inf)]
    assert to_csv(rows, Pair) == 'name,value\n"a, b",\nc,inf\n'
    assert to_csv([], Pair) == "name,value\n"


def test_a_row_of_another_table_is_refused():
    with pytest.raises(KeyError):
        Score.of({"model": "kd"})


def test_a_stream_is_told_by_its_purpose_and_number():
    digest = hashlib.sha256(b"subsets 0").digest()
    expected = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
    drawn = torch.randperm(1000, generator=generator("subsets", 0))
    assert torch.equal(drawn, torch.randperm(1000, generator=expected))
    assert not torch.equal(drawn, torch.randperm(1000, generator=generator("subsets", 1)))
    assert not torch.equal(drawn, torch.randperm(1000, generator=generator("student", 0)))


def test_curves_end_at_all_teachers_and_are_the_same_each_time():
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (50,), generator=rng)
    pool = Predictions(torch.randn(5, 50, 4, generator=rng), labels)
    curves = dee_curves(pool, pool)
    own = -pool.logits.double().log_softmax(-1)[:, torch.arange(50), labels]
    assert curves["standard"][0] == pytest.approx(math.log(4))
    assert curves["standard"][1] == pytest.approx(float(own.mean()))
    assert curves["standard"][5] == pytest.approx(float(-(-own).exp().mean(0).log().mean()))
    assert curves["calibrated"][5] <= curves["standard"][5] + 1e-9
    assert dee_curves(pool, pool) == curves
