"""Splits: uint8 images and int64 labels, in memory or memory-mapped."""

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
from polyphony.data.files import DataError, cache_root

NO_LABEL = -1  # label of an image that has none
SMALL = 1 << 28  # bytes; images up to this size are always kept in memory
CHUNK = 1 << 24  # bytes of images to process at a time
Resize = Literal["crop", "squash"]  # "crop" cuts out the centre first; both then resize by area averaging


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

    def __getitem__(self, rows: slice | Tensor) -> Split:
        if isinstance(rows, Tensor) and rows.dtype == torch.int64:  # 15 times as fast as indexing
            on_cpu = self.images.device.type == "cpu"
            out = image_buffer(len(rows), *self.images.shape[1:]) if on_cpu else None
            images = torch.index_select(self.images, 0, rows, out=out)
            return Split(images, self.labels.index_select(0, rows))
        return Split(self.images[rows], self.labels[rows])

    def joined(self, other: Split) -> Split:
        """These images followed by the others, which must have the same size."""
        images = image_buffer(len(self) + len(other), *self.images.shape[1:])
        images[: len(self)], images[len(self) :] = self.images, other.images
        return Split(images, torch.cat([self.labels, other.labels]))

    def without_labels(self) -> Split:
        """The same images, all with the label −1, which means no label."""
        return Split(self.images, torch.full_like(self.labels, NO_LABEL))

    def some(self, count: int) -> Split:
        """At most `count` images, evenly spaced, so that data sorted by class keeps its classes.

        Where classes take turns, a fixed random draw takes their place: see `needs_draw`.
        """
        if count >= len(self):
            return self
        rows = drawn_rows(len(self), count) if self.needs_draw(count) else spaced_rows(len(self), count)
        return self[rows.to(self.images.device)]

    def needs_draw(self, count: int) -> bool:
        """Whether `count` evenly spaced images have at most half of the classes of as many random ones.

        That is so where classes take turns: each tenth image of 0, 1, …, 9, 0, 1, … is a zero.
        """
        if count >= len(self):
            return False
        labels = self.labels.cpu()
        spaced, drawn = (labels[rows(len(self), count)].unique() for rows in (spaced_rows, drawn_rows))
        return 2 * len(spaced) <= len(drawn)

    @cached_property
    def statistics(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel, for pixels in [0, 1]: see `Normalize.set`."""
        values = torch.arange(256, dtype=torch.float64) / 255
        counts = torch.zeros(self.images.shape[1], 256, dtype=torch.int64)
        for chunk in self.images.split(max(1, CHUNK // math.prod(self.images.shape[1:]))):
            for count, channel in zip(counts, chunk.cpu().unbind(1), strict=True):
                count += channel.flatten().bincount(minlength=256)
        weights = counts.double() / counts.sum(1, keepdim=True)
        mean = weights @ values
        variance = weights @ values**2 - mean**2
        return mean.tolist(), variance.clamp_min(1e-12).sqrt().tolist()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of shapes, pixels and labels."""
        digest = hashlib.sha256(repr((tuple(self.images.shape), len(self.labels))).encode())
        digest.update(self.images.cpu().contiguous().numpy().data)
        digest.update(self.labels.cpu().contiguous().numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Splits:
    """The splits of a data set, the names of its classes, and its origin (`dataset.Contents`)."""

    name: str
    classes: tuple[str, ...]
    train: Split
    valid: Split
    test: Split
    origin: str = "own"
    resize: Resize = "crop"  # how images were resized
    unlabelled: Split | None = None  # images of the same size whose labels are all −1
    set_aside: tuple[str, ...] = ()  # parts split off from the training images


def spaced_rows(rows: int, count: int) -> Tensor:
    """`count` evenly spaced rows."""
    return torch.arange(count) * rows // count


def drawn_rows(rows: int, count: int) -> Tensor:
    """`count` random rows in their order, the same at each call."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(0))[:count].sort().values


def image_buffer(*shape: int) -> Tensor:
    """An uninitialised uint8 tensor for images: in memory, or mapped from a file if it is large.

    Large means more than a quarter of the memory, and more than 256 MiB. The file is unnamed, in the cache
    folder, and disappears with the tensor. Raises a DataError if the size is more than 16 times the memory,
    or if the disk is too small.
    """
    size, largest = math.prod(shape), 16 * memory()
    if size <= max(SMALL, memory() // 4):
        return torch.empty(shape, dtype=torch.uint8)
    try:
        if size > largest:
            raise OSError(f"{largest >> 30:,} GiB at most, for this machine's memory")
        return mapped(shape, cache_root())
    except OSError as error:
        sides = "×".join(map(str, shape[1:]))
        raise DataError(
            f"{shape[0]:,} images of {sides} need {size >> 30:,} GiB, which is too much ({error});"
            " use fewer or smaller images"
        ) from error


def mapped(shape: tuple[int, ...], folder: Path) -> Tensor:
    """A uint8 tensor in an unnamed file; OSError if the disk is too small."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(math.prod(shape))
        if hasattr(os, "posix_fallocate"):  # detects a full disk now, not in the middle of a write
            os.posix_fallocate(file.fileno(), 0, math.prod(shape))
        return torch.from_numpy(np.memmap(file, np.uint8, "r+", shape=shape))


def describe(tensor: Tensor) -> str:
    """A tensor's type and shape for a message: "float32 [3, 4]" """
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
