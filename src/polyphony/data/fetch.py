"""Downloads official files: resumes, checks size and MD5, unpacks."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from filelock import FileLock, Timeout

from polyphony._util.files import LOCK, writing
from polyphony.data.archives import unpack
from polyphony.data.dataset import Download
from polyphony.data.files import DataError, file_md5, path_exists

Progress = Callable[[int], None]  # called with the number of bytes downloaded so far


def fetch(download: Download, root: Path, progress: Progress) -> Path:
    """The folder or file of a download below the root; it is downloaded if it is missing.

    Raises a DataError if that fails, or if another process downloads it.
    """
    target = root / (download.unpacked or download.path)
    if not target.exists():
        with _locked(download, root):
            if not target.exists():  # another process may have finished meanwhile
                _make(download, root, progress)
    return target


@contextmanager
def _locked(download: Download, root: Path) -> Iterator[None]:
    """Lock a download; DataError if another process has the lock. The lock ends with the process."""
    lock = root / f".{download.path.replace('/', '-')}{LOCK}"
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        try:
            acquired = FileLock(lock, timeout=0).acquire()
        except Timeout as error:
            fault = f"another process downloads {root / download.path}"
            raise DataError(f"{fault}; run again when it is done") from error
    with acquired:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _make(download: Download, root: Path, progress: Progress) -> None:
    """Make the folder or file of a download, from the user's copy of the file or from its address."""
    file = root / download.path
    is_users = path_exists(file)  # then it is checked, used and not removed
    if not is_users:
        _fetch_file(download, file, progress)
    elif file_md5(file) != download.md5:
        raise DataError(f"{file} is not the official file (MD5 {download.md5}); remove it to download it")
    if download.unpacked:
        unpack(file, download.unpacked, root)
        if not is_users:
            file.unlink()


def _fetch_file(download: Download, file: Path, progress: Progress) -> None:
    """Download to a .part file, and rename it if size and MD5 are right. A .part file is continued."""
    part = file.with_name(file.name + ".part")
    if path_exists(part) and not part.is_file():
        raise DataError(f"{part} is not a regular file; remove it to download there")
    try:
        if not part.exists() or part.stat().st_size < download.size:
            _transfer(download, part, progress)
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        fault = getattr(error, "reason", None) or error
        raise DataError(f"cannot download ({fault}): get {download.url} and put it at {file}") from error
    except OSError as error:
        raise DataError(f"{part} cannot be written ({error.strerror or error}); check the disk") from error
    size = part.stat().st_size
    if size < download.size:
        raise DataError(
            f"{download.url} stopped at {size:,} of {download.size:,} bytes; run again to continue"
        )
    if size > download.size or file_md5(part) != download.md5:
        part.unlink()
        raise DataError(f"{download.url} is not the official file (MD5 {download.md5}); it was removed")
    part.replace(file)


def _transfer(download: Download, part: Path, progress: Progress) -> None:
    size = part.stat().st_size if part.exists() else 0  # bytes so far
    request = urllib.request.Request(download.url, headers={"User-Agent": "polyphony"})
    if size:
        request.add_header("Range", f"bytes={size}-")
    with urllib.request.urlopen(request, timeout=60) as response:
        if response.status != 206:  # the server ignored the range
            size = 0
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab" if size else "wb") as out:
            # One byte more than expected is read, to notice that a file is too large.
            while block := response.read(min(1 << 18, download.size + 1 - size)):
                out.write(block)
                size += len(block)
                progress(size)
