from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyphony.data import Augmentation, Split, batch_count, batches, epoch_steps, pixels
from polyphony.data.batches import crop, resized_crop


def numbered(n: int, channels: int = 3, side: int = 6) -> Split:
    images = torch.randint(1, 256, (n, channels, side, side), generator=torch.Generator().manual_seed(n))
    return Split(images.to(torch.uint8), torch.arange(n))


def every_crop_and_flip(image: torch.Tensor, pad: int) -> list[torch.Tensor]:
    """All (2 pad + 1)² windows of one padded image and their mirror images, by explicit loops."""
    height, width = image.shape[1:]
    out = []
    for dy in range(2 * pad + 1):
        for dx in range(2 * pad + 1):
            window = torch.zeros_like(image)
            for y in range(height):
                for x in range(width):
                    sy, sx = y + dy - pad, x + dx - pad
                    if 0 <= sy < height and 0 <= sx < width:
                        window[:, y, x] = image[:, sy, sx]
            mirrored = torch.stack([window[:, :, width - 1 - x] for x in range(width)], 2)
            out += [window, mirrored]
    return out


@settings(derandomize=True, max_examples=25)
@given(pad=st.integers(0, 3), height=st.integers(2, 6), width=st.integers(2, 6), seed=st.integers(0, 2**31))
def test_crop_is_the_window_of_the_zero_padded_image(pad: int, height: int, width: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (4, 2, height, width), generator=rng).to(torch.uint8)
    offsets = torch.randint(0, 2 * pad + 1, (2, 4), generator=rng)
    got = crop(images, pad, offsets)
    for i in range(4):
        dy, dx = offsets[:, i].tolist()
        expected = every_crop_and_flip(images[i], pad)[2 * (dy * (2 * pad + 1) + dx)]
        assert torch.equal(got[i], expected)


def test_a_crop_far_beyond_the_image_takes_no_more_memory_than_one_beside_it() -> None:
    images, pad = numbered(3).images, 10_000  # padded on all sides, an image would have 1.2 GB
    offsets = torch.tensor([[pad, 0, pad + 2], [pad, pad, pad - 7]])
    got = crop(images, pad, offsets)
    assert torch.equal(got[0], images[0])
    assert not got[1:].any()


def test_every_crop_and_flip_occurs_about_equally_often() -> None:
    image = numbered(1, channels=1, side=4).images
    augmented = Augmentation(pad=1, flip=True)(
        image.expand(18_000, -1, -1, -1), torch.Generator().manual_seed(0)
    )
    variants = torch.stack(every_crop_and_flip(image[0], 1))
    assert len({tuple(v.flatten().tolist()) for v in variants}) == 18
    counts = (augmented[:, None] == variants).flatten(2).all(2).sum(0)
    assert counts.sum() == 18_000
    chi_square = ((counts - 1000.0) ** 2 / 1000).sum()
    assert chi_square < 40.8  # the 0.999 quantile for 17 degrees of freedom


def test_the_empty_augmentation_is_the_identity_and_draws_nothing() -> None:
    images, rng = numbered(5).images, torch.Generator().manual_seed(3)
    before = rng.get_state()
    assert Augmentation(pad=0, flip=False)(images, rng) is images
    assert torch.equal(rng.get_state(), before)


def test_pixels_are_the_255ths_of_the_bytes_channels_last() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 4, 8, 8)
    x = pixels(images)
    assert x.is_contiguous(memory_format=torch.channels_last)
    expected = torch.tensor([i / 255 for i in range(256)], dtype=torch.float64)
    torch.testing.assert_close(x.flatten().double(), expected, rtol=1e-7, atol=1e-8)


