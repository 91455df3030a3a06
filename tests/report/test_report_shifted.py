"""Scores on corrupted images, and when the paper's numbers are beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from polyphony.report import Run
from polyphony.report.paper import PaperExperiments
from polyphony.report.score_tables import corrupted_tables
from polyphony.report.tables import PageTable
from polyphony.runs.store import StoreError

PAPER = PaperExperiments(("cifar10-resnet32-be4",), "")
IMAGES = 10_000


@pytest.fixture
def corrupted(full_run: Path, maker: Any) -> Path:
    """A run on all corrupted images of the publication."""
    rename(full_run, "digits-c", "cifar10-c")
    for kind in ("fog", "blur", "noise"):
        for severity in (1, 2, 3):
            predicted(full_run, maker, f"cifar10-c-{kind}-{severity}", IMAGES)
    return full_run


def rename(folder: Path, old: str, new: str) -> None:
    path = folder / "analysis" / "corrupted.csv"
    path.write_text(path.read_text().replace(old, new))


def predicted(folder: Path, maker: Any, name: str, images: int) -> None:
    maker.labels = np.zeros(images, dtype=np.int64)
    maker.save(folder, "teachers", f"corrupted-{name}", np.zeros((1, images, 2), dtype=np.float32))


@pytest.fixture(autouse=True)
def of_the_paper(monkeypatch):
    """Makes every run count as one of the paper's experiments."""
    monkeypatch.setattr("polyphony.report.paper_tables.experiments_of", lambda recipe: PAPER)


def table(folder: Path) -> PageTable:
    (table,) = corrupted_tables(Run.open(folder))
    return table


def papers(folder: Path) -> set[str]:
    return {cell.paper for row in table(folder).rows for cell in row} - {""}


def test_scores_are_means_over_all_corruptions_and_severities(corrupted: Path):
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table(corrupted).rows}
    # 0.2 × severity + 0.1 × place + 0.01 × seed, for severities 1 to 3, places 0 to 2, seeds 0 and 1
    assert rows["teachers"] == ["70.00", "0.500", "0.100", "0.050"]
    assert rows["kd"] == ["70.00 ± 0.00", "0.505 ± 0.007", "0.100 ± 0.000", "0.050 ± 0.000"]


def test_the_papers_numbers_are_beside_scores_on_all_published_images(corrupted: Path):
    assert "1.485 ± 0.051" in papers(corrupted)


def test_the_papers_numbers_are_not_beside_regenerated_images(corrupted: Path, maker: Any):
    for path in (corrupted / "predictions" / "teachers").glob("corrupted-*"):
        path.rename(path.with_name(path.name.replace("cifar10-c", "cifar10-c-regenerated")))
    rename(corrupted, "cifar10-c", "cifar10-c-regenerated")
    assert papers(corrupted) == set()


def test_the_papers_numbers_are_not_beside_a_part_of_the_images(corrupted: Path, maker: Any):
    predicted(corrupted, maker, "cifar10-c-fog-2", 500)
    assert papers(corrupted) == set()


def test_the_papers_numbers_are_not_beside_an_unknown_number_of_images(corrupted: Path):
    (corrupted / "predictions" / "teachers" / "corrupted-cifar10-c-fog-2.safetensors").unlink()
    assert papers(corrupted) == set()


def test_unreadable_predictions_raise_one_sentence(corrupted: Path):
    path = corrupted / "predictions" / "teachers" / "corrupted-cifar10-c-fog-2.safetensors"
    for tensors in ({"logits": np.zeros((3, 4), np.float32)}, {"other": np.zeros(3, np.float32)}):
        save_file(tensors, path)
        with pytest.raises(StoreError, match=r"fog-2\.safetensors is damaged"):
            table(corrupted)
    path.write_bytes(b"")
    with pytest.raises(StoreError, match=r"fog-2\.safetensors is damaged"):
        table(corrupted)
