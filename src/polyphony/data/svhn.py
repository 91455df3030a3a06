"""SVHN's cropped digits from the official .mat files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from polyphony.data.dataset import Contents, Dataset, Download, Place
from polyphony.data.errors import DataError, MissingDataError
from polyphony.data.files import there
from polyphony.data.mat import read_mat
from polyphony.data.options import Options
from polyphony.data.splits import Split

CLASSES = tuple("0123456789")
SITE = "http://ufldl.stanford.edu/housenumbers/"
FILES = {  # MD5 and size
    "train_32x32.mat": ("e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
    "test_32x32.mat": ("eb5a983be6a315427106f1b164d9cef3", 64_275_384),
}


def read_test(path: Path, options: Options) -> Contents:
    """The test digits alone."""
    return Contents(CLASSES, {"test": read_split(path)})


def read_folder(path: Path, options: Options) -> Contents:
    """The test digits, and the training digits if they are there."""
    found = {part: path / f"{part}_32x32.mat" for part in ("train", "test")}
    if not there(found["test"]):
        raise MissingDataError(f"{found['test']} is missing: put it there", "svhn")
    return Contents(CLASSES, {part: read_split(file) for part, file in found.items() if there(file)})


def read_split(path: Path) -> Split:
    """X uint8 [32 32 3 n] and y [n 1] of a .mat file as images [n 3 32 32] and labels; 10 is digit 0."""
    arrays = read_mat(path, ("X", "y"))
    x, y = arrays.get("X", np.empty(0)), arrays.get("y", np.empty(0))
    if (
        x.dtype != np.uint8
        or x.shape[:-1] != (32, 32, 3)
        or y.shape not in ((x.shape[-1], 1), (1, x.shape[-1]))
    ):
        raise DataError(
            f"{path} holds X {x.dtype} {list(x.shape)} and y {list(y.shape)} "
            "where uint8 [32, 32, 3, n] and [n, 1] belong; download it again"
        )
    digits = y.reshape(-1)
    if not (known := np.isin(digits, range(1, 11))).all():
        raise DataError(f"{path} has the label {digits[~known][0]}, outside 1..10; download it again")
    pixels = np.ascontiguousarray(x.transpose(3, 2, 0, 1))
    return Split(torch.from_numpy(pixels), torch.from_numpy(digits.astype(np.int64) % 10))


SVHN = Dataset(
    name="svhn",
    title="SVHN: 32×32 colour photographs of house-number digits",
    homepage=SITE,
    terms="non-commercial use only",
    places=(
        Place("svhn", read_folder, {file: md5 for file, (md5, _) in FILES.items()}),
        Place("test_32x32.mat", read_test, {"": FILES["test_32x32.mat"][0]}),
    ),
    counts={"train": 73_257, "test": 26_032},
    shape=(3, 32, 32),
    labels=10,
    downloads=tuple(Download(f"{SITE}{file}", f"svhn/{file}", *facts) for file, facts in FILES.items()),
)
