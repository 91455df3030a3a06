"""MNIST and Fashion-MNIST from their IDX files, plain or .gz."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyphony.data.dataset import Contents, Dataset, Download, Place, as_labels
from polyphony.data.files import DataError, path_exists, unpacked
from polyphony.data.options import Options
from polyphony.data.splits import Split

PREFIX = {"train": "train", "test": "t10k"}


def read(path: Path, options: Options, classes: tuple[str, ...]) -> Contents:
    """Read both parts, uint8 [n 1 28 28]."""
    return Contents(classes, {part: _split(path, prefix, len(classes)) for part, prefix in PREFIX.items()})


def _split(path: Path, prefix: str, classes: int) -> Split:
    _, images = read_idx(path / f"{prefix}-images-idx3-ubyte", dimensions=3)
    file, labels = read_idx(path / f"{prefix}-labels-idx1-ubyte", dimensions=1)
    return Split(torch.from_numpy(images[:, None].copy()), as_labels(labels, len(images), classes, file))


def read_idx(path: Path, dimensions: int) -> tuple[Path, np.ndarray[Any, np.dtype[np.uint8]]]:
    """The file that was read (`path` or `path`.gz), and its array; DataError if it is invalid."""
    packed = path.with_name(path.name + ".gz")
    file = path if path_exists(path) or not path_exists(packed) else packed
    content = unpacked(file)
    header = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < header:
        raise DataError(f"{file} is not an IDX file of {dimensions}-dimensional bytes; download it again")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if 0 in shape or len(content) != header + math.prod(shape):
        raise DataError(
            f"{file} has {len(content):,} bytes, but its header says {list(shape)}; download it again"
        )
    return file, np.frombuffer(content, np.uint8, offset=header).reshape(shape)


CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def _dataset(
    name: str,
    title: str,
    *,
    homepage: str,
    terms: str,
    folders: tuple[str, ...],
    classes: Sequence[str],
    address: str,
    files: str,
) -> Dataset:
    """`files` has one line for each of `FILES`: its MD5, the MD5 of its .gz, the size of the .gz in bytes."""
    facts = {f"{kind}-ubyte": line.split() for kind, line in zip(FILES, files.splitlines(), strict=True)}
    checksums = {file: md5 for file, (md5, _, _) in facts.items()}
    return Dataset(
        name,
        title,
        homepage,
        terms,
        places=tuple(Place(folder, partial(read, classes=tuple(classes)), checksums) for folder in folders),
        counts={"train": 60_000, "test": 10_000},
        shape=(1, 28, 28),
        labels=len(classes),
        downloads=tuple(
            Download(f"{address}{file}.gz", f"{folders[0]}/{file}.gz", md5, int(size))
            for file, (_, md5, size) in facts.items()
        ),
    )


MNIST = _dataset(
    "mnist",
    "MNIST: 28×28 handwritten digits",
    homepage="http://yann.lecun.com/exdb/mnist/",
    terms="CC BY-SA 3.0",
    folders=("mnist", "MNIST/raw"),
    classes="0123456789",
    address="https://ossci-datasets.s3.amazonaws.com/mnist/",
    files="""6bbc9ace898e44ae57da46a324031adb f68b3c2dcbeaaa9fbdd348bbdeb94873 9912422
    a25bea736e30d166cdddb491f175f624 d53e105ee54ea40749a09fcbcd1e9432 28881
    2646ac647ad5339dbf082846283269ea 9fb629c4189551a2d022fa330f9573f3 1648877
    27ae3e4e09519cfbb04c329615203637 ec29112dd5afa0611ce80d1b7f02629c 4542""",
)
FASHION_MNIST = _dataset(
    "fashion-mnist",
    "Fashion-MNIST: 28×28 photographs of clothes",
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    terms="MIT",
    # The last folder is Debian's.
    folders=("fashion-mnist", "FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"),
    classes=CLOTHES.split(","),
    address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    files="""f4a8712d7a061bf5bd6d2ca38dc4d50a 8d4fb7e6c68d591d4c3dfef9ec88bf0d 26421880
    9018921c3c673c538a1fc5bad174d6f9 25c81989df183df01b3e8a0aad5dffbe 29515
    8181f5470baa50b63fa0f6fddb340f0a bef4ecab320f06d8554ea6380940ec79 4422102
    15d484375f8d13e6eb1aabb0c3f46965 bb300cfdad3c16e7a12a480ee83cd310 5148""",
)
