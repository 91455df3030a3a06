"""Augmented batches of a split that is one tensor; every operation is over the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from polyphony._util.settings import Settings, Share, Whole
from polyphony.compute.devices import send
from polyphony.compute.parallel import drawn, share
from polyphony.data.splits import Split


class Augmentation(Settings):
    """A random crop after zero padding of `pad` pixels, then a random horizontal flip.

    With an `area` below 1, a random window of at least that share of the image is resized first.
    uint8 [b c h w] → uint8 [b c h w], on the device of the images; one offset and one coin per image.
    `Augmentation(pad=0, flip=False)` returns its input and draws nothing.
    """

    pad: Annotated[Whole, Field(ge=0, le=10**4)] = 4
    """Zero padding before a random crop, in pixels."""
    flip: bool = True
    """Flip every second image horizontally."""
    area: Annotated[Share, Field(gt=0)] = 1.0
    """Smallest share of the image in a random resized crop; 1 for none."""

    def __call__(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """uint8 [b c h w] → uint8 [b c h w], augmented."""
        if self.area < 1:
            draws = drawn(lambda rows: torch.rand(4, rows, generator=rng), len(images), images.device, dim=1)
            images = resized_crop(images, self.area, draws)
        if not (self.pad or self.flip):
            return images
        draws = drawn(lambda rows: self.draw(rows, rng), len(images), images.device, dim=1)
        if self.pad:
            images = crop(images, self.pad, draws[:2])
        if self.flip:
            images = flip(images, draws[-1])
        return images

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """A random offset (y, x) and a coin for each image, as far as they are needed. [3 n]"""
        offsets = [torch.randint(2 * self.pad + 1, (2, count), generator=rng)] if self.pad else []
        coins = [torch.randint(2, (1, count), generator=rng)] if self.flip else []
        return torch.cat(offsets + coins)


def crop(images: Tensor, pad: int, offsets: Tensor) -> Tensor:
    """Window (y, x) = offsets[:, i] of image i, zero-padded on all sides. [b c h w], [2 b] → [b c h w]"""
    height, width = images.shape[-2:]
    side = max(height, width)
    if pad > side:  # more padding shows nothing and only takes memory
        pad, offsets = side, (offsets - pad).clamp(-side, side) + side
    padded = F.pad(images, (pad, pad, pad, pad))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: [b c 2p+1 2p+1 h w]
    return windows[torch.arange(len(images), device=images.device), :, offsets[0], offsets[1]]


def resized_crop(images: Tensor, area: float, draws: Tensor) -> Tensor:
    """A window of each image, resized to the image (bilinear). uint8 [b c h w], [4 b] in [0, 1) → [b c h w]

    Its share of the area is uniform from `area` to 1, the logarithm of its width over its height from that of
    3/4 to that of 4/3 in units of the image's sides, its place uniform.
    """
    share, aspect = area + (1 - area) * draws[0], (4 / 3) ** (2 * draws[1] - 1)
    size = torch.stack([share * aspect, share / aspect]).sqrt().clamp(max=1)  # width, height
    corner = (2 * draws[2:] - 1) * (1 - size)
    where = torch.cat([size.T.diag_embed(), corner.T[..., None]], -1)  # [b 2 3]
    grid = F.affine_grid(where, list(images.shape), align_corners=False)
    found = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return found.round_().to(torch.uint8)


def flip(images: Tensor, coins: Tensor) -> Tensor:
    """Image i mirrored left to right where coins[i] is 1. [b c h w], [b] → [b c h w]

    Makes both versions and selects rows, which costs a quarter of selecting pixels.
    """
    both = torch.cat([images, images.flip(-1)])
    return both.index_select(0, torch.arange(len(images), device=images.device) + len(images) * coins)


def pixels(images: Tensor) -> Tensor:
    """uint8 [b c h w] → float32 in [0, 1], channels last."""
    return images.contiguous(memory_format=torch.channels_last).float().div_(255)


def batches(
    split: Split,
    size: int,
    augment: Augmentation,
    rng: torch.Generator,
    device: torch.device | str = "cpu",
    unlabelled: float = 0.0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """One shuffled epoch of (x float32 in [0, 1] [b c h w] channels last, y int64 [b]).

    These are `epoch_steps` batches. All randomness comes from `rng`. With `unlabelled`, that share of each
    batch are images whose label is −1, and an epoch is one pass over the others.
    """
    order = _with_unlabelled(split, size, unlabelled, rng) if unlabelled else _order(split, size, rng)
    return (_batch(split[share(rows)], augment, rng, device) for rows in order)


def _order(split: Split, size: int, rng: torch.Generator) -> Sequence[Tensor]:
    """The rows of each batch of an epoch."""
    if not 0 < size <= len(split):
        raise ValueError(f"a batch of {size} cannot be drawn from {len(split)} images")
    order = send(torch.randperm(len(split), generator=rng), split.images.device)
    return list(order.split(size)[: batch_count(len(split), size)])


def _with_unlabelled(split: Split, size: int, share: float, rng: torch.Generator) -> Sequence[Tensor]:
    """The rows of each batch, labelled ones first; unlabelled ones start over when all have been used."""
    has_label = split.labels >= 0
    labelled, others = has_label.nonzero()[:, 0], (~has_label).nonzero()[:, 0]
    own = labelled_rows(size, share)
    if own == size or own > len(labelled) or not len(others):
        raise ValueError(
            f"a batch of {own} images with and {size - own} without a label cannot be drawn from"
            f" {len(labelled)} and {len(others)}"
        )
    ours = labelled[send(torch.randperm(len(labelled), generator=rng), labelled.device)].split(own)
    ours = ours[: batch_count(len(labelled), own)]
    counts = [round(len(rows) * (size - own) / own) for rows in ours]
    rounds = [torch.randperm(len(others), generator=rng) for _ in range(-(-sum(counts) // len(others)))]
    theirs = others[send(torch.cat(rounds), others.device)][: sum(counts)].split(counts)
    return [torch.cat(rows) for rows in zip(ours, theirs, strict=True)]


def labelled_rows(size: int, unlabelled: float) -> int:
    """How many rows of a batch have a label: at least one row has one, and at least one has none."""
    return size - min(max(1, round(unlabelled * size)), size - 1) if unlabelled else size


def epoch_steps(split: Split, size: int, unlabelled: float = 0.0) -> int:
    """Batches in an epoch over the labelled images."""
    images = int((split.labels >= 0).sum()) if unlabelled else len(split)
    return batch_count(images, labelled_rows(size, unlabelled))


def batch_count(images: int, size: int) -> int:
    """Batches in an epoch. The last may be smaller; a single image is left out, as BatchNorm needs two."""
    whole, rest = divmod(images, size)
    return whole + (rest > 1)


def _batch(
    batch: Split, augment: Augmentation, rng: torch.Generator, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    images, labels = send(batch.images, device), send(batch.labels, device)
    return pixels(augment(images, rng)), labels
