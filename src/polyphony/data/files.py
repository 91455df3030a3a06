"""Files as bytes, from a folder or straight from an archive, and the folders data and cache live in."""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from hashlib import md5
from pathlib import Path, PurePosixPath

from polyphony.data.errors import DataError

LARGEST = 1 << 30  # no official file that is read whole into memory comes near a gigabyte


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


def members(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the wanted files of a folder or a tar archive, one at a time, in any order.

    Raises DataError naming whatever is missing or cannot be read.
    """
    missing = set(wanted)
    for name, content in _from_folder(path, wanted) if path.is_dir() else _from_tar(path, wanted):
        missing.discard(name)
        yield name, content
    if missing:
        raise DataError(f"{path} lacks {', '.join(sorted(missing))}; get the complete official archive again")


def read_bytes(path: Path) -> bytes:
    """The content of a file that is to be read whole."""
    try:
        if path.stat().st_size > LARGEST:
            raise DataError(f"{path} is larger than any official file of its kind; replace it")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the file") from error


def _from_folder(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    return ((name, read_bytes(path / name)) for name in wanted if (path / name).is_file())


def _from_tar(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name in wanted and member.isfile():
                    yield name, _content(path, archive, member)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} is not a whole tar archive ({error}); download it again") from error


def _content(path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    if stream is None or member.size > LARGEST:
        raise DataError(f"{path}: {member.name} is no file of a plausible size; download the archive again")
    return stream.read()


def file_md5(path: Path) -> str:
    """The MD5 of a file, as the data sets' authors publish it: against damage, not against malice."""
    digest = md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
