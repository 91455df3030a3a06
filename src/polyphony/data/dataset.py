"""What a data set is: a row of facts, a function for every form it comes in, and what each of them gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyphony.data.errors import DataError
from polyphony.data.options import Holdout, Options, stratified
from polyphony.data.splits import Split

LONGEST_NAME = 200  # characters of a class's name


@dataclass(frozen=True, eq=False)
class Contents:
    """What a reader finds: the names of the classes, and the parts that are there ("train", "test", …).

    `origin` says how far the data is the official one: "official" (every checksum agrees), "unverified" (the
    right counts, no checksums known), "altered" (the right counts, other checksums), "subset" (fewer images),
    "own" (a user's), "regenerated" (corruptions made here).
    """

    classes: tuple[str, ...]
    parts: Mapping[str, Split]
    origin: str = "unverified"


@dataclass(frozen=True)
class Place:
    """One form a data set has on disk: a folder or file below the data root, and how that form is read.

    `checksums` gives the MD5 of official files by their path below the place ("" for the place itself; of a
    file that may be there as .gz, of what is in it). `heeds` names the options that change what is read.
    `cached` is False for what is quicker to read again than to keep a second time.
    """

    path: str
    read: Callable[[Path, Options], Contents]
    checksums: Mapping[str, str] = field(default_factory=dict)
    heeds: tuple[str, ...] = ()
    cached: bool = True


@dataclass(frozen=True)
class Download:
    """An official file: its address, where it goes below the root, its MD5 and its size in bytes.

    `unpacked` is the folder an archive makes below the root; a file without one is used as it is.
    """

    url: str
    path: str
    md5: str
    size: int
    unpacked: str | None = None


@dataclass(frozen=True)
class Dataset:
    """A known data set. `counts` are the official numbers of images by part, `shape` is [c h w] of each, and
    `labels` how many classes it has, where these are fixed.
    """

    name: str
    title: str
    homepage: str
    terms: str
    places: tuple[Place, ...]
    counts: Mapping[str, int]
    downloads: tuple[Download, ...] = ()
    holdout: Holdout = stratified
    shape: tuple[int, int, int] | None = None
    labels: int = 0


def as_labels(labels: np.ndarray[Any, np.dtype[Any]], count: int, classes: int, where: object) -> Tensor:
    """Labels [n] or [n 1] as int64 [n]; DataError unless there are `count`, whole numbers below `classes`."""
    if labels.dtype.kind not in "iu" or labels.shape not in ((count,), (count, 1)):
        raise DataError(
            f"{where} holds {labels.dtype} {list(labels.shape)} where {count:,} labels belong; "
            "correct or replace it"
        )
    if count and not 0 <= labels.min() <= labels.max() < classes:
        wrong = labels.max() if labels.max() >= classes else labels.min()
        raise DataError(f"{where} has the label {wrong}, outside 0..{classes - 1}; correct or replace it")
    return torch.from_numpy(labels.reshape(-1).astype(np.int64))


def sound(contents: Contents, where: object, shape: tuple[int, ...] | None = None) -> Contents:
    """The contents; DataError unless all images are of one size (`shape`, [c h w]) and all names print."""
    for part, split in contents.parts.items():
        found = tuple(split.images.shape[1:])
        shape = shape or found
        if not len(split) or 0 in found or found[0] not in (1, 3) or found != shape:
            belongs = f"some of {_sides(shape)} belong" if found != shape else "pictures belong"
            raise DataError(
                f"{where} has {len(split):,} {part} images of {_sides(found)} where {belongs}; "
                "correct or replace it"
            )
    for name in contents.classes:
        if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise DataError(f"{where} has a class named {name!r}, which cannot be printed; rename it")
    return contents


def _sides(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
