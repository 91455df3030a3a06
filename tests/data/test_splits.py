from __future__ import annotations

from statistics import fmean, pstdev

import pytest
import torch

from polyphony.data import Options, Split, Splits, load


def small() -> Split:
    images = torch.arange(5 * 12, dtype=torch.uint8).view(5, 3, 2, 2)
    return Split(images, torch.tensor([0, 1, 0, 2, 1]))


def test_fingerprints_are_equal_only_for_equal_data() -> None:
    split = small()
    assert split.fingerprint == small().fingerprint
    strided = Split(split.images.contiguous(memory_format=torch.channels_last), split.labels)
    assert strided.fingerprint == split.fingerprint
    other_pixel, other_label = split.images.clone(), split.labels.clone()
    other_pixel[4, 2, 1, 1] += 1
    other_label[0] = 1
    reshaped = split.images.view(5, 1, 3, 4)
    prints = {
        split.fingerprint,
        Split(other_pixel, split.labels).fingerprint,
        Split(split.images, other_label).fingerprint,
        Split(reshaped, split.labels).fingerprint,
        split[:4].fingerprint,
    }
    assert len(prints) == 5


def test_statistics_are_the_mean_and_deviation_of_each_channels_pixels() -> None:
    split = small()
    mean, std = split.statistics
    for channel in range(3):
        levels = [level / 255 for level in split.images[:, channel].flatten().tolist()]
        assert mean[channel] == pytest.approx(fmean(levels), rel=1e-12)
        assert std[channel] == pytest.approx(pstdev(levels), rel=1e-12)


def test_statistics_equal_those_of_earlier_versions_bit_for_bit() -> None:
    mean, std = load("digits", Options(per_class=20, valid=400, test=1000)).train.statistics
    assert torch.tensor([*mean, *std]).tolist() == [0.30446261167526245, 0.3751339614391327]


def test_the_deviation_of_constant_images_is_not_zero() -> None:
    flat = Split(torch.full((2, 1, 3, 3), 7, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    assert flat.statistics == ([pytest.approx(7 / 255)], [pytest.approx(1e-6)])


def test_arrays_of_a_users_own_are_not_called_official() -> None:
    part = small()
    assert Splits("mine", ("a", "b", "c"), part, part, part).origin == "own"


def test_rows_keep_their_labels() -> None:
    part = small()[torch.tensor([3, 0])]
    assert part.labels.tolist() == [2, 0]
    assert part.images[:, 0, 0, 0].tolist() == [36, 0]


@pytest.mark.parametrize(
    ("images", "labels", "sentence"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64), r"uint8 \[n c h w\], not float32"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), r"int64 \[2\]"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2), "not float32"),
    ],
)
def test_invalid_splits_are_rejected(images: torch.Tensor, labels: torch.Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Split(images, labels)


def test_some_images_of_sorted_data_have_every_class():
    labels = torch.arange(10).repeat_interleave(7)
    split = Split(torch.arange(70, dtype=torch.uint8).view(70, 1, 1, 1), labels)
    chosen = split.some(20)
    assert chosen.labels.bincount().tolist() == [2] * 10
    assert torch.equal(split.images[chosen.images.flatten().long()], chosen.images)
    assert split.some(70) is split
    assert split.some(1000) is split


def test_some_images_have_every_class_where_classes_take_turns():
    split = Split(torch.zeros(1000, 1, 1, 1, dtype=torch.uint8), torch.arange(1000) % 10)
    chosen = split.some(100)  # every tenth image is of class 0
    assert chosen.labels.bincount(minlength=10).min() > 0
    assert chosen.labels.equal(split.some(100).labels)


@pytest.mark.parametrize(
    ("labels", "count", "drawn"),
    [
        (torch.arange(1000) % 10, 250, True),  # evenly spaced images have five of ten classes
        (torch.arange(1000) % 10, 300, True),  # rows 0, 3, 6, 10, 13, …
        (torch.arange(1000) % 10, 333, False),  # rows 0, 3, 6, 9, 12, …
        (torch.arange(1000) // 100, 100, False),
        (torch.randint(100, (5000,), generator=torch.Generator().manual_seed(0)), 64, False),
        (torch.tensor([0] * 997 + [1, 2, 3]), 100, False),  # rare classes are no reason
        (torch.arange(10), 20, False),
    ],
)
def test_images_are_drawn_only_where_classes_take_turns(labels, count, drawn):
    split = Split(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels)
    assert split.needs_draw(count) is drawn
