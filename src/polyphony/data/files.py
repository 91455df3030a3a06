"""Regular files as bytes, what a file may unpack to, and the folders data and cache live in."""

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
from polyphony.data.errors import DataError

LARGEST = 1 << 30  # no official file that is read whole into memory comes near a gigabyte
RATIO, SLACK = 100, 1 << 24  # of what a file may unpack to


def data_root(root: Path | None = None) -> Path:
    """Where data is looked for: the argument, else $POLYPHONY_DATA, else the user's data folder."""
    if root is not None:
        return Path(root)
    if named := os.environ.get("POLYPHONY_DATA"):
        return Path(named).expanduser()
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "polyphony" / "data"


def cache_root() -> Path:
    """Where decoded data is kept: the user's cache folder; everything in it can be deleted at any time."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "polyphony" / "data"


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What the system refuses is a DataError that names the path, and so is a path that can be none."""
    try:
        yield
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); check it"
        ) from error


@contextmanager
def damaged(where: object, what: str, advice: str = "download it again") -> Iterator[None]:
    """Whatever a library raises while it reads is a DataError: `where` is no whole `what`."""
    try:
        yield
    except (DataError, WriteError):
        raise
    except Exception as error:  # a damaged file can make a library raise anything
        if isinstance(error, OSError) and error.strerror:  # the system's own, no fault of the file
            raise DataError(f"{error.filename or where}: {error.strerror}; check the disk") from error
        raise DataError(f"{where} is no whole {what} ({error or type(error).__name__}); {advice}") from error


def there(path: Path) -> bool:
    """Whether there is anything at the path that the system lets us see."""
    return os.path.exists(path)  # noqa: PTH110 (the path's own method raises where it may not look)


def regular(path: Path) -> Path:
    """The path of a regular file that is not empty and not larger than its kind may be; else a DataError."""
    with readable(path):
        if not files.regular(path).stat().st_size:
            raise DataError(f"{path} is empty; replace or remove it")
    return path


def read_bytes(path: Path) -> bytes:
    """The content of a file that is to be read whole; no more than its size said when it was opened."""
    size = regular(path).stat().st_size
    if size > LARGEST:
        raise DataError(f"{path} is larger than any official file of its kind; replace it")
    with readable(path), path.open("rb") as file:
        return file.read(size)


def bound(path: Path) -> int:
    """How many bytes a file may unpack to before it is taken for a bomb."""
    return most_unpacked(path.stat().st_size)


def most_unpacked(size: int) -> int:
    """How many bytes, or pixels, so many may unpack to: images hardly shrink, a bomb does a thousandfold."""
    return RATIO * size + SLACK


class Inflated(io.RawIOBase):
    """The bytes of a regular file, of a .gz unpacked, up to `most` of them; EOFError if read past its end."""

    def __init__(self, path: Path, most: int | None = None) -> None:
        with readable(path), regular(path).open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        self.path, self.ended = path, False
        self.left = min(bound(path), LARGEST) if most is None else most
        self.stream = gzip.open(path) if packed else path.open("rb")  # noqa: SIM115 (closed with this one)

    def close(self) -> None:
        self.stream.close()
        super().close()

    def read(self, size: int = 1 << 20) -> bytes:
        """The next bytes, at most so many; DataError once there have been too many."""
        block = self.stream.read(size)
        self.left -= len(block)
        if self.left < 0:
            raise DataError(f"{self.path} unpacks out of proportion; do not trust it")
        if self.ended:  # tarfile would go on for as long as a hostile size tells it to
            raise EOFError("cut short")
        self.ended = not block
        return block


def unpacked(path: Path) -> bytes:
    """A whole file, of a .gz what is in it."""
    with damaged(path, ".gz file"), Inflated(path) as stream:
        return b"".join(iter(stream.read, b""))


def walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """(path below the folder, status) of all that is in it, links followed; folders end with a slash.

    Raises DataError at a folder that links lead to twice, because there may be no end of it.
    """
    seen, waiting = set(), [""]
    while waiting:
        below = waiting.pop()
        with readable(folder / below):
            status = (folder / below).stat()
            if (status.st_dev, status.st_ino) in seen:
                raise DataError(f"{folder / below} is in {folder} twice, by a link; remove the link")
            seen.add((status.st_dev, status.st_ino))
            for entry in list(os.scandir(folder / below)):
                status = _status(entry)
                name = f"{below}{entry.name}{'/' * stat.S_ISDIR(status.st_mode)}"
                waiting += [name] * name.endswith("/")
                yield name, status


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    """That of what a link leads to, or of the link itself where it leads nowhere."""
    try:
        return entry.stat()
    except OSError:
        return entry.stat(follow_symlinks=False)


def file_md5(path: Path) -> str:
    """The MD5 of a file, as the data sets' authors publish it: against damage, not against malice."""
    with readable(path), regular(path).open("rb") as stream:
        return file_digest(stream, partial(md5, usedforsecurity=False)).hexdigest()
