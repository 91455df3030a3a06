"""SVHN's cropped digits, from the official .mat files (MATLAB's version 5), which are unpacked up to a limit.

SciPy's reader is not used: it has no limit, and it crashes the process if cells are nested 100,000 deep.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyphony.data.dataset import Contents, Dataset, Download, Place
from polyphony.data.files import (
    LARGEST,
    DataError,
    MissingDataError,
    as_data_error,
    bound,
    path_exists,
    read_bytes,
)
from polyphony.data.options import Options
from polyphony.data.splits import Split

Array = np.ndarray[Any, np.dtype[Any]]
MATRIX, COMPRESSED = 14, 15
KINDS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
NUMERIC = range(6, 16)  # MATLAB's classes of dense arrays; not cells, structures, text or sparse arrays


def read_mat(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Name → array, for those of the names that the file has; DataError if the file is invalid."""
    content = memoryview(read_bytes(path))
    arrays: dict[str, Array] = {}
    spare = min(bound(path), LARGEST)  # bytes that may still be unpacked
    with as_data_error(path, ".mat file"):
        if bytes(content[124:128]) != b"\x00\x01IM":
            raise ValueError("not of version 5")
        for kind, body in _elements(content[128:]):
            if kind == COMPRESSED:
                stream = zlib.decompressobj()
                inflated = stream.decompress(body, spare + 1)
                spare -= len(inflated)
                if spare < 0 or not stream.eof:
                    raise ValueError("it unpacks to too many bytes" if spare < 0 else "cut short")
                kind, body = next(_elements(memoryview(inflated)))
            if kind == MATRIX:
                arrays |= _matrix(body, names)
    return arrays


def _elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield (kind, bytes) of each element; a small element is in the second half of its own tag."""
    start = 0
    while start < len(content):
        kind, size = struct.unpack_from("<II", content, start)
        small = kind >> 16
        begin, end = (start + 4, start + 4 + small) if small else (start + 8, start + 8 + size)
        if end > len(content) or small > 4:
            raise EOFError("cut short")
        yield kind & 0xFFFF, content[begin:end]
        start = end if kind == COMPRESSED else end + -(end - start) % 8


def _matrix(body: memoryview, names: Sequence[str]) -> dict[str, Array]:
    """{name: array} of a matrix element; empty if its name is not one of the names."""
    (_, flags), (_, sides), (_, letters) = islice(elements := _elements(body), 3)
    name = bytes(letters).decode("latin1")
    if name not in names:
        return {}
    shape = np.frombuffer(sides, "<i4").tolist()
    if flags[0] not in NUMERIC or flags[1] & 8 or min(shape) < 1:
        raise ValueError(f"{name} is not an array of real numbers")
    kind, content = next(elements)
    return {name: np.frombuffer(content, KINDS[kind]).reshape(shape, order="F")}


CLASSES = tuple("0123456789")
SITE = "http://ufldl.stanford.edu/housenumbers/"
FILES = {  # MD5 and size
    "train_32x32.mat": ("e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
    "test_32x32.mat": ("eb5a983be6a315427106f1b164d9cef3", 64_275_384),
}


def read(path: Path, options: Options) -> Contents:
    """Read the test digits of a file, or the test digits and perhaps the training digits of a folder."""
    if not path.is_dir():
        return Contents(CLASSES, {"test": read_split(path)})
    files = {part: path / f"{part}_32x32.mat" for part in ("train", "test")}
    if not path_exists(files["test"]):
        raise MissingDataError(f"{files['test']} is missing: put it there", "svhn")
    return Contents(CLASSES, {part: read_split(file) for part, file in files.items() if path_exists(file)})


def read_split(path: Path) -> Split:
    """X uint8 [32 32 3 n] and y [n 1] of a .mat file as images [n 3 32 32] and labels; 10 means digit 0."""
    arrays = read_mat(path, ("X", "y"))
    x, y = arrays.get("X", np.empty(0)), arrays.get("y", np.empty(0))
    n = x.shape[-1]
    if x.dtype != np.uint8 or x.shape != (32, 32, 3, n) or y.shape not in ((n, 1), (1, n)):
        raise DataError(
            f"{path} holds X {x.dtype} {list(x.shape)} and y {list(y.shape)} "
            "instead of uint8 [32, 32, 3, n] and [n, 1]; download it again"
        )
    digits = y.reshape(-1)
    if not (valid := np.isin(digits, range(1, 11))).all():
        raise DataError(f"{path} has the label {digits[~valid][0]}, outside 1..10; download it again")
    pixels = np.ascontiguousarray(x.transpose(3, 2, 0, 1))
    return Split(torch.from_numpy(pixels), torch.from_numpy(digits.astype(np.int64) % 10))


SVHN = Dataset(
    name="svhn",
    title="SVHN: 32×32 colour photographs of house-number digits",
    homepage=SITE,
    terms="non-commercial use only",
    places=(
        Place("svhn", read, {file: md5 for file, (md5, _) in FILES.items()}),
        Place("test_32x32.mat", read, {"": FILES["test_32x32.mat"][0]}),
    ),
    counts={"train": 73_257, "test": 26_032},
    shape=(3, 32, 32),
    labels=10,
    downloads=tuple(Download(f"{SITE}{file}", f"svhn/{file}", *facts) for file, facts in FILES.items()),
)
