"""The samples of a run: written once, limited in size, replaced for other data."""

from __future__ import annotations

import pytest
import torch

from polyphony import Split, Splits
from polyphony.runs import samples
from polyphony.runs.samples import keep_samples, read_samples
from polyphony.runs.store import FileError


def splits(count: int, side: int = 4) -> Splits:
    def split(many: int) -> Split:
        images = torch.randint(0, 256, (many, 1, side, side), dtype=torch.uint8)
        return Split(images, torch.arange(many) % 3)

    return Splits("own", ("a", "b", "c"), split(count), split(count // 2), split(count))


def test_samples_are_read_back_as_written(tmp_path):
    original = splits(30)
    keep_samples(tmp_path, original, {"train": "x"})
    samples_read = read_samples(tmp_path)
    for name in ("train", "valid", "test"):
        assert getattr(samples_read, name).fingerprint == getattr(original, name).fingerprint


def test_samples_are_limited_by_count_and_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "MAX_BYTES", 16 * 100)
    keep_samples(tmp_path, splits(700), {})
    assert [len(getattr(read_samples(tmp_path), name)) for name in ("train", "valid", "test")] == [100] * 3


def test_samples_of_other_data_are_replaced(tmp_path):
    keep_samples(tmp_path, splits(9), {"train": "x"})
    before = read_samples(tmp_path).train.fingerprint
    keep_samples(tmp_path, splits(9), {"train": "x"})
    assert read_samples(tmp_path).train.fingerprint == before
    keep_samples(tmp_path, splits(9), {"train": "y"})
    assert read_samples(tmp_path).train.fingerprint != before


def test_an_early_run_has_none_and_a_damaged_file_is_one_sentence(tmp_path):
    assert read_samples(tmp_path) is None
    keep_samples(tmp_path, splits(9), {})
    path = tmp_path / samples.FILE
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(FileError, match="is damaged"):
        read_samples(tmp_path)
