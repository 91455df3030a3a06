"""The description of a data set, its forms on disk, and what their readers return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyphony.data.files import DataError
from polyphony.data.options import Holdout, Options, stratified
from polyphony.data.splits import Split

LONGEST_NAME = 200  # characters of a class's name


@dataclass(frozen=True, eq=False)
class Contents:
    """What a reader returns: the names of the classes, and the parts ("train", "test", …).

    `origin` is "official" (all checksums agree), "unverified" (right counts, no known checksums), "altered"
    (right counts, other checksums), "subset" (fewer images), "own" (the user's data) or "regenerated"
    (corrupted images made by Polyphony).
    """

    classes: tuple[str, ...]
    parts: Mapping[str, Split]
    origin: str = "unverified"


@dataclass(frozen=True)
class Place:
    """One form of a data set on disk: a folder or file below the data root, and its reader.

    `checksums` maps paths below this place to the MD5 of the official file. The path "" is the place itself;
    for a .gz it is the MD5 of the unpacked file. `options` names the options that the reader uses. `cached`
    is False if reading is faster than caching.
    """

    path: str
    read: Callable[[Path, Options], Contents]
    checksums: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    cached: bool = True


@dataclass(frozen=True)
class Download:
    """An official file: its address, its path below the root, its MD5 and its size in bytes.

    `unpacked` is the folder that an archive unpacks to; other files are used as they are.
    """

    url: str
    path: str
    md5: str
    size: int
    unpacked: str | None = None


@dataclass(frozen=True)
class Dataset:
    """A data set with a name.

    `counts` has the official number of images of each part, `shape` is that of an image [c h w], `labels` is
    the number of classes, and `holdout` splits off validation images.
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
    """Labels [n] or [n 1] as int64 [n]; DataError unless they are `count` integers from 0 to classes − 1."""
    if labels.dtype.kind not in "iu" or labels.shape not in ((count,), (count, 1)):
        raise DataError(
            f"{where} holds {labels.dtype} {list(labels.shape)} instead of {count:,} labels; "
            "correct or replace it"
        )
    if count and not 0 <= labels.min() <= labels.max() < classes:
        wrong = labels.max() if labels.max() >= classes else labels.min()
        raise DataError(f"{where} has the label {wrong}, outside 0..{classes - 1}; correct or replace it")
    return torch.from_numpy(labels.reshape(-1).astype(np.int64))


def validated(contents: Contents, where: object, shape: tuple[int, ...] | None = None) -> Contents:
    """The contents; DataError unless all images have one shape [c h w] and all class names are printable."""
    for part, split in contents.parts.items():
        actual = tuple(split.images.shape[1:])
        shape = shape or actual
        if not len(split) or 0 in actual or actual[0] not in (1, 3) or actual != shape:
            expected = _sides(shape) if actual != shape else "pictures with 1 or 3 channels"
            raise DataError(
                f"{where} has {len(split):,} {part} images of {_sides(actual)} instead of {expected}; "
                "correct or replace it"
            )
    for name in contents.classes:
        if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise DataError(f"{where} has a class named {name!r}, which cannot be printed; rename it")
    return contents


def _sides(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
