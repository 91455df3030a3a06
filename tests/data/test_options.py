from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from polyphony._util.text import SettingError
from polyphony.data import DataError, Options, Split
from polyphony.data.options import (
    apportion,
    area_average,
    first_images,
    last,
    last_of_each_class,
    left_without_labels,
    rank_in_class,
    stratified,
    training_rows,
    trim,
)

labels_strategy = st.lists(st.integers(0, 4), min_size=2, max_size=60).map(torch.tensor)


def numbered(labels: torch.Tensor) -> Split:
    return Split(torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1), labels)


@given(labels=labels_strategy)
def test_rank_counts_the_earlier_rows_of_the_same_class(labels: torch.Tensor) -> None:
    expected = [labels[:i].tolist().count(label) for i, label in enumerate(labels.tolist())]
    assert rank_in_class(labels).tolist() == expected


@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(sum), share=st.floats(0, 1))
def test_shares_are_proportional_to_within_one_and_sum_to_the_total(counts: list[int], share: float) -> None:
    total = int(share * sum(counts))
    shares = apportion(torch.tensor(counts), total).tolist()
    assert sum(shares) == total
    for count, got in zip(counts, shares, strict=True):
        assert abs(got - count * total / sum(counts)) < 1
        assert 0 <= got <= count


@settings(derandomize=True)
@given(labels=labels_strategy, share=st.floats(0, 0.9), seed=st.integers(0, 100))
@pytest.mark.parametrize("holdout", [last, last_of_each_class, stratified])
def test_a_holdout_splits_all_rows_into_two_parts(
    holdout, labels: torch.Tensor, share: float, seed: int
) -> None:
    count = int(share * len(labels))
    rest, split_off = holdout(labels, count, seed)
    assert len(split_off) == count
    assert sorted([*rest.tolist(), *split_off.tolist()]) == list(range(len(labels)))


def test_cifars_holdout_is_the_last_rows() -> None:
    rest, split_off = last(torch.zeros(50_000, dtype=torch.int64), 5_000, 0)
    assert (rest[0], rest[-1], split_off[0], split_off[-1]) == (0, 44_999, 45_000, 49_999)


def test_tinyimagenets_holdout_is_the_last_fifty_of_every_five_hundred() -> None:
    labels = torch.arange(4).repeat_interleave(500)
    rest, split_off = last_of_each_class(labels, 200, 0)
    expected = [500 * k + i for k in range(4) for i in range(450, 500)]
    assert split_off.tolist() == expected
    assert sorted(rest.tolist() + expected) == list(range(2000))


def test_a_stratified_holdout_has_every_class_in_proportion_and_follows_the_seed() -> None:
    labels = torch.tensor([0] * 600 + [1] * 300 + [2] * 100)
    _, aside = stratified(labels, 100, 7)
    assert Counter(labels[aside].tolist()) == {0: 60, 1: 30, 2: 10}
    assert torch.equal(aside, stratified(labels, 100, 7)[1])
    assert set(aside.tolist()) != set(stratified(labels, 100, 8)[1].tolist())


def test_per_class_then_limit_keep_the_first() -> None:
    split = numbered(torch.tensor([0, 1, 0, 2, 1, 0, 2, 1]))
    assert trim(split, Options(per_class=2)).images.flatten().tolist() == [0, 1, 2, 3, 4, 6]
    assert trim(split, Options(per_class=2, limit=3)).images.flatten().tolist() == [0, 1, 2]
    assert trim(split, Options(limit=100)).images.flatten().tolist() == list(range(8))


