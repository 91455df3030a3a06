"""Scikit-learn's 8×8 handwritten digits: 1,797 images that need no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from polyphony._util.text import extra
from polyphony.data.dataset import Contents, Dataset, Place
from polyphony.data.errors import DataError
from polyphony.data.options import Options
from polyphony.data.splits import Split


def read(path: Path, options: Options) -> Contents:
    """All 1,797 digits as one part, [n 1 8 8], their levels 0..16 scaled to 0..255."""
    table = torch.from_numpy(np.loadtxt(table_file(), dtype=np.int64, delimiter=","))
    levels = table[:, :-1].reshape(-1, 1, 8, 8)
    images = (levels * 255 / 16).round().to(torch.uint8)
    return Contents(tuple("0123456789"), {"train": Split(images, table[:, -1].clone())}, "official")


def table_file() -> Path:
    """Scikit-learn's own file, found without importing scikit-learn, which takes a second."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError(f"the digits data set comes with scikit-learn, which is missing: {extra('demo')}")
    return Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"


DIGITS = Dataset(
    name="digits",
    title="Digits: 8×8 handwritten digits that come with scikit-learn",
    homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
    terms="CC BY 4.0",
    places=(Place("", read, cached=False),),
    counts={"train": 1_797},
)