@settings(derandomize=True, max_examples=30)
@given(n=st.integers(1, 40), size=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_an_epoch_visits_every_image_once_with_its_own_label(n: int, size: int, seed: int) -> None:
    split, rng = numbered(n), torch.Generator().manual_seed(seed)
    if size > n:
        with pytest.raises(ValueError, match=f"a batch of {size} images cannot be drawn from {n} images"):
            batches(split, size, Augmentation(0, False), rng)
        return
    drawn = list(batches(split, size, Augmentation(0, False), rng))
    sizes = [size] * (n // size) + [n % size]
    assert [len(y) for _, y in drawn] == [rows for rows in sizes if rows == size or rows > 1]
    assert len(drawn) == batch_count(n, size)
    labels = torch.cat([y for _, y in drawn])
    assert len(labels.unique()) == len(labels) == (n - 1 if n % size == 1 < size else n)
    x = torch.cat([x for x, _ in drawn])
    assert torch.equal((x * 255).round().to(torch.uint8), split.images[labels])


def test_equal_generators_give_equal_epochs_and_the_next_epoch_differs() -> None:
    split = numbered(64)

    def epochs(seed: int) -> list[torch.Tensor]:
        rng = torch.Generator().manual_seed(seed)
        return [torch.cat([x for x, _ in batches(split, 16, Augmentation(), rng)]) for _ in range(2)]

    first, again, other = epochs(1), epochs(1), epochs(2)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


def test_a_resized_crop_is_its_window_enlarged() -> None:
    images = numbered(3, side=8).images
    draws = torch.tensor([[0.0], [0.5], [1.0], [0.0]]).expand(4, 3)  # a quarter, square: right and top
    windows = resized_crop(images, 0.25, draws)[..., :7, 1:]  # its inner edges look beyond the window
    window = images[..., :4, 4:].float()
    expected = torch.nn.functional.interpolate(window, (8, 8), mode="bilinear").round()[..., :7, 1:]
    assert (windows.int() - expected.int()).abs().max() <= 1  # a half may be rounded either way
    full_window = torch.tensor([[1.0], [0.5], [0.3], [0.7]]).expand(4, 3)
    assert torch.equal(resized_crop(images, 0.25, full_window), images)


def test_a_resized_crop_does_not_change_the_draws_of_the_crop() -> None:
    images = numbered(5, side=8).images
    plain, cut = (Augmentation(pad=0, flip=False, area=area) for area in (1.0, 0.3))
    assert plain(images, torch.Generator()) is images
    crops = [cut(images, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(crops[0], crops[1])
    assert not torch.equal(crops[0], crops[2])
    assert crops[0].min() >= images.min()
    assert crops[0].max() <= images.max()


def partly(labelled: int, others: int) -> Split:
    """Images whose number is their only pixel; those from `labelled` on have no label."""
    images = torch.arange(labelled + others).to(torch.uint8).view(-1, 1, 1, 1)
    return Split(images, torch.where(torch.arange(labelled + others) < labelled, 0, -1))


def numbers(split: Split, size: int, share: float, seed: int = 0) -> list[list[int]]:
    """Which images are in each batch of an epoch."""
    rng = torch.Generator().manual_seed(seed)
    epoch = batches(split, size, Augmentation(0, False), rng, unlabelled=share)
    pairs = [((255 * x).round().long().flatten(), y) for x, y in epoch]
    assert all(torch.equal(split.labels[x], y) for x, y in pairs)
    return [x.tolist() for x, _ in pairs]


@pytest.mark.parametrize(
    ("labelled", "others", "size", "share", "own"),
    [(20, 50, 8, 0.5, 4), (21, 7, 10, 0.25, 8), (20, 3, 4, 0.9, 1), (9, 5, 4, 0.01, 3), (12, 4, 6, 2 / 3, 2)],
)
def test_an_epoch_has_every_labelled_image_once_and_the_share_of_unlabelled_ones(
    labelled, others, size, share, own
):
    split = partly(labelled, others)
    rows_of_batches = numbers(split, size, share)
    labelled_rows = [i for batch in rows_of_batches for i in batch if i < labelled]
    left_out = labelled % own == 1 and own > 1  # one labelled image alone makes no batch
    assert sorted(labelled_rows) == sorted(set(labelled_rows))
    assert len(labelled_rows) == labelled - left_out
    assert len(rows_of_batches) == epoch_steps(split, size, share) == batch_count(labelled, own)
    assert all(len(batch) == size for batch in rows_of_batches[:-1])
    unlabelled_rows = [i for batch in rows_of_batches for i in batch if i >= labelled]
    counts = [unlabelled_rows.count(i) for i in range(labelled, labelled + others)]
    assert max(counts) - min(counts) <= 1  # none is drawn again before all were


def test_draws_of_unlabelled_images_follow_from_the_generator():
    split = partly(20, 30)
    assert numbers(split, 8, 0.5) == numbers(split, 8, 0.5)
    assert numbers(split, 8, 0.5) != numbers(split, 8, 0.5, seed=1)


def test_unlabelled_images_do_not_change_the_order_of_labelled_ones():
    alone = numbers(partly(20, 0), 4, 0.0)
    assert [[i for i in batch if i < 20] for batch in numbers(partly(20, 30), 8, 0.5)] == alone


@pytest.mark.parametrize(("labelled", "others", "size"), [(20, 0, 8), (3, 9, 8), (20, 30, 1)])
def test_a_share_that_cannot_be_drawn_is_rejected(labelled, others, size):
    with pytest.raises(ValueError, match=r"with and .* without a label cannot be drawn"):
        numbers(partly(labelled, others), size, 0.5)
