"""Reads CIFAR's pickles without trusting them: the result can hold nothing but plain values and arrays.

No name in the file is ever looked up. The handful of names an honest file mentions stand for the classes
below, which only keep what they are given; everything else is refused before anything is built.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np

from polyphony.data.errors import DataError

KINDS = {"u1": np.uint8, "i4": np.int32, "i8": np.int64}


class _Type:
    """Stands for a numpy dtype: one of KINDS, little-endian."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        name = name.decode() if isinstance(name, bytes) else name
        self.kind = KINDS[name]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("<", b"<", "|", b"|"):
            raise ValueError("big-endian array")


class _Array:
    """Stands for a numpy array under construction; `value` is the array."""

    value: np.ndarray[Any, np.dtype[Any]]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, column_major, content = state
        self.fill(
            content.encode("latin1") if isinstance(content, str) else content, kind, shape, column_major
        )

    def fill(self, content: bytes, kind: object, shape: tuple[int, ...], column_major: bool) -> None:
        """Sets the value, if the content is exactly the array's."""
        if not isinstance(kind, _Type) or len(content) != math.prod(shape) * np.dtype(kind.kind).itemsize:
            raise ValueError("array whose size is not that of its content")
        self.value = np.frombuffer(content, kind.kind).reshape(shape, order="F" if column_major else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _frombuffer(content: bytes, kind: object, shape: tuple[int, ...], order: str) -> _Array:
    """Stands for what numpy writes under protocol 5."""
    array = _Array()
    array.fill(content, kind, shape, order == "F")
    return array


def _encode(text: str, encoding: str) -> bytes:
    """Stands for codecs.encode, which Python 3 writes for bytes under old protocols."""
    if encoding != "latin1":
        raise ValueError(f"text encoding {encoding}")
    return text.encode("latin1")


NAMES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("numpy", "ndarray"): None,  # only ever an argument of _reconstruct
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
}


class _ForbiddenError(Exception):
    """A name that no data file mentions."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return NAMES[module, name]
        except KeyError:
            raise _ForbiddenError(f"{module}.{name}") from None


def unpickle(content: bytes, where: str) -> dict[str, Any]:
    """The table in a CIFAR pickle, its keys as text, its arrays as numpy arrays. `where` names the file."""
    try:
        table = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except _ForbiddenError as error:
        raise DataError(
            f"{where} asks to call {error}, which no data file does; nothing was run, do not trust the file"
        ) from None
    except Exception as error:  # a damaged pickle can raise anything
        fault = str(error) or type(error).__name__
        raise DataError(f"{where} is damaged or cut short ({fault}); download it again") from error
    if not isinstance(table, dict):
        raise DataError(f"{where} holds a {type(table).__name__} where a table belongs; download it again")
    return {_text(key): value.value if isinstance(value, _Array) else value for key, value in table.items()}


def _text(key: object) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)
