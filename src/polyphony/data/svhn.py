"""SVHN's cropped digits from the official .mat files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyphony.data.dataset import Contents, Dataset, Download, Place
from polyphony.data.errors import DataError
from polyphony.data.options import Options
from polyphony.data.splits import Split

CLASSES = tuple("0123456789")
TEST_MD5, TRAIN_MD5 = "eb5a983be6a315427106f1b164d9cef3", "e26dedcc434d2e4c54c9b2d4a06d8373"


def read_test(path: Path, options: Options) -> Contents:
    """The test digits alone."""
    return Contents(CLASSES, {"test": read_mat(path)})


def read_folder(path: Path, options: Options) -> Contents:
    """The test digits, and the training digits if they are there."""
    found = {part: path / f"{part}_32x32.mat" for part in ("train", "test")}
    if not found["test"].exists():
        raise DataError(f"{found['test']} is missing; put it there or run 'polyphony data get svhn'")
    return Contents(CLASSES, {part: read_mat(file) for part, file in found.items() if file.exists()})


def read_mat(path: Path) -> Split:
    """X uint8 [32 32 3 n] and y [n 1] of a .mat file as images [n 3 32 32] and labels; 10 is digit 0."""
    from scipy.io import loadmat, whosmat

    try:
        shapes = {name: shape for name, shape, _ in whosmat(path)}
        _check_shapes(path, shapes)  # before anything of that size is allocated
        table = loadmat(path, variable_names=["X", "y"])
    except DataError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise DataError(f"{path} is no whole .mat file ({error}); download it again") from error
    return _split(path, table["X"], table["y"].reshape(-1))


def _check_shapes(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    x, y = shapes.get("X", ()), shapes.get("y", ())
    if len(x) != 4 or x[:3] != (32, 32, 3) or y not in ((x[3], 1), (1, x[3])):
        raise DataError(
            f"{path} holds X {list(x)} and y {list(y)} where [32, 32, 3, n] and [n, 1] belong; "
            "download it again"
        )


def _split(path: Path, images: Any, labels: Any) -> Split:
    if images.dtype != np.uint8 or labels.dtype.kind not in "iuf":
        raise DataError(f"{path} holds {images.dtype} images where uint8 belongs; download it again")
    labels = labels.astype(np.int64)
    if not ((labels >= 1) & (labels <= 10)).all():
        wrong = labels[(labels < 1) | (labels > 10)][0]
        raise DataError(f"{path} has the label {wrong}, outside 1..10; download it again")
    pixels = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
    return Split(torch.from_numpy(pixels), torch.from_numpy(labels % 10))


SVHN = Dataset(
    name="svhn",
    title="SVHN: 32×32 colour photographs of house-number digits",
    homepage="http://ufldl.stanford.edu/housenumbers/",
    terms="non-commercial use only",
    places=(
        Place("svhn", read_folder, {"train_32x32.mat": TRAIN_MD5, "test_32x32.mat": TEST_MD5}),
        Place("test_32x32.mat", read_test, {"": TEST_MD5}),
    ),
    counts={"train": 73_257, "test": 26_032},
    shape=(3, 32, 32),
    labels=10,
    downloads=(
        Download(
            "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
            "svhn/train_32x32.mat",
            TRAIN_MD5,
            182_040_794,
        ),
        Download(
            "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            "svhn/test_32x32.mat",
            TEST_MD5,
            64_275_384,
        ),
    ),
)
