"""The demo's images are those of Fashion-MNIST that its docstring names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyphony.data import MissingDataError, Options, load


def test_the_demo_needs_no_data_folder(tmp_path: Path) -> None:
    splits = load("fashion-small", root=tmp_path / "empty")
    assert [len(split) for split in (splits.train, splits.valid, splits.test)] == [4000, 2000, 5000]
    assert splits.train.images.shape[1:] == (1, 14, 14)
    assert splits.classes[6] == "Shirt"
    for split in (splits.train, splits.valid, splits.test):
        assert int(split.labels.bincount(minlength=10).min()) > len(split) / 20


def test_the_demos_images_are_the_official_ones_area_averaged() -> None:
    options = Options(limit=4000, valid=2000, test=5000, resolution=14, seed=7)
    try:
        official = load("fashion-mnist", options)
    except MissingDataError:
        pytest.skip("the official Fashion-MNIST is not on this machine")
    small = load("fashion-small")
    for part in ("train", "valid", "test"):
        ours, theirs = getattr(small, part), getattr(official, part)
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.labels, theirs.labels)
    assert small.classes == official.classes
