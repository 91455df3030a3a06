"""Data sets that need no download.

Digits come with scikit-learn. Fashion-small is a part of Fashion-MNIST that comes with Polyphony. It is
`load("fashion-mnist", Options(limit=4000, valid=2000, test=5000, resolution=14, seed=7))`. Fashion-MNIST:
copyright 2017 Zalando SE, MIT licence.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from polyphony._util.text import extra
from polyphony.data.dataset import Contents, Dataset, Place
from polyphony.data.files import DataError
from polyphony.data.options import Options
from polyphony.data.own import read_npz
from polyphony.data.splits import Split

FASHION_SMALL_FILE = Path(__file__).with_name("fashion-small.npz")


def read_digits(path: Path, options: Options) -> Contents:
    """Read all 1,797 digits as one part [n 1 8 8]; levels 0..16 are scaled to 0..255. `path` is ignored."""
    table = torch.from_numpy(np.loadtxt(table_file(), dtype=np.int64, delimiter=","))
    levels = table[:, :-1].reshape(-1, 1, 8, 8)
    images = (levels * 255 / 16).round().to(torch.uint8)
    return Contents(tuple("0123456789"), {"train": Split(images, table[:, -1].clone())}, "official")


def table_file() -> Path:
    """The file of digits in scikit-learn, which is not imported: that would take a second."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError(f"the digits data set comes with scikit-learn, which is missing: {extra('demo')}")
    return Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"


def read_fashion_small(path: Path, options: Options) -> Contents:
    """Read 4,000 training, 2,000 validation and 5,000 test images [n 1 14 14]. `path` is ignored."""
    return replace(read_npz(FASHION_SMALL_FILE, options), origin="subset")


DIGITS = Dataset(
    name="digits",
    title="Digits: 8×8 handwritten digits that come with scikit-learn",
    homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
    terms="CC BY 4.0",
    places=(Place("", read_digits, cached=False),),
    counts={"train": 1_797},
)
FASHION_SMALL = Dataset(
    name="fashion-small",
    title="Fashion-MNIST, small: 14×14 photographs of clothes that come with Polyphony",
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    terms="MIT",
    places=(Place("", read_fashion_small, cached=False),),
    counts={"train": 4_000, "valid": 2_000, "test": 5_000},
    shape=(1, 14, 14),
    labels=10,
)
