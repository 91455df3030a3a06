"""Options: how much of a data set is used, at which size. All choices are deterministic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from polyphony._util.settings import Count, Settings, Whole
from polyphony.data.files import DataError
from polyphony.data.splits import Split, image_buffer

LARGEST_SIDE = 8192  # pixels
CHUNK = 1024  # images at a time
LUMA = (19595, 38470, 7471)  # 65536ths of red, green and blue in grey


class Options(Settings):
    """How much of a data set to use. None means the data set's own default."""

    per_class: Count | None = None
    """Number of training images of every class (default: all)."""
    limit: Count | None = None
    """Number of training images (default: all)."""
    resolution: Annotated[Count, Field(le=LARGEST_SIDE)] | None = None
    """Side in pixels; images are resized to it by area averaging (default: not resized)."""
    valid: Count | None = None
    """Number of validation images; without such a split they are set aside (default: a tenth)."""
    test: Count | None = None
    """Number of test images; without such a split they are set aside (default: a fifth)."""
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] = 0
    """Seed of random splits and draws; ignored if the data set has fixed ones and `shuffle` is off."""
    shuffle: bool = False
    """Whether `seed` shuffles the training images first, so that each seed has other images."""
    coarse: bool = False
    """CIFAR-100 only: 20 superclasses as labels."""
    unlabelled: Annotated[str, Field(min_length=1)] | Count | None = None
    """Images without labels: a folder, an .npz, or a number of left-out training images."""
    channels: Literal[1, 3] | None = None
    """1 for grey images, 3 for colour (default: the channels of the files)."""


Holdout = Callable[[Tensor, int, int], tuple[Tensor, Tensor]]
"""(labels [n], number of rows to split off, seed) → (rows that stay, rows split off)"""


