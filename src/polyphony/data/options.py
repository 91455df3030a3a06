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
from polyphony.data.splits import Split, room

LARGEST_SIDE = 8192  # pixels
CHUNK = 1024  # images at a time
LUMA = (19595, 38470, 7471)  # 65536ths of red, green and blue in grey


class Options(Settings):
    """How much of a data set to use. None leaves a part as the data set's own rule has it."""

    per_class: Count | None = None
    """Number of training images of every class (default: all)."""
    limit: Count | None = None
    """Number of training images (default: all)."""
    resolution: Annotated[Count, Field(le=LARGEST_SIDE)] | None = None
    """Side of the images in pixels; they are area-averaged to it (default: as they are)."""
    valid: Count | None = None
    """Number of validation images; without such a split they are set aside (default: a tenth)."""
    test: Count | None = None
    """Number of test images; without such a split they are set aside (default: a fifth)."""
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] = 0
    """Seed of the split, if the data set has no fixed one."""
    coarse: bool = False
    """CIFAR-100 only: 20 superclasses as labels."""
    unlabelled: Annotated[str, Field(min_length=1)] | Count | None = None
    """Images without labels: a folder, an .npz, or a number of left-out training images."""
    channels: Literal[1, 3] | None = None
    """1 for grey images, 3 for colour (default: as they are read)."""


Holdout = Callable[[Tensor, int, int], tuple[Tensor, Tensor]]
"""(labels [n], how many to split off, seed) → (rows that stay, rows split off)"""


def last(labels: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Split off the last `count` rows: CIFAR's first 45,000 and last 5,000."""
    rows = torch.arange(len(labels))
    return rows[: len(rows) - count], rows[len(rows) - count :]


def last_of_each_class(labels: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Split off the last rows of every class, `count` in all: TinyImageNet's last 50 of each 500."""
    shares = apportion(torch.bincount(labels), count)
    from_the_end = rank_in_class(labels.flip(0)).flip(0)
    aside = from_the_end < shares[labels]
    return torch.where(~aside)[0], torch.where(aside)[0]


def stratified(labels: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Split off `count` random rows, in proportion to the classes; both parts are shuffled."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    kept, aside = last_of_each_class(labels[order], count, seed)
    return order[kept], order[aside]


def apportion(counts: Tensor, total: int) -> Tensor:
    """Shares of `total` proportional to the counts, by largest remainder; they sum to total. [k] → [k]"""
    exact = counts.double() * total / counts.sum()
    shares = exact.floor().long()
    order = torch.argsort(exact - shares, descending=True, stable=True)
    shares[order[: total - int(shares.sum())]] += 1
    return shares


def rank_in_class(labels: Tensor) -> Tensor:
    """How many earlier rows have the same label. [n] → [n]"""
    order = torch.argsort(labels, stable=True)
    starts = torch.cumsum(torch.bincount(labels), 0) - torch.bincount(labels)
    ranks = torch.empty_like(labels)
    ranks[order] = torch.arange(len(labels)) - starts[labels[order]]
    return ranks


def first_of_each_class(split: Split, count: int) -> Split:
    """The first `count` images of every class, in the split's order."""
    return split[torch.where(rank_in_class(split.labels) < count)[0]]


def trim(split: Split, options: Options) -> Split:
    """The training split with `per_class`, then `limit` applied."""
    if options.per_class is not None:
        split = first_of_each_class(split, options.per_class)
    if options.limit is not None:
        split = first_images(split, options.limit, "training", "use per_class instead of limit")
    return split


def left_out(split: Split, options: Options) -> Tensor:
    """The rows of the training split that `trim` leaves out. → [n]"""
    kept = rank_in_class(split.labels) < (options.per_class or len(split))
    kept &= kept.cumsum(0) <= (options.limit or len(split))
    return torch.where(~kept)[0]


def left_without_labels(train: Split, options: Options) -> Split | None:
    """The first training images that the options leave out, with label −1; None if none are wanted."""
    if not isinstance(options.unlabelled, int):
        return None
    rows = left_out(train, options)
    if len(rows) < options.unlabelled:
        raise DataError(
            f"{options.unlabelled:,} unlabelled images were asked for, but per_class and limit leave out"
            f" {len(rows):,} training images"
        )
    return converted(train[rows[: options.unlabelled]], options).without_labels()


def first_images(split: Split, count: int, what: str, advice: str) -> Split:
    """The first `count` images; DataError with the advice if they lack classes because of the images' order.

    This happens if the images of each class are together, two or more of a class on average. In another
    order a few images may lack a class.
    """
    if count < 1:
        raise DataError(f"{count} {what} images are none; take one or more")
    part = split[:count]
    classes, kept = len(split.labels.unique()), len(part.labels.unique())
    in_order_of_class = 1 + int((split.labels.diff() != 0).sum()) == classes
    if kept < classes and in_order_of_class and len(split) >= 2 * classes:
        raise DataError(
            f"the first {len(part):,} {what} images are of {kept} of the {classes} classes only, "
            f"because the images are in the order of their classes; {advice}"
        )
    return part


def converted(split: Split, options: Options) -> Split:
    """The split's images in the options' resolution (area-averaged) and channels; itself if equal."""
    images, side, channels = split.images, options.resolution, options.channels
    if side is not None and images.shape[-2:] != (side, side):
        images = area_average(images, side, side)
    if channels is not None and images.shape[1] != channels:
        found, images = images, room(len(images), channels, *images.shape[2:])
        for some, into in zip(found.split(CHUNK), images.split(CHUNK), strict=True):
            into.copy_(with_channels(some, channels))
    return split if images is split.images else Split(images, split.labels)


def area_average(images: Tensor, height: int, width: int) -> Tensor:
    """Every pixel is the mean over the area it covers, rounded. uint8 [n c h w] → [n c height width]"""
    rows, columns = _overlaps(images.shape[-2], height), _overlaps(images.shape[-1], width)
    out = room(len(images), images.shape[1], height, width)
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
    """Grey as colour, or colour as grey as Pillow has it. [n 1|3 h w] → [n channels h w], of the same type"""
    if images.shape[1] == channels:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, channels, -1, -1)
    if channels != 1:
        raise DataError(f"images of {images.shape[1]} channels cannot be brought to {channels}")
    grey = torch.einsum("nchw,c->nhw", images.double(), torch.tensor(LUMA).double() / 65536)[:, None]
    return (grey + 0.5).floor().to(torch.uint8) if images.dtype == torch.uint8 else grey.to(images.dtype)


def _overlaps(length: int, side: int) -> Tensor:
    """[side length]: the share of output cell i that input cell j covers; rows sum to one."""
    scale = length / side
    edges = torch.arange(side, dtype=torch.float64)[:, None] * scale
    cells = torch.arange(length, dtype=torch.float64)[None]
    covered = torch.minimum(edges + scale, cells + 1) - torch.maximum(edges, cells)
    return (covered.clamp_(min=0) / scale).float()


def held_out(n: int, share: int, asked: int | None, what: str) -> int:
    """`asked`, or one in `share` of n images; DataError if none of them would be left."""
    count = math.ceil(n / share) if asked is None else asked
    if count >= n:
        raise DataError(
            f"{count} {what} images were asked for, but there are only {n} images to take them from"
        )
    return count
