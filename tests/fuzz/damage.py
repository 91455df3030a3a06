"""Bytes made worse, and numbers that break things; all randomness comes from the generator that is given."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

NUMBERS = (0, 1, -1, 2, 5, 127, 128, 255, 256, 10**4, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 10**9)
NUMBERS += (2**40, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 10**30, -(2**31), -(2**63))
TEXTS = (
    "",
    " ",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "~",
    "x" * 300,
    "9" * 5000,
    "\0",
    "\x1b[2J",
    "\udc80",
    "ä×日",
)
TEXTS += (
    "nan",
    "inf",
    "1e999",
    "true",
    "None",
    "[" * 200,
    "'",
    '"',
    "\n",
    "%s",
    "{}",
    "[red]x[/]",
    "**",
    "a" * 5000,
)


def number(random: Random) -> int:
    """A number at an edge, or any."""
    return random.choice(NUMBERS) if random.random() < 0.7 else random.randrange(-(2**64), 2**64)


def text(random: Random) -> str:
    """A text at an edge, or any."""
    if random.random() < 0.7:
        return random.choice(TEXTS)
    return "".join(
        chr(random.choice((random.randrange(32, 127), random.randrange(0x300)))) for _ in range(12)
    )


def place(random: Random, content: bytes | bytearray) -> int:
    """An index into the content: often near its beginning or its end, where formats keep what they trust."""
    reach = random.choice((16, 128, 512, len(content)))
    index = random.randrange(min(reach, len(content)))
    return index if random.random() < 0.7 else len(content) - 1 - index


def flip(random: Random, content: bytearray) -> None:
    content[place(random, content)] ^= 1 << random.randrange(8)


def overwrite(random: Random, content: bytearray) -> None:
    content[place(random, content)] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))


def renumber(random: Random, content: bytearray) -> None:
    """A whole number of one to eight bytes, of either byte order, where one may stand."""
    letter, size = random.choice((("B", 1), ("H", 2), ("I", 4), ("Q", 8)))
    if len(content) >= size:
        start = min(place(random, content), len(content) - size)
        value = number(random) % 256**size
        struct.pack_into(random.choice("<>") + letter, content, start, value)


def reword(random: Random, content: bytearray) -> None:
    """Digits in text become other digits."""
    digits = [i for i, byte in enumerate(content[:4096]) if 48 <= byte <= 57]
    if digits:
        start = random.choice(digits)
        content[start : start + 1] = str(number(random)).encode()


def cut(random: Random, content: bytearray) -> None:
    del content[place(random, content) :]


def drop(random: Random, content: bytearray) -> None:
    start = place(random, content)
    del content[start : start + random.choice((1, 4, 100))]


def repeat(random: Random, content: bytearray) -> None:
    start = place(random, content)
    piece = content[start : start + random.choice((1, 8, 200))]
    content[start:start] = piece * random.choice((1, 2, 50))


def insert(random: Random, content: bytearray) -> None:
    start = place(random, content)
    content[start:start] = random.randbytes(random.choice((1, 8, 64)))


WAYS: tuple[Callable[[Random, bytearray], None], ...] = (
    flip,
    overwrite,
    renumber,
    reword,
    cut,
    drop,
    repeat,
    insert,
)


def damaged(random: Random, content: bytes) -> bytes:
    """The content after one to four kinds of damage; now and then none, so that what is whole is read too."""
    worse = bytearray(content)
    for _ in range(random.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        if worse:
            random.choice(WAYS)(random, worse)
    return bytes(worse)
