from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyphony.runs import rows
from polyphony.runs.rows import Score, SweepScore, TableRow, columns, from_csv, headings, to_csv

finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00", exclude_categories=("Cs",)))


def tables(kind: type = TableRow) -> list[type]:
    """Every kind of row that has a file of its own."""
    below = [each for child in kind.__subclasses__() for each in tables(child)]
    own = "file" in vars(kind) and kind.__module__ == rows.__name__
    return [kind, *below] if own else below


@given(names, finite, st.none() | finite | st.just(math.inf), st.none() | st.integers(0, 99))
def test_rows_are_read_back_as_they_were_written(
    name: str, value: float, dee: float | None, seed: int | None
):
    row = Score(name, seed, "test", "standard", value, value, value, value, dee, value, 123)
    assert from_csv(to_csv([row, row], Score), Score) == [row, row]


@pytest.mark.parametrize("step_size", [1 / 255, "match", None])
def test_a_step_size_is_a_number_or_a_word_or_nothing(step_size: float | str | None):
    row = SweepScore("a0.9", 1, 0.9, 4.0, step_size, "standard", 0.9, 0.2, 0.1, 0.01, 0.05)
    assert from_csv(to_csv([row], SweepScore), SweepScore) == [row]


def test_tables_have_the_documented_columns():
    expected = {
        "scores.csv": "model,seed,split,calibration,acc,nll,bs,ece,dee,kld,params,"
        "rank_correlation,distance,voice,adaptive_ece,class_wise_ece,aurc,excess_aurc,error_80,error_90,coverage_5,error_auroc",
        "sweep.csv": "model,seed,alpha,temperature,step_size,calibration,acc,nll,bs,ece,kld",
        "analysis/corrupted.csv": "model,seed,data,corruption,severity,acc,nll,bs,ece",
        "analysis/ood.csv": "model,seed,unknown,score,auroc,aupr,fpr95,known_entropy,unknown_entropy,best",
        "analysis/selective.csv": "model,seed,split,calibration,score,aurc,excess_aurc,error_80,error_90,"
        "coverage_5,error_auroc",
        "analysis/sets.csv": "model,seed,score,wanted,label,n,coverage,size,empty,fitted,calibrated",
        "analysis/groups.csv": "model,seed,by,group,n,acc,ece,confidence,label,answer,times",
        "analysis/unlabelled.csv": "n,kld,valid_kld",
        "analysis/thresholds.csv": "model,seed,coverage,confidence,temperature,score",
        "analysis/jacobians.csv": "split,model,seed,member,example,cosine",
        "analysis/snr.csv": "perturbation,step_size,snr,samples,literal",
        "analysis/factors.csv": "model,seed,distance",
        "analysis/latency.csv": "model,params,milliseconds,batch,threads,bytes,runtime,machine",
        "analysis/dee.csv": "split,calibration,size,nll",
        "analysis/temperatures.csv": "model,seed,temperature",
        "analysis/teachers.csv": "calibration,acc,nll,bs,ece,kld",
    }
    headers = {kind.file: to_csv([], kind).rstrip() for kind in tables()}
    assert headers == expected


def test_every_column_of_every_table_can_be_read(tmp_path):
    for kind in tables():
        cells = {"int": "3", "str": "a", "float": "0.5"}
        types = [str(get_type_hints(kind)[name]) for name in columns(kind)]
        line = [next(cell for name, cell in cells.items() if name in each) for each in types]
        text = f"{','.join(columns(kind))}\n{','.join(line)}\n"
        assert to_csv(from_csv(text, kind), kind) == text


# A new column


@dataclass(frozen=True)
class WithRank(Score):
    """scores.csv with one more column: a line here, and nothing else."""

    file: ClassVar[str] = "scores.csv"
    rank: Annotated[float, "rank ↓"] = math.nan


def test_a_new_column_is_one_field():
    row = WithRank("kd", 0, "test", "standard", 0.9, 0.2, 0.1, 0.01, None, 0.05, 9, rank=0.03)
    text = to_csv([row], WithRank)
    assert next(csv.DictReader(io.StringIO(text)))["rank"] == "0.03"
    assert from_csv(text, WithRank) == [row]
    assert headings(WithRank) == headings(Score) | {"rank": "rank ↓"}


def test_a_table_written_before_there_was_a_column_is_read_with_its_default():
    old = Score("kd", 0, "test", "standard", 0.9, 0.2, 0.1, 0.01, None, 0.05, 9)
    (read,) = from_csv(to_csv([old], Score), WithRank)
    assert math.isnan(read.rank)
    assert [getattr(read, name) for name in columns(Score)] == [getattr(old, name) for name in columns(Score)]


def test_a_table_of_a_later_version_is_read_without_its_column():
    row = WithRank("kd", 0, "test", "standard", 0.9, 0.2, 0.1, 0.01, None, 0.05, 9, rank=0.03)
    assert from_csv(to_csv([row], WithRank), Score)[0].params == 9


# What is not such a table


@dataclass(frozen=True)
class Four:
    acc: float
    nll: float
    bs: float
    ece: float


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it has no column 'acc'"),
        ("acc,nll,bs\n1,2,3\n", "it has no column 'ece'"),
        ("acc,nll,bs,ece\n1,2,3\n", "a row has 3 cells, not 4"),
        ("acc,nll,bs,ece\n1,2,3,4", "it ends within a line"),
        ("acc,nll,bs,ece\n1,2,3,x\n", "could not convert"),
        ("acc,nll,bs,ece\n1,2,3,\n", "could not convert"),
        ("acc,nll,bs,ece\n1,2,3,\x00\n", "could not convert|NUL"),
    ],
)
def test_invalid_tables_are_rejected_with_a_reason(text: str, words: str):
    with pytest.raises(ValueError, match=words):
        from_csv(text, Four)


def test_missing_values_are_empty_cells_in_optional_columns_only():
    @dataclass(frozen=True)
    class Pair:
        name: str
        value: float | None

    pairs = [Pair("a, b", None), Pair("c", math.inf)]
    assert to_csv(pairs, Pair) == 'name,value\n"a, b",\nc,inf\n'
    assert to_csv([], Pair) == "name,value\n"
    assert from_csv("value,name\n,x\n", Pair) == [Pair("x", None)]
