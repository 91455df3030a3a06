"""Reads CIFAR's pickles without trusting them: the result holds only plain values and arrays.

A file is rejected if it has too many instructions, or any that official files do not have. Then the standard
library's unpickler reads it, and can call only functions of this module. It is the unpickler in Python, since
a file can make the one in C hash nested tuples for ever, or reserve gigabytes for its memo.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from polyphony.data.files import DataError, as_data_error

MOST = 1_000_000  # instructions in a file; official files have at most about 200,000
NAMES = """PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1
STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES BINBYTES8
BYTEARRAY8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM
SETITEMS GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL REDUCE BUILD"""
INSTRUCTIONS = set(NAMES.split())  # instructions of data files, in all protocols


class _Kind:
    """Replaces `numpy.dtype`; allows only bytes and little-endian integers."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        if _text(name) not in ("u1", "i4", "i8"):
            raise ValueError(f"array of {_text(name)}")
        self.dtype = np.dtype(_text(name))

    def build(self, state: Any) -> None:
        if _text(state[1]) not in ("<", "|"):
            raise ValueError("array of another byte order")


class _Array:
    """Placeholder for an array until `build` gets its content."""

    value: np.ndarray[Any, np.dtype[Any]]

    def __init__(self, *_: object) -> None:
        pass

    def build(self, state: Any) -> None:
        _, shape, kind, column_major, content = state
        self.value = _array(content, kind, shape, "F" if column_major else "C")


class _Unpickler(pickle._Unpickler):
    """An unpickler that calls only functions of this file."""

    stack: list[Any]  # both are the library's, but missing in its type stubs
    pop_mark: Callable[[], list[Any]]

    def __init__(self, content: bytes, where: str) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.where = where
        self.spare = len(content)  # number of characters that may still be encoded; no file repeats them

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            "_codecs.encode": self.encode,
            "numpy.dtype": _Kind,
            "numpy.ndarray": None,
            "numpy.core.multiarray._reconstruct": _Array,
            "numpy.core.numeric._frombuffer": _array,
        }
        function = f"{module}.{name}"
        official = function.replace("numpy._core.", "numpy.core.", 1)
        if official not in allowed:
            raise DataError(
                f"{self.where} asks to call {function}, which no data file does; "
                "nothing was run, do not trust the file"
            )
        return allowed[official]

    def encode(self, text: str, _: str) -> bytes:
        self.spare -= len(text)
        if self.spare < 0:
            raise ValueError("the same text encoded over and over")
        return text.encode("latin1")

    def build(self) -> None:
        """Set the state of a dtype or an array; the library would set attributes of any object."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Kind | _Array):
            raise ValueError("it sets the state of an object that is not an array")
        self.stack[-1].build(state)

    def set_items(self) -> None:
        """Add the items since the mark to a table; the library would hash keys of any type."""
        items = self.pop_mark()
        self.stack[-1].update(_table(items))

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1].update(_table([key, value]))

    def make_table(self) -> None:
        items = self.pop_mark()
        self.stack.append(_table(items))

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.BUILD[0]: build,
        pickle.SETITEMS[0]: set_items,
        pickle.SETITEM[0]: set_item,
        pickle.DICT[0]: make_table,
    }


def unpickle(content: bytes, where: str) -> dict[str, Any]:
    """The table in a CIFAR pickle, with text as keys and numpy arrays; DataError if the file is suspicious.

    `where` names the file in messages.
    """
    with as_data_error(where, "CIFAR file"):
        for count, (instruction, _, _) in enumerate(pickletools.genops(content), 1):
            if count > MOST:
                raise DataError(
                    f"{where} has over {MOST:,} instructions, more than any CIFAR file; replace it"
                )
            if instruction.name not in INSTRUCTIONS:
                raise ValueError(f"{instruction.name}, which no CIFAR file has")
        table = _Unpickler(content, where).load()
        if not isinstance(table, dict):
            raise ValueError(f"a {type(table).__name__} instead of a table")
        return {key: value.value if isinstance(value, _Array) else value for key, value in table.items()}


def _array(content: Any, kind: Any, shape: Any, order: Any) -> np.ndarray[Any, np.dtype[Any]]:
    return np.frombuffer(content, kind.dtype).reshape(shape, order=order)


def _table(items: list[Any]) -> dict[str, Any]:
    """The table of a list: key, value, key, value, …"""
    return {_text(key): value for key, value in zip(items[::2], items[1::2], strict=True)}


def _text(value: object) -> str:
    if not isinstance(value, str | bytes):
        raise ValueError(f"{type(value).__name__} instead of text")
    return value.decode("latin1") if isinstance(value, bytes) else value
