from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polyphony.data import DataError, Options, load, outline
from polyphony.data.options import training_rows, trim


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Grey pictures of several sizes at several depths, and files that are none of them."""
    folder = tmp_path / "camera"
    for k, (name, side) in enumerate({"a.png": 8, "x/b.png": 8, "x/y/c.png": 16}.items()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (side, side), 40 * k).save(folder / name)
    (folder / "notes.txt").write_text("no picture")
    (folder / ".hidden.png").write_bytes(b"no picture")
    return folder


def test_all_pictures_of_a_folder_come_in_the_training_images_size(pictures: Path) -> None:
    splits = load("digits", Options(unlabelled=str(pictures)))
    assert splits.unlabelled.images.shape == (3, 1, 8, 8)
    assert splits.unlabelled.images[:, 0, 0, 0].tolist() == [0, 40, 80]
    assert splits.unlabelled.labels.tolist() == [-1] * 3
    assert splits.train.fingerprint == load("digits").train.fingerprint
    small = load("digits", Options(unlabelled=str(pictures), resolution=4))
    assert small.unlabelled.images.shape == (3, 1, 4, 4)


def test_an_added_picture_is_read(pictures: Path) -> None:
    before = load("digits", Options(unlabelled=str(pictures))).unlabelled
    Image.new("L", (8, 8), 200).save(pictures / "z.png")
    after = load("digits", Options(unlabelled=str(pictures))).unlabelled
    assert (len(before), len(after)) == (3, 4)
    assert before.fingerprint != after.fingerprint


def test_labels_of_an_npz_are_optional_and_ignored(tmp_path: Path) -> None:
    images = np.arange(5 * 8 * 8, dtype=np.uint8).reshape(5, 8, 8)
    np.savez(tmp_path / "a.npz", images=images)
    np.savez(tmp_path / "b.npz", images=images, labels=np.full(5, 99))
    np.savez(tmp_path / "c.npz", images=np.repeat(images[..., None], 3, -1))
    for name in "abc":
        split = load("digits", Options(unlabelled=str(tmp_path / f"{name}.npz"))).unlabelled
        assert torch.equal(split.images, torch.from_numpy(images)[:, None])
        assert split.labels.tolist() == [-1] * 5


@pytest.mark.parametrize("options", [{"limit": 100}, {"per_class": 7}, {"per_class": 30, "limit": 100}])
def test_a_number_takes_training_images_that_are_left_out(options) -> None:
    train = load("digits").train
    splits = load("digits", Options(unlabelled=50, **options))
    used = {image.numpy().tobytes() for image in splits.train.images}
    _, rows = training_rows(train.labels, Options(**options))
    assert torch.equal(splits.unlabelled.images, train.images[rows[:50]])
    assert torch.equal(splits.train.images, trim(train, Options(**options)).images)
    assert len(rows) + len(splits.train) == len(train)
    assert sum(image.numpy().tobytes() in used for image in splits.unlabelled.images) == 0
    there = outline("cifar10", Options(unlabelled=50, **options)).unlabelled
    assert there.images.shape == (50, 3, 32, 32)


def test_by_default_there_are_no_unlabelled_images() -> None:
    assert load("digits").unlabelled is None


def test_errors_of_unlabelled_images_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "other.npz", pictures=np.zeros((2, 8, 8), np.uint8))
    for source, words in {
        str(tmp_path / "nowhere"): "is not a folder or an .npz file",
        str(tmp_path / "empty"): "holds no pictures",
        str(tmp_path / "other.npz"): "it needs the array 'images'",
    }.items():
        with pytest.raises(DataError, match=words):
            load("digits", Options(unlabelled=source))
    with pytest.raises(DataError, match=r"1,000,000 unlabelled images were asked for, but .* leave out 0"):
        load("digits", Options(unlabelled=10**6))
    with pytest.raises(ValueError, match="unlabelled must be greater than 0"):
        Options(unlabelled=0)
