"""Reads CIFAR's pickles without trusting them: the result holds only plain values and arrays.

`pickle.Unpickler` with an allow-list of names is not enough: a small file can make it hash nested tuples for
ever, or reserve gigabytes for its memo. Here the standard library splits a pickle into instructions, and the
machine below runs those that official files contain. It imports nothing, calls nothing, and no instruction
takes more time or memory than its bytes justify.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

from polyphony.data.files import DataError, damaged

MOST = 1_000_000  # instructions; the official file with the most has about 200,000
KINDS = {name: np.dtype(name) for name in ("u1", "i4", "i8")}
NAMES = {  # all names in official files
    "_codecs encode",
    "numpy dtype",
    "numpy ndarray",
    "numpy.core.multiarray _reconstruct",
    "numpy._core.multiarray _reconstruct",
    "numpy.core.numeric _frombuffer",
    "numpy._core.numeric _frombuffer",
}
PLAIN = """INT BININT BININT1 BININT2 LONG LONG1 STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE
SHORT_BINUNICODE BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8"""
VALUES = set(PLAIN.split())  # the instructions whose argument is a value
NEW: dict[str, Callable[[], object]] = {  # what an instruction without an argument puts on the stack
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
TAKEN = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2, "BUILD": 1, "REDUCE": 2}
TAKEN["STACK_GLOBAL"] = 2
TAKEN_TO_MARK = ("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS")


class _Name(str):
    """One of NAMES; never equal in type to a text of the file."""


class _Array:
    """A placeholder for a numpy array until the file gives its content."""

    value: np.ndarray[Any, np.dtype[Any]]


class _Machine:
    """The stack, marks and memo of a pickle while it is read."""

    def __init__(self, content: bytes, where: str) -> None:
        self.where = where
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.spare = len(content)  # how many characters may still be encoded: no file needs them twice

    def obey(self, instruction: str, argument: Any) -> None:
        if instruction in VALUES:
            self.stack.append(argument)
        elif instruction in NEW:
            self.stack.append(NEW[instruction]())
        elif instruction in TAKEN or instruction in TAKEN_TO_MARK:
            self.combine(instruction, self.take(TAKEN.get(instruction)))
        elif instruction.endswith("GET"):
            self.stack.append(self.memo[argument])
        elif instruction.endswith("PUT") or instruction == "MEMOIZE":
            self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
        elif instruction == "MARK":
            self.marks.append(len(self.stack))
        elif instruction == "GLOBAL":
            self.stack.append(self.named(argument))
        elif instruction not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"{instruction}, which no CIFAR file has")

    def take(self, count: int | None) -> list[Any]:
        """Remove `count` values from the stack, or all since the mark."""
        start = self.marks.pop() if count is None else len(self.stack) - count
        if start < 0:
            raise ValueError("nothing on the stack")
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def combine(self, instruction: str, taken: list[Any]) -> None:
        """Push the result of an instruction, or store it in the object on top of the stack."""
        match instruction.rstrip("S123"), self.stack[-1:]:
            case "TUPLE", _:
                self.stack.append(tuple(taken))
            case "LIST", _:
                self.stack.append(taken)
            case "DICT", _:
                self.stack.append(_table(taken))
            case "STACK_GLOBAL", _:
                self.stack.append(self.named(" ".join(map(_text, taken))))
            case "REDUCE", _:
                self.stack.append(self.made(*taken))
            case "APPEND", [list() as top]:
                top.extend(taken)
            case "SETITEM", [dict() as top]:
                top.update(_table(taken))
            case "BUILD", [_Array() as top]:
                _, shape, kind, column_major, content = taken[0]
                top.value = self.array(content, kind, shape, "F" if column_major else "C").value
            case "BUILD", [np.dtype()] if _text(taken[0][1]) in ("<", "|"):
                pass
            case _:
                raise ValueError(f"{instruction} of what it cannot have")

    def named(self, name: str) -> _Name:
        if name not in NAMES:
            called = name.replace(" ", ".", 1)
            raise DataError(
                f"{self.where} asks to call {called}, which no data file does; "
                "nothing was run, do not trust the file"
            )
        return _Name(name.split()[1])

    def made(self, name: Any, arguments: Any) -> Any:
        """The result of a call in an official file."""
        match name, arguments:
            case _Name("encode"), (str(text), "latin1"):
                return self.encode(text)
            case _Name("dtype"), (kind, *_):
                if _text(kind) not in KINDS:
                    raise ValueError(f"array of {_text(kind)}")
                return KINDS[_text(kind)]
            case _Name("_reconstruct"), _:
                return _Array()
            case _Name("_frombuffer"), (content, kind, shape, order):
                return self.array(content, kind, shape, order)
        raise ValueError("call of what is no function")

    def array(self, content: Any, kind: Any, shape: Any, order: Any) -> _Array:
        """An array; ValueError unless the content has exactly the size of its shape."""
        content = self.encode(content) if isinstance(content, str) else content
        if not isinstance(kind, np.dtype) or not _is_shape(shape) or order not in ("C", "F"):
            raise ValueError("array of an unknown kind")
        if len(content) != math.prod(shape) * kind.itemsize:
            raise ValueError("array whose size is not that of its content")
        array = _Array()
        array.value = np.frombuffer(content, kind).reshape(shape, order=order)
        return array

    def encode(self, text: str) -> bytes:
        self.spare -= len(text)
        if self.spare < 0:
            raise ValueError("the same text encoded over and over")
        return text.encode("latin1")


def unpickle(content: bytes, where: str) -> dict[str, Any]:
    """The table in a CIFAR pickle, its keys as text, its arrays as numpy arrays. `where` names the file."""
    machine = _Machine(content, where)
    with damaged(where, "CIFAR file"):
        for count, (instruction, argument, _) in enumerate(pickletools.genops(content)):
            if count == MOST:
                raise DataError(
                    f"{where} has over {MOST:,} instructions, which no CIFAR file has; replace it"
                )
            machine.obey(instruction.name, argument)
        table = machine.stack.pop()
        if not isinstance(table, dict):
            raise ValueError(f"a {type(table).__name__} where a table belongs")
        return {key: value.value if isinstance(value, _Array) else value for key, value in table.items()}


def _table(taken: list[Any]) -> dict[str, Any]:
    return {_text(key): value for key, value in zip(taken[::2], taken[1::2], strict=True)}


def _text(value: object) -> str:
    if not isinstance(value, str | bytes):
        raise ValueError(f"{type(value).__name__} where text belongs")
    return value.decode("latin1") if isinstance(value, bytes) else value


def _is_shape(value: object) -> bool:
    """One to four numbers: a shape of images or of labels."""
    return (
        isinstance(value, tuple)
        and 1 <= len(value) <= 4
        and all(type(n) is int and 0 <= n < 1 << 32 for n in value)
    )
