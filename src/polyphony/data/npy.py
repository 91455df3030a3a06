"""Arrays of plain numbers or text from .npy files, mapped or from a stream; objects are refused unread."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from polyphony.data.errors import DataError
from polyphony.data.files import damaged, regular

Array = np.ndarray[Any, np.dtype[Any]]
HEADER = 10_000  # bytes, numpy's own bound
Layout = tuple[np.dtype[Any], tuple[int, ...], Literal["C", "F"], int]  # type, shape, order, where it begins


def mapped(file: Path) -> Array:
    """The array in a file, mapped copy-on-write."""
    with damaged(file, ".npy file", "get it again"), regular(file).open("rb") as stream:
        kind, shape, order, offset = _layout(stream, file.stat().st_size, str(file))
        return np.memmap(file, kind, "c", offset, shape, order)


def read(stream: IO[bytes], size: int, where: str) -> Array:
    """The array in a stream of `size` bytes."""
    with damaged(where, ".npy file", "save it again"):
        kind, shape, order, _ = _layout(stream, size, where)
        content = np.empty(math.prod(shape) * kind.itemsize, np.uint8)
        rest = content.data
        while block := stream.read(1 << 20):
            rest[: len(block)], rest = block, rest[len(block) :]
        if rest:
            raise EOFError("it ends too early")
        return content.view(kind).reshape(shape, order=order)


def _layout(stream: IO[bytes], size: int, where: str) -> Layout:
    """What the header says, if it is that of an array of exactly so many bytes."""
    magic = stream.read(8)
    width = 2 if magic[6:7] == b"\1" else 4
    length = int.from_bytes(stream.read(width), "little")
    text = stream.read(min(length, HEADER)).decode("latin1")
    named = re.search(r"'descr': *'([<>=|]?[?biufcmMOSUV]\d{0,9})'", text)
    fortran = re.search(r"'fortran_order': *(True|False)", text)
    sides = re.search(r"'shape': *\(([\dL, ]{0,200})\)", text)
    if magic[:6] != b"\x93NUMPY" or len(text) != length or not named or not fortran or not sides:
        raise ValueError("its header is not that of a plain array")
    if "O" in named[1]:
        raise DataError(f"{where} holds objects; it was not read, save plain arrays instead")
    kind, shape, offset = (
        np.dtype(named[1]),
        tuple(map(int, re.findall(r"\d+", sides[1]))),
        8 + width + length,
    )
    if len(shape) > 8 or math.prod(shape) * kind.itemsize != size - offset:
        raise ValueError(f"its {size:,} bytes are not those of its header")
    return kind, shape, "F" if fortran[1] == "True" else "C", offset
