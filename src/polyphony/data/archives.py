"""Archives unpacked or read in place, without trusting a name or a size in them."""

from __future__ import annotations

import gzip
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from polyphony.data.errors import DataError
from polyphony.data.files import LARGEST, read_bytes

DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError)
RATIO, SLACK = 100, 1 << 24  # an honest archive of images hardly compresses; a bomb does so a thousandfold


@dataclass(frozen=True)
class Tree:
    """Files by their path below a folder or below the one folder of a zip, readable from several threads."""

    path: Path
    names: tuple[str, ...]
    read: Callable[[str], bytes]

    def where(self, name: str) -> str:
        """The file's full name, for a message."""
        return str(self.path / name) if self.path.is_dir() else f"{self.path}: {name}"

    def text(self, name: str) -> str:
        """A text file's content."""
        if name not in self.names:
            raise DataError(f"{self.where(name)} is missing; get the complete official archive again")
        return self.read(name).decode("utf-8", "replace")


def tree(path: Path) -> Tree:
    """The files below a folder, or in a zip whose files are all below one folder."""
    if path.is_dir():
        found = (file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
        return Tree(path, tuple(sorted(found)), lambda name: read_bytes(path / name))
    archive = _open_zip(path)
    files = {_below_top(info.filename): info for info in _checked(path, archive) if not info.is_dir()}

    def read(name: str) -> bytes:
        if files[name].file_size > LARGEST:
            raise DataError(f"{path}: {name} has no plausible size; download the archive again")
        try:
            return archive.read(files[name])
        except (*DAMAGE, OSError, NotImplementedError, RuntimeError) as error:
            raise DataError(f"{path}: {name} is damaged ({error}); download the archive again") from error

    return Tree(path, tuple(sorted(files)), read)


def unpack(archive: Path, folder: str, root: Path) -> None:
    """Unpacks a tar or zip so that `root/folder` appears whole, or raises DataError and leaves nothing.

    Refused: a path that leaves the folder, a link or device, an archive whose content is implausibly large.
    """
    if (root / folder).exists():
        raise DataError(f"{root / folder} is there already; remove it to unpack {archive.name} again")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=root) as scratch:
        try:
            for name, stream in (
                _zip_entries(archive) if zipfile.is_zipfile(archive) else _tar_entries(archive)
            ):
                _write(Path(scratch, *PurePosixPath(name).parts), stream)
        except DAMAGE as error:
            raise DataError(f"{archive} is no whole archive ({error}); download it again") from error
        if not Path(scratch, folder).is_dir():
            raise DataError(f"{archive} holds no folder {folder}; download it again")
        Path(scratch, folder).rename(root / folder)


def _write(target: Path, stream: IO[bytes]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as out:
        shutil.copyfileobj(stream, out, 1 << 20)


def _zip_entries(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with _open_zip(path) as archive:
        for info in _checked(path, archive):
            if not info.is_dir():
                with archive.open(info) as stream:
                    yield info.filename, stream


def _tar_entries(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(path, "r|*") as archive:
        total = 0
        for member in archive:
            _check_name(path, member.name)
            total += member.size
            _check_size(path, total)
            if member.isdir():
                continue
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is None:
                raise DataError(f"{path}: {member.name} is a link or device; do not trust this archive")
            yield member.name, stream


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise DataError(f"{path} is not a whole zip archive ({error}); download it again") from error


def _checked(path: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    for info in archive.infolist():
        _check_name(path, info.filename)
    _check_size(path, sum(info.file_size for info in archive.infolist()))
    return archive.infolist()


def _check_name(path: Path, name: str) -> None:
    if name.startswith("/") or re.search(r"\\|^[A-Za-z]:|\0", name) or ".." in PurePosixPath(name).parts:
        raise DataError(f"{path} holds the path {name!r}, which leaves its folder; do not trust this archive")


def _check_size(path: Path, total: int) -> None:
    if total > RATIO * path.stat().st_size + SLACK:
        raise DataError(
            f"{path} would unpack to {total:,} bytes, out of proportion; do not trust this archive"
        )


def _below_top(name: str) -> str:
    return name.partition("/")[2]
