"""Reads zip and tar archives and unpacks tar archives, without trusting their names and sizes."""

from __future__ import annotations

import re
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from polyphony._util.files import writing
from polyphony.data.files import (
    DataError,
    Inflated,
    as_data_error,
    bound,
    path_exists,
    read_bytes,
    regular,
    walk,
)


def full_name(path: Path, name: str) -> str:
    """The name of a file in a folder or in an archive, for messages."""
    return str(path / name) if path.is_dir() else f"{path}: {name}"


@dataclass(frozen=True)
class Tree:
    """The files of a folder, or of the single folder in a zip. `names` are relative paths.

    Several threads may call `read`.
    """

    path: Path
    names: tuple[str, ...]
    read: Callable[[str], bytes]

    def where(self, name: str) -> str:
        return full_name(self.path, name)

    def text(self, name: str) -> str:
        """The content of a text file; DataError if it is missing."""
        if name not in self.names:
            raise DataError(f"{self.where(name)} is missing; get the complete official archive again")
        return self.read(name).decode("utf-8", "replace")


def tree(path: Path) -> Tree:
    """The files of a folder, or of a zip that holds one folder."""
    if path.is_dir():
        names = (name for name, _ in walk(path) if not name.endswith("/"))
        return Tree(path, tuple(sorted(names)), lambda name: read_bytes(path / name))
    archive = open_zip(path)
    files = {info.filename.partition("/")[2]: info for info in archive.infolist() if not info.is_dir()}

    def read(name: str) -> bytes:
        with as_data_error(f"{path}: {name}", "file", "download the archive again"):
            return archive.read(files[name])

    return Tree(path, tuple(sorted(files)), read)


def open_zip(path: Path, what: str = "zip archive") -> zipfile.ZipFile:
    """Open a zip file; DataError if it is invalid, or has a suspicious name, compression or total size."""
    with as_data_error(path, what, "get it again"):
        archive = zipfile.ZipFile(regular(path))
    for info in archive.infolist():
        _check_name(path, info.filename)
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise DataError(
                f"{path}: {info.filename} is encrypted or compressed in an unusual way; replace it"
            )
    total = sum(info.file_size for info in archive.infolist())
    if total > bound(path):
        raise DataError(f"{path} unpacks to {total:,} bytes, too many for its size; do not trust it")
    return archive


def read_files(path: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of these files of a folder or a tar archive, in any order.

    Raises a DataError that names the files that are missing or unreadable.
    """
    missing = set(names)
    from_folder = ((name, read_bytes(path / name)) for name in names if path_exists(path / name))
    for name, content in from_folder if path.is_dir() else _from_tar(path, names):
        missing.discard(name)
        yield name, content
    if missing:
        raise DataError(f"{path} lacks {', '.join(sorted(missing))}; get the complete official archive again")


def _from_tar(path: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    with as_data_error(path, "tar archive"):
        for entry, stream in _tar_entries(path):
            name = PurePosixPath(entry).name
            if name in names:
                yield name, stream.read()


def unpack(archive: Path, folder: str, root: Path) -> None:
    """Unpack a tar with the top folder `folder` to `root/folder`, completely or not at all.

    Raises a DataError for a path outside the folder, a link or a device, and if the content is far too large
    for the archive.
    """
    with writing(root / folder), tempfile.TemporaryDirectory(prefix=".unpack-", dir=root) as scratch:
        with as_data_error(archive, "archive"):
            for name, stream in _tar_entries(archive, bound(archive)):
                _write(Path(scratch, name), stream)
        if not Path(scratch, folder).is_dir():
            raise DataError(f"{archive} holds no folder {folder}; download it again")
        Path(scratch, folder).rename(root / folder)


def _write(target: Path, stream: IO[bytes]) -> None:
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            shutil.copyfileobj(stream, out, 1 << 20)


def _tar_entries(path: Path, limit: int | None = None) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield (name, stream) of the files of a tar; DataError for links and devices, EOFError if it is cut."""
    with Inflated(path, limit) as content, tarfile.open(fileobj=content, mode="r|") as archive:
        for member in archive:
            _check_name(path, member.name)
            if member.isdir():
                continue
            stream = archive.extractfile(member) if member.isreg() and not member.issparse() else None
            if stream is None:
                raise DataError(
                    f"{path}: {member.name} is a link, device or sparse file; do not trust this archive"
                )
            yield member.name, stream
        while content.read():  # to the end, where a .gz has its checksum
            pass


def _check_name(path: Path, name: str) -> None:
    if not name or re.search(r"\\|^[A-Za-z]:|^/|\0", name) or ".." in PurePosixPath(name).parts:
        raise DataError(f"{path} holds the path {name!r}, which leaves its folder; do not trust this archive")
