"""Plain arrays from .npy files, memory-mapped or from a stream. Python objects are rejected unread."""

from __future__ import annotations

import math
import warnings
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.lib import format as npy

from polyphony.data.files import DataError, damaged, regular

Array = np.ndarray[Any, np.dtype[Any]]
Layout = tuple[np.dtype[Any], tuple[int, ...], Literal["C", "F"]]
QUIET = partial(warnings.catch_warnings, action="ignore")  # of headers that Python 2 has written
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}  # by version


def mapped(file: Path) -> Array:
    """The array in a file, mapped copy-on-write."""
    with damaged(file, ".npy file", "get it again"), QUIET(), regular(file).open("rb") as stream:
        kind, shape, order = _layout(stream, file.stat().st_size, str(file))
        return np.memmap(file, kind, "c", stream.tell(), shape, order)


def read(stream: IO[bytes], size: int, where: str) -> Array:
    """The array in a stream of `size` bytes."""
    with damaged(where, ".npy file", "save it again"), QUIET():
        _layout(stream, size, where)
        stream.seek(0)
        found: Array = npy.read_array(stream, allow_pickle=False)
        return found


def _layout(stream: IO[bytes], size: int, where: str) -> Layout:
    """Type, shape and order by the header; ValueError unless the array has exactly the bytes that follow it.

    So no header can make the reader take more memory than the file has bytes.
    """
    shape, fortran, kind = HEADERS[npy.read_magic(stream)](stream)
    if kind.hasobject:
        raise DataError(f"{where} holds objects; it was not read, save plain arrays instead")
    if kind.names or len(shape) > 8 or math.prod(shape) * kind.itemsize != size - stream.tell():
        raise ValueError(f"its {size:,} bytes are not those of its header")
    return kind, shape, "F" if fortran else "C"
