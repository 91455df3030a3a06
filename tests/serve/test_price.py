"""What the models of a run cost: every model has its milliseconds and bytes, equal networks the same."""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from polyphony.runs.rows import Latency
from polyphony.runs.run import Run
from polyphony.serve import price
from polyphony.serve.export import ExportError, export_student
from polyphony.serve.load import load_student


@pytest.fixture(autouse=True)
def measured_once(monkeypatch):
    monkeypatch.setattr(price, "latencies", lambda works: {name: 1.0 + len(name) for name in works})


def opened_with(run: Path, *methods: str) -> Run:
    """The run with a few of its methods, which is quicker."""
    opened = Run.open(run)
    vars(opened)["methods"] = list(methods)  # where a cached property keeps its value
    return opened


def by_model(rows: list[Latency], batch: int) -> dict[str, Latency]:
    return {row.model: row for row in rows if row.batch == batch}


def test_every_model_has_the_bytes_of_its_exported_file(run: Path, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    opened = opened_with(run, "be")
    rows = price.measure_prices(opened)
    assert [(row.batch, row.model) for row in rows] == [(b, m) for b in (1, 64) for m in opened.models]
    prices = by_model(rows, 1)
    student = load_student(run, "be")
    images = price.random_images(3, student.description.shape)
    export_student(student, tmp_path / "student.onnx", images)
    alone = (tmp_path / "student.onnx").stat().st_size
    assert prices["be"].bytes == pytest.approx(alone, abs=200)  # its description differs
    assert prices["teachers"].bytes == opened.members * prices["best teacher"].bytes
    assert all(row.runtime.startswith("onnxruntime ") and row.threads == 1 for row in rows)


def test_a_run_that_cannot_be_exported_is_measured_in_pytorch(run: Path, monkeypatch):
    def refuse(*_: object) -> None:
        raise ExportError("no")

    monkeypatch.setattr(price, "export_student", refuse)
    prices = by_model(price.measure_prices(opened_with(run, "be", "mimo")), 64)
    assert {row.runtime.split()[0] for row in prices.values()} == {"PyTorch"}
    weights = load_file(run / "teachers" / "0" / "weights.safetensors").values()
    assert prices["best teacher"].bytes == sum(each.nbytes for each in weights)


def test_prices_are_measured_once_a_machine(run: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # PyTorch is quicker
    run = shutil.copytree(run, tmp_path / "run")
    path = price.write_prices(run)
    with path.open() as file:
        assert {row["model"] for row in csv.DictReader(file)} == set(Run.open(run).models)
    before = path.stat().st_ino
    assert price.write_prices(run).stat().st_ino == before
    monkeypatch.setattr(price, "processor", lambda: "another")
    assert price.write_prices(run).stat().st_ino != before
