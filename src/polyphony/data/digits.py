"""Scikit-learn's 8×8 handwritten digits: 1,797 images that need no download."""

from __future__ import annotations

from pathlib import Path

import torch

from polyphony.data.dataset import Contents, Dataset, Place
from polyphony.data.errors import DataError
from polyphony.data.options import Options
from polyphony.data.splits import Split


def read(path: Path, options: Options) -> Contents:
    """All 1,797 digits as one part, [n 1 8 8], their levels 0..16 scaled to 0..255. No file is read."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "the digits data set comes with scikit-learn, which is missing; install polyphony[demo]"
        ) from error
    table = load_digits()
    levels = torch.from_numpy(table.images)[:, None]
    images = (levels * 255 / 16).round().to(torch.uint8)
    labels = torch.from_numpy(table.target).long()
    return Contents(tuple("0123456789"), {"train": Split(images, labels)}, "official")


DIGITS = Dataset(
    name="digits",
    title="Digits: 8×8 handwritten digits that come with scikit-learn",
    homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
    terms="CC BY 4.0",
    places=(Place("", read, cached=False),),
    counts={"train": 1_797},
)
