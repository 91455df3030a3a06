from __future__ import annotations

import pytest

from polyphony.data import DataError, Options, outline


@pytest.mark.parametrize(
    ("name", "options", "counts", "shape", "classes"),
    [
        ("cifar10", Options(), (45_000, 5_000, 10_000), (3, 32, 32), 10),
        ("cifar100", Options(), (45_000, 5_000, 10_000), (3, 32, 32), 100),
        ("cifar100", Options(coarse=True), (45_000, 5_000, 10_000), (3, 32, 32), 20),
        ("tinyimagenet", Options(), (90_000, 10_000, 10_000), (3, 64, 64), 200),
        ("cifar10", Options(limit=500, resolution=16, test=300), (500, 5_000, 300), (3, 16, 16), 10),
    ],
)
def test_an_outline_has_the_papers_splits(name, options, counts, shape, classes):
    splits = outline(name, options)
    assert tuple(len(split) for split in (splits.train, splits.valid, splits.test)) == counts
    assert splits.train.images.shape[1:] == shape
    assert len(splits.classes) == classes == len(splits.train.labels.unique())
    assert splits.origin == "outline"


def test_an_outline_takes_no_memory_for_its_images():
    images = outline("cifar10").train.images
    assert images.untyped_storage().nbytes() == 3 * 32 * 32


def test_images_drawn_by_class_are_as_large_as_real_ones():
    images = outline("cifar10", Options(per_class=7)).train.images
    assert images.untyped_storage().nbytes() == 70 * 3 * 32 * 32


@pytest.mark.parametrize("name", ["cifar10", "tinyimagenet"])
def test_only_cifar100_has_superclasses(name):
    with pytest.raises(DataError, match=f"{name} has no coarse labels"):
        outline(name, Options(coarse=True))


def test_data_of_unknown_size_has_no_outline(tmp_path):
    with pytest.raises(DataError, match="is unknown until it is read"):
        outline("digits")
