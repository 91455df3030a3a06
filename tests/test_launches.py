"""No step asks more of a device than it did: the counts of benchmarks/results/launches.csv are a bar."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
with (BENCHMARKS / "results" / "launches.csv").open() as table:
    ROWS = {(int(row["depth"]), row["student"], row["way"]): row for row in csv.DictReader(table)}

FAST = [case for case in ROWS if case[0] == 8 and case[1] in ("batch_ensemble", "mimo", "dirichlet")]


@pytest.fixture(scope="module")
def launches() -> ModuleType:
    spec = importlib.util.spec_from_file_location("launches", BENCHMARKS / "launches.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["launches"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_student_and_way_is_counted(launches):
    assert list(ROWS) == list(launches.cases())


@pytest.mark.parametrize("case", FAST, ids=lambda case: " ".join(case[1:]))
def test_a_step_launches_no_more_than_it_did(launches, case):
    found = launches.launches(*case)
    for name in ("kernels", "copies", "waits"):
        assert getattr(found, name) <= int(ROWS[case][name]), name