@pytest.mark.parametrize(
    ("labels", "limit", "classes_of_the_first"),
    [
        (torch.arange(200).repeat_interleave(450), 5000, 12),  # TinyImageNet's order
        (torch.arange(200).repeat_interleave(450), 50_000, 112),
        (torch.arange(10).repeat_interleave(50), 30, 1),
        (torch.arange(2).repeat_interleave(50), 30, 1),
        (torch.tensor([0] * 40 + [1] * 900 + [2] * 60), 500, 2),
    ],
)
def test_a_limit_draws_from_data_sorted_by_class(labels, limit: int, classes_of_the_first: int) -> None:
    split = Split(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels)
    classes = len(labels.unique())
    message = rf"the first {limit:,} x images have only {classes_of_the_first} of the {classes} classes"
    with pytest.raises(DataError, match=message):
        first_images(split, limit, "x")
    rows, left_out = training_rows(labels, Options(limit=limit, seed=1))
    assert sorted([*rows.tolist(), *left_out.tolist()]) == list(range(len(labels)))
    assert rows.tolist() == sorted(rows.tolist())
    exact = labels.bincount() * limit / len(labels)
    assert (labels[rows].bincount() - exact).abs().max() < 1
    assert trim(split, Options(limit=limit, seed=1)).labels.equal(labels[rows])
    assert rows.equal(training_rows(labels, Options(limit=limit, seed=1))[0])
    assert not rows.equal(training_rows(labels, Options(limit=limit, seed=2))[0])
    assert len(labels[left_out[:limit]].unique()) == classes  # in random order, for `unlabelled`
    assert trim(split, Options(per_class=20)).labels.bincount().tolist() == [20] * classes


def test_per_class_then_a_limit_draw_from_the_first_of_each_class() -> None:
    labels = torch.arange(5).repeat_interleave(10)
    rows, left_out = training_rows(labels, Options(per_class=4, limit=10))
    assert labels[rows].bincount().tolist() == [2] * 5
    assert (rows % 10 < 4).all()
    assert sorted([*rows.tolist(), *left_out.tolist()]) == list(range(50))


def test_unlabelled_images_of_sorted_data_have_every_class() -> None:
    split = numbered(torch.arange(5).repeat_interleave(10))
    left_out = left_without_labels(split, Options(per_class=4, unlabelled=10))
    rows = left_out.images.flatten()
    assert split.labels[rows.long()].bincount().tolist() == [2] * 5
    assert (rows % 10 >= 4).all()
    assert left_out.labels.unique().tolist() == [-1]


@settings(derandomize=True)  # one order in very many would be sorted by class
@given(
    weights=st.lists(st.integers(1, 100), min_size=2, max_size=40),
    limit=st.integers(1, 300),
    seed=st.integers(0, 10_000),
)
def test_data_in_random_order_gives_its_first_images_even_if_they_lack_classes(
    weights: list[int], limit: int, seed: int
) -> None:
    labels = torch.arange(len(weights)).repeat_interleave(torch.tensor(weights))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    split = Split(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels)
    together = 1 + int((labels.diff() != 0).sum()) == len(weights)  # as few images may be by chance
    if not together or limit >= len(labels):
        assert trim(split, Options(limit=limit)).labels.tolist() == labels[:limit].tolist()


@settings(derandomize=True, max_examples=30)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    to=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    seed=st.integers(0, 99),
)
def test_area_average_is_the_mean_over_the_covered_area(
    height: int, width: int, to: tuple[int, int], seed: int
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    # enlarge by repetition until every target cell covers a whole number of equal sub-pixels
    fine = image.repeat(to[0], 0).repeat(to[1], 1).astype(np.float64)
    expected = fine.reshape(to[0], height, to[1], width).mean((1, 3))
    got = area_average(torch.from_numpy(image)[None, None], *to)[0, 0].numpy()
    assert np.abs(got - expected).max() <= 0.5 + 1e-4


def test_area_average_agrees_with_pillows_box_filter() -> None:
    images = np.random.default_rng(1).integers(0, 256, (5, 32, 32), dtype=np.uint8)
    got = area_average(torch.from_numpy(images)[:, None], 16, 16)[:, 0].numpy().astype(int)
    box = [Image.fromarray(image).resize((16, 16), Image.Resampling.BOX) for image in images]
    assert np.abs(got - np.stack([np.asarray(one) for one in box])).max() <= 1  # Pillow rounds twice


@pytest.mark.parametrize("name", ["per_class", "limit", "resolution", "valid", "test"])
def test_an_option_below_one_is_rejected_by_name(name: str) -> None:
    with pytest.raises(SettingError, match=f"{name} must be greater than 0, not 0"):
        Options(**{name: 0})
