"""Errors of readers, files that are read up to a limit, and the folders of data and cache."""

from __future__ import annotations

import gzip
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import file_digest, md5
from pathlib import Path

from polyphony._util import files
from polyphony._util.files import WriteError
from polyphony._util.text import UserError


class DataError(UserError, ValueError):
    """Data is missing or wrong; the message names the file, the fault and what to do."""


class MissingDataError(DataError):
    """A known data set is not on this machine."""

    def __init__(self, sentence: str, name: str = "") -> None:
        super().__init__(sentence)
        self.name = name


class MissingCorruptedError(MissingDataError):
    """The corrupted images of a data set are not on this machine."""


LARGEST = 1 << 30  # bytes; largest file that is read into memory. Official files are far smaller
RATIO, SLACK = 100, 1 << 24  # a file may unpack to RATIO times its size + SLACK bytes


def data_root(root: Path | None = None) -> Path:
    """The folder of data sets: the argument, else $POLYPHONY_DATA, else the user's data folder."""
    if root is not None:
        return Path(root)
    if folder := os.environ.get("POLYPHONY_DATA"):
        return Path(folder).expanduser()
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "polyphony" / "data"


def cache_root() -> Path:
    """The folder of decoded data, in the user's cache. Everything in it can be deleted at any time."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "polyphony" / "data"


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise system errors and errors about invalid paths as a DataError that names the path."""
    try:
        yield
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); check it"
        ) from error


@contextmanager
def as_data_error(where: object, what: str, advice: str = "download it again") -> Iterator[None]:
    """Raise any error of a library that reads a file as a DataError: "`where` is not a valid `what`"."""
    try:
        yield
    except (DataError, WriteError):
        raise
    except Exception as error:  # a damaged file can make a library raise anything
        if isinstance(error, OSError) and error.strerror:  # the system failed; the file may be valid
            raise DataError(f"{error.filename or where}: {error.strerror}; check the disk") from error
        raise DataError(
            f"{where} is not a valid {what} ({error or type(error).__name__}); {advice}"
        ) from error


def path_exists(path: Path) -> bool:
    """Whether the path exists; False without permission to look."""
    return os.path.exists(path)  # noqa: PTH110 (Path.exists would raise without permission)


def regular(path: Path) -> Path:
    """The path; DataError unless it is a regular file, not empty and not too large for its suffix."""
    with readable(path):
        if not files.regular(path).stat().st_size:
            raise DataError(f"{path} is empty; replace or remove it")
    return path


def read_bytes(path: Path) -> bytes:
    """The content of a file; DataError if it has more than `LARGEST` bytes.

    A file that grows meanwhile is read only up to the size that was checked.
    """
    size = regular(path).stat().st_size
    if size > LARGEST:
        raise DataError(f"{path} is larger than any official file of its kind; replace it")
    with readable(path), path.open("rb") as file:
        return file.read(size)


def most_unpacked(size: int) -> int:
    """Largest number of bytes or pixels that `size` bytes may unpack to; more is a decompression bomb."""
    return RATIO * size + SLACK


def bound(path: Path) -> int:
    """Largest number of bytes that a file may unpack to."""
    return most_unpacked(path.stat().st_size)


class Inflated(io.RawIOBase):
    """A file as a stream, unpacked if it is a .gz, up to `limit` bytes; EOFError after its end."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        with readable(path), regular(path).open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        self.path, self.ended = path, False
        self.left = min(bound(path), LARGEST) if limit is None else limit
        self.stream = gzip.open(path) if packed else path.open("rb")  # noqa: SIM115 (closed with this one)

    def close(self) -> None:
        self.stream.close()
        super().close()

    def read(self, size: int = 1 << 20) -> bytes:
        """The next bytes, at most `size`; DataError after more than `limit` in all."""
        block = self.stream.read(size)
        self.left -= len(block)
        if self.left < 0:
            raise DataError(f"{self.path} unpacks to too many bytes for its size; do not trust it")
        if self.ended:  # without this, tarfile would trust a hostile size and read on
            raise EOFError("cut short")
        self.ended = not block
        return block


def unpacked(path: Path) -> bytes:
    """The content of a file, unpacked if it is a .gz."""
    with as_data_error(path, ".gz file"), Inflated(path) as stream:
        return b"".join(iter(stream.read, b""))


def walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield (relative path, status) of everything in a folder; names of folders end with a slash.

    Links are followed. Raises a DataError if links lead to a folder twice: the walk might never end.
    """
    visited, queue = set(), [""]
    while queue:
        below = queue.pop()
        with readable(folder / below):
            status = (folder / below).stat()
            if (status.st_dev, status.st_ino) in visited:
                raise DataError(f"{folder / below} is in {folder} twice, by a link; remove the link")
            visited.add((status.st_dev, status.st_ino))
            for entry in list(os.scandir(folder / below)):
                status = _status(entry)
                name = f"{below}{entry.name}{'/' * stat.S_ISDIR(status.st_mode)}"
                queue += [name] * name.endswith("/")
                yield name, status


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    """The status of an entry; of a link's target, or of the link itself if it is broken."""
    try:
        return entry.stat()
    except OSError:
        return entry.stat(follow_symlinks=False)


def file_md5(path: Path) -> str:
    """The MD5 of a file, which authors of data sets publish. It detects damage, not attacks."""
    with readable(path), regular(path).open("rb") as stream:
        return file_digest(stream, partial(md5, usedforsecurity=False)).hexdigest()
