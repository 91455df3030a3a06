"""A data set as it is used: uint8 images and int64 labels, whole, in memory or mapped from a file."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from polyphony._util.files import memory
from polyphony.data.errors import DataError
from polyphony.data.files import cache_root

UNLABELLED = -1  # the label of an image without one
SMALL = 1 << 28  # bytes of images that any machine has memory for
CHUNK = 1 << 24  # bytes of images that are counted at a time
Resize = Literal["crop", "squash"]  # to the shape wanted at the centre first, or not; then area-averaged


@dataclass(frozen=True, eq=False)
class Split:
    """Images uint8 [n c h w] with labels int64 [n]."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise ValueError(f"images must be uint8 [n c h w], not {describe(self.images)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(f"labels must be int64 [{len(self.images)}], not {describe(self.labels)}")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, which: slice | Tensor) -> Split:
        if isinstance(which, Tensor) and which.dtype == torch.int64:  # copies rows whole: 15 times as fast
            out = room(len(which), *self.images.shape[1:]) if self.images.device.type == "cpu" else None
            images = torch.index_select(self.images, 0, which, out=out)
            return Split(images, self.labels.index_select(0, which))
        return Split(self.images[which], self.labels[which])

    def joined(self, other: Split) -> Split:
        """These images, then the others, which have the same size."""
        images = room(len(self) + len(other), *self.images.shape[1:])
        images[: len(self)], images[len(self) :] = self.images, other.images
        return Split(images, torch.cat([self.labels, other.labels]))

    def some(self, count: int) -> Split:
        """At most `count` images, evenly spaced: of data in the order of its classes, some of each."""
        if count >= len(self):
            return self
        return self[torch.arange(count, device=self.images.device) * len(self) // count]

    @cached_property
    def statistics(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of the pixels in [0, 1], one number a channel: for `Normalize.set`."""
        values = torch.arange(256, dtype=torch.float64) / 255
        counts = torch.zeros(self.images.shape[1], 256, dtype=torch.int64)
        for some in self.images.split(max(1, CHUNK // math.prod(self.images.shape[1:]))):
            for count, channel in zip(counts, some.cpu().unbind(1), strict=True):
                count += channel.flatten().bincount(minlength=256)
        weights = counts.double() / counts.sum(1, keepdim=True)
        mean = weights @ values
        variance = weights @ values**2 - mean**2
        return mean.tolist(), variance.clamp_min(1e-12).sqrt().tolist()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of shapes, pixels and labels: equal exactly where the data is equal."""
        digest = hashlib.sha256(repr((tuple(self.images.shape), len(self.labels))).encode())
        digest.update(self.images.cpu().contiguous().numpy().data)
        digest.update(self.labels.cpu().contiguous().numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Splits:
    """The three splits of one data set, the names of its classes, and where it comes from."""

    name: str
    classes: tuple[str, ...]
    train: Split
    valid: Split
    test: Split
    origin: str = "own"  # every reader of official files says what it found
    resize: Resize = "crop"  # how images came to their size
    unlabelled: Split | None = None  # images of the same size whose labels are all −1
    set_aside: tuple[str, ...] = ()  # parts that were taken from the training images


def room(*shape: int) -> Tensor:
    """A tensor for uint8 images, yet to be filled: in memory, or mapped from a file where it is large.

    That is from a quarter of the memory on, or 256 MiB if that is more. The file is in the cache folder, has
    no name, and is gone with the tensor. DataError for more than sixteen times the memory, or than the disk
    has place for.
    """
    size, most = math.prod(shape), 16 * memory()
    if size <= max(SMALL, memory() // 4):
        return torch.empty(shape, dtype=torch.uint8)
    try:
        if size > most:
            raise OSError(f"{most >> 30:,} GiB at most, for this machine's memory")
        return mapped(shape, cache_root())
    except OSError as error:
        sides = "×".join(map(str, shape[1:]))
        raise DataError(
            f"{shape[0]:,} images of {sides} take {size >> 30:,} GiB, for which there is no place ({error});"
            " take fewer or smaller ones"
        ) from error


def mapped(shape: tuple[int, ...], folder: Path) -> Tensor:
    """A uint8 tensor in a file without a name; OSError where the disk has no place for it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(math.prod(shape))
        if hasattr(os, "posix_fallocate"):  # a full disk is noticed now, not amid a write
            os.posix_fallocate(file.fileno(), 0, math.prod(shape))
        return torch.from_numpy(np.memmap(file, np.uint8, "r+", shape=shape))


def describe(tensor: Tensor) -> str:
    """A tensor's type and shape in words, for a message. "float32 [3, 4]" """
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
