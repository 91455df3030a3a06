"""What every reader's result must be, whatever file it came from: the checks that no reader repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyphony.data.dataset import Contents
from polyphony.data.errors import DataError

LONGEST_NAME = 200  # characters of a class's name


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
