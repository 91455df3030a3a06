"""Augmented batches of a split; every operation works on the whole batch at once."""

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

    With an `area` below 1, a random window of at least that share of the image is first resized to the image.
    uint8 [b c h w] → uint8 [b c h w], on the device of the images. Every image has its own random offset and
    flip. `Augmentation(pad=0, flip=False)` returns its input and draws nothing.
    """

    pad: Annotated[Whole, Field(ge=0, le=10**4)] = 4
    """Zero padding before a random crop, in pixels."""
    flip: bool = True
    """Flip images horizontally, each with probability 1/2."""
    area: Annotated[Share, Field(gt=0)] = 1.0
    """Smallest share of the image in a random resized crop (default: 1, no such crop)."""

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
        """Random offsets y and x (if `pad`), and a random bit (if `flip`), for each image. → up to [3 n]"""
        offsets = [torch.randint(2 * self.pad + 1, (2, count), generator=rng)] if self.pad else []
        coins = [torch.randint(2, (1, count), generator=rng)] if self.flip else []
        return torch.cat(offsets + coins)


def crop(images: Tensor, pad: int, offsets: Tensor) -> Tensor:
    """Window (y, x) = offsets[:, i] of image i, zero-padded on all sides. [b c h w], [2 b] → [b c h w]"""
    height, width = images.shape[-2:]
    side = max(height, width)
    if pad > side:  # further out a window has only zeros, so more padding only takes memory
        pad, offsets = side, (offsets - pad).clamp(-side, side) + side
    padded = F.pad(images, (pad, pad, pad, pad))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: [b c 2p+1 2p+1 h w]
    return windows[torch.arange(len(images), device=images.device), :, offsets[0], offsets[1]]


def resized_crop(images: Tensor, area: float, draws: Tensor) -> Tensor:
    """A random window of each image, resized to the image (bilinear). uint8 [b c h w], [4 b] → [b c h w]

    `draws` are uniform in [0, 1). The window's share of the area is uniform from `area` to 1. Its aspect
    ratio, relative to the image's, is log-uniform from 3/4 to 4/3. Its position is uniform.
    """
    share, aspect = area + (1 - area) * draws[0], (4 / 3) ** (2 * draws[1] - 1)
    size = torch.stack([share * aspect, share / aspect]).sqrt().clamp(max=1)  # width, height
    centre = (2 * draws[2:] - 1) * (1 - size)
    affine = torch.cat([size.T.diag_embed(), centre.T[..., None]], -1)  # [b 2 3]
    grid = F.affine_grid(affine, list(images.shape), align_corners=False)
    windows = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return windows.round_().to(torch.uint8)


def flip(images: Tensor, coins: Tensor) -> Tensor:
    """Image i, flipped horizontally if coins[i] is 1. [b c h w], [b] → [b c h w]

    Makes both versions and selects rows, in a quarter of the time of selecting pixels.
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
    """Yield one shuffled epoch of (x float32 in [0, 1] [b c h w] channels last, y int64 [b]).

    An epoch has `epoch_steps` batches. All randomness comes from `rng`. `unlabelled` is the share of each
    batch that has no label (label −1); an epoch is then one pass over the labelled images. Raises a
    ValueError if the split has too few images for a batch.
    """
    order = _with_unlabelled(split, size, unlabelled, rng) if unlabelled else _order(split, size, rng)
    return (_batch(split[share(rows)], augment, rng, device) for rows in order)


def _order(split: Split, size: int, rng: torch.Generator) -> Sequence[Tensor]:
    """The rows of each batch of an epoch."""
    if not 0 < size <= len(split):
        raise ValueError(f"a batch of {size} images cannot be drawn from {len(split)} images")
    order = send(torch.randperm(len(split), generator=rng), split.images.device)
    return list(order.split(size)[: batch_count(len(split), size)])


def _with_unlabelled(split: Split, size: int, share: float, rng: torch.Generator) -> Sequence[Tensor]:
    """The rows of each batch, labelled ones first; unlabelled ones start over when all have been used."""
    has_label = split.labels >= 0
    labelled, unlabelled = has_label.nonzero()[:, 0], (~has_label).nonzero()[:, 0]
    count = labelled_rows(size, share)
    if count == size or count > len(labelled) or not len(unlabelled):
        raise ValueError(
            f"a batch of {count} images with and {size - count} without a label cannot be drawn from"
            f" {len(labelled)} and {len(unlabelled)}"
        )
    first = labelled[send(torch.randperm(len(labelled), generator=rng), labelled.device)].split(count)
    first = first[: batch_count(len(labelled), count)]
    sizes = [round(len(rows) * (size - count) / count) for rows in first]
    passes = -(-sum(sizes) // len(unlabelled))
    order = torch.cat([torch.randperm(len(unlabelled), generator=rng) for _ in range(passes)])
    second = unlabelled[send(order, unlabelled.device)][: sum(sizes)].split(sizes)
    return [torch.cat(rows) for rows in zip(first, second, strict=True)]


def labelled_rows(size: int, unlabelled: float) -> int:
    """How many rows of a batch have a label: all, or with a share `unlabelled` at least 1 and not all."""
    return size - min(max(1, round(unlabelled * size)), size - 1) if unlabelled else size


def epoch_steps(split: Split, size: int, unlabelled: float = 0.0) -> int:
    """Number of batches in an epoch over the labelled images."""
    images = int((split.labels >= 0).sum()) if unlabelled else len(split)
    return batch_count(images, labelled_rows(size, unlabelled))


def batch_count(images: int, size: int) -> int:
    """Number of batches in an epoch. The last may be smaller, but not a single image: BatchNorm needs two."""
    full, rest = divmod(images, size)
    return full + (rest > 1)


def _batch(
    batch: Split, augment: Augmentation, rng: torch.Generator, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    images, labels = send(batch.images, device), send(batch.labels, device)
    return pixels(augment(images, rng)), labels
