"""Numeric arrays from MATLAB's .mat files of version 5, unpacked up to a limit.

SciPy's reader is not used: it has no limit, and crashes the process on cells that are nested 100,000 deep.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from polyphony.data.files import LARGEST, bound, damaged, read_bytes
from polyphony.data.npy import Array

MATRIX, COMPRESSED = 14, 15
KINDS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
NUMERIC = range(6, 16)  # the classes of dense arrays; cells, structures, text and sparse arrays have others


def read_mat(path: Path, wanted: Sequence[str]) -> dict[str, Array]:
    """The wanted arrays of the file by their names; those that are not there are left out."""
    content = memoryview(read_bytes(path))
    arrays: dict[str, Array] = {}
    most = min(bound(path), LARGEST)
    with damaged(path, ".mat file"):
        if bytes(content[124:128]) != b"\x00\x01IM":
            raise ValueError("not of version 5")
        for kind, body in _elements(content[128:]):
            if kind == COMPRESSED:
                stream = zlib.decompressobj()
                inflated = stream.decompress(body, most + 1)
                most -= len(inflated)
                if most < 0 or not stream.eof:
                    raise ValueError("out of proportion" if most < 0 else "cut short")
                kind, body = next(_elements(memoryview(inflated)))
            if kind == MATRIX:
                arrays |= _matrix(body, wanted)
    return arrays


def _elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(kind, bytes) of one element after the other; a small one stands in the second half of its own tag."""
    start = 0
    while start < len(content):
        kind, size = struct.unpack_from("<II", content, start)
        small = kind >> 16
        begin, end = (start + 4, start + 4 + small) if small else (start + 8, start + 8 + size)
        if end > len(content) or small > 4:
            raise EOFError("cut short")
        yield kind & 0xFFFF, content[begin:end]
        start = end if kind == COMPRESSED else end + -(end - start) % 8


def _matrix(body: memoryview, wanted: Sequence[str]) -> dict[str, Array]:
    """{name: array} of an element that is a wanted matrix, or nothing."""
    (_, flags), (_, sides), (_, letters) = islice(elements := _elements(body), 3)
    name = bytes(letters).decode("latin1")
    if name not in wanted:
        return {}
    shape = np.frombuffer(sides, "<i4").tolist()
    if flags[0] not in NUMERIC or flags[1] & 8 or min(shape) < 1:
        raise ValueError(f"{name} is no array of real numbers")
    kind, content = next(elements)
    return {name: np.frombuffer(content, KINDS[kind]).reshape(shape, order="F")}