def last(labels: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Split off the last `count` rows: CIFAR's first 45,000 and last 5,000."""
    rows = torch.arange(len(labels))
    return rows[: len(rows) - count], rows[len(rows) - count :]


def last_of_each_class(labels: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Split off the last rows of every class, `count` in all: TinyImageNet's last 50 of each 500."""
    shares = apportion(torch.bincount(labels), count)
    from_the_end = rank_in_class(labels.flip(0)).flip(0)
    split_off = from_the_end < shares[labels]
    return torch.where(~split_off)[0], torch.where(split_off)[0]


def stratified(labels: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Split off `count` random rows, in proportion to the classes; both parts are shuffled."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    rest, split_off = last_of_each_class(labels[order], count, seed)
    return order[rest], order[split_off]


def apportion(counts: Tensor, total: int) -> Tensor:
    """Shares of `total` proportional to the counts, by largest remainder; they sum to total. [k] → [k]"""
    exact = counts.double() * total / counts.sum()
    shares = exact.floor().long()
    order = torch.argsort(exact - shares, descending=True, stable=True)
    shares[order[: total - int(shares.sum())]] += 1
    return shares


def rank_in_class(labels: Tensor) -> Tensor:
    """For each row, the number of earlier rows with the same label. [n] → [n]"""
    order = torch.argsort(labels, stable=True)
    starts = torch.cumsum(torch.bincount(labels), 0) - torch.bincount(labels)
    ranks = torch.empty_like(labels)
    ranks[order] = torch.arange(len(labels)) - starts[labels[order]]
    return ranks


def shuffled(split: Split, seed: int) -> Split:
    """The images in random order."""
    return split[torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))]


def first_of_each_class(split: Split, count: int) -> Split:
    """The first `count` images of every class, in the split's order."""
    return split[torch.where(rank_in_class(split.labels) < count)[0]]


def take_rows(split: Split, rows: Tensor) -> Split:
    """The rows of a split; consecutive rows are not copied."""
    if len(rows) and bool((rows.diff() == 1).all()):
        return split[int(rows[0]) : int(rows[-1]) + 1]
    return split[rows]


def first_lack_classes(labels: Tensor, count: int) -> bool:
    """Whether the first `count` rows lack classes because the rows are sorted by class.

    Sorted means: the rows of each class are together, and a class has two or more rows on average. In any
    other order, a few rows may lack a class by chance.
    """
    classes = len(labels.unique())
    is_sorted = 1 + int((labels.diff() != 0).sum()) == classes and len(labels) >= 2 * classes
    return is_sorted and len(labels[:count].unique()) < classes


def sample(split: Split, count: int, seed: int) -> Split:
    """The first `count` images; a stratified random draw of `count` if the first ones lack classes.

    Drawn images stay in the order of the split.
    """
    return take_rows(split, sample_rows(split.labels, count, seed))


def sample_rows(labels: Tensor, count: int, seed: int) -> Tensor:
    """The rows that `sample` takes."""
    if not first_lack_classes(labels, count):
        return torch.arange(min(count, len(labels)))
    _, drawn = stratified(labels, count, seed)
    return drawn.sort().values


def training_rows(labels: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """The rows that `per_class`, then `limit` select, and the rows that they leave out. [n] → [a], [n − a]

    `limit` selects as `sample` does. After a draw, the rows that it leaves out are in random order.
    """
    within = rank_in_class(labels) < (options.per_class or len(labels))
    rows, beyond = torch.where(within)[0], torch.where(~within)[0]
    limit = options.limit or len(rows)
    if first_lack_classes(labels[rows], limit):
        rest, drawn = stratified(labels[rows], limit, options.seed)
        return rows[drawn].sort().values, torch.cat([rows[rest], beyond])
    return rows[:limit], torch.cat([rows[limit:], beyond]).sort().values


def trim(split: Split, options: Options) -> Split:
    """The training split with `per_class`, then `limit` applied."""
    rows, _ = training_rows(split.labels, options)
    return split[rows] if options.per_class else take_rows(split, rows)


def left_without_labels(train: Split, options: Options) -> Split | None:
    """Some of the training images that the options leave out, with label −1; None if none are wanted.

    They are drawn as `sample` does. Raises a DataError if the options leave out too few images.
    """
    if not isinstance(options.unlabelled, int):
        return None
    _, rows = training_rows(train.labels, options)
    if len(rows) < options.unlabelled:
        raise DataError(
            f"{options.unlabelled:,} unlabelled images were asked for, but per_class and limit leave out"
            f" {len(rows):,} training images"
        )
    rows = rows[sample_rows(train.labels[rows], options.unlabelled, options.seed)]
    return converted(train[rows], options).without_labels()


def first_images(split: Split, count: int, what: str) -> Split:
    """The first `count` images; DataError if they lack classes because the images are sorted by class."""
    if count < 1:
        raise DataError(f"{count} {what} images are too few; take one or more")
    part = split[:count]
    if first_lack_classes(split.labels, count):
        raise DataError(
            f"the first {len(part):,} {what} images have only {len(part.labels.unique())} of the"
            f" {len(split.labels.unique())} classes, because the images are sorted by class; take all of them"
        )
    return part


def converted(split: Split, options: Options) -> Split:
    """The split in the options' resolution (area-averaged) and channels; unchanged if it has both already."""
    images, side, channels = split.images, options.resolution, options.channels
    if side is not None and images.shape[-2:] != (side, side):
        images = area_average(images, side, side)
    if channels is not None and images.shape[1] != channels:
        source, images = images, image_buffer(len(images), channels, *images.shape[2:])
        for chunk, target in zip(source.split(CHUNK), images.split(CHUNK), strict=True):
            target.copy_(with_channels(chunk, channels))
    return split if images is split.images else Split(images, split.labels)


def area_average(images: Tensor, height: int, width: int) -> Tensor:
    """Resize: a new pixel is the rounded mean over its area. uint8 [n c h w] → [n c height width]"""
    rows, columns = _overlaps(images.shape[-2], height), _overlaps(images.shape[-1], width)
    out = image_buffer(len(images), images.shape[1], height, width)
    largest = images.shape[1] * max(images.shape[2], height) * max(images.shape[3], width)
    step = max(1, min(1024, (1 << 26) // largest))  # bounds the float copies
    for start in range(0, len(images), step):
        chunk = rows @ images[start : start + step].float() @ columns.T
        out[start : start + step] = chunk.round_().clamp_(0, 255).to(torch.uint8)
    return out


def channels_first(images: Tensor) -> Tensor | None:
    """[n h w c], [n c h w] or grey [n h w] → [n c h w]; None if no axis has 1 or 3 channels."""
    if images.dim() == 3:
        return images[:, None]
    if images.dim() == 4 and images.shape[3] in (1, 3):
        return images.permute(0, 3, 1, 2)
    return images if images.dim() == 4 and images.shape[1] in (1, 3) else None


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Convert grey to colour, or colour to grey as Pillow does. [n 1|3 h w] → [n channels h w], same dtype"""
    if images.shape[1] == channels:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, channels, -1, -1)
    if channels != 1:
        raise DataError(f"images of {images.shape[1]} channels cannot be converted to {channels}")
    grey = torch.einsum("nchw,c->nhw", images.double(), torch.tensor(LUMA).double() / 65536)[:, None]
    return (grey + 0.5).floor().to(torch.uint8) if images.dtype == torch.uint8 else grey.to(images.dtype)


def _overlaps(length: int, side: int) -> Tensor:
    """The share of output cell i that input cell j covers; rows sum to one. → [side length]"""
    scale = length / side
    edges = torch.arange(side, dtype=torch.float64)[:, None] * scale
    cells = torch.arange(length, dtype=torch.float64)[None]
    covered = torch.minimum(edges + scale, cells + 1) - torch.maximum(edges, cells)
    return (covered.clamp_(min=0) / scale).float()


def holdout_size(n: int, share: int, count: int | None, what: str) -> int:
    """How many of n images to split off: `count`, or one in `share`. DataError if none would be left."""
    size = math.ceil(n / share) if count is None else count
    if size >= n:
        raise DataError(
            f"{size} {what} images were asked for, but there are only {n} images to take them from"
        )
    return size
