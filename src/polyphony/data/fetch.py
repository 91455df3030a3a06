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
from polyphony.data.files import DataError, file_md5, there

Progress = Callable[[int], None]  # called with the number of bytes so far


def fetch(download: Download, root: Path, progress: Progress) -> Path:
    """The folder or file of a download below the root; it is fetched if it is missing."""
    goal = root / (download.unpacked or download.path)
    if not goal.exists():
        with _alone(download, root):
            if not goal.exists():  # another process may have made it meanwhile
                _make(download, root, progress)
    return goal


@contextmanager
def _alone(download: Download, root: Path) -> Iterator[None]:
    """Lock a download; DataError if another process fetches it. The lock ends with the process."""
    lock = root / f".{download.path.replace('/', '-')}{LOCK}"
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        try:
            held = FileLock(lock, timeout=0).acquire()
        except Timeout as error:
            what = f"{root / download.path} is being downloaded by another process"
            raise DataError(f"{what}; run again when it is done") from error
    with held:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _make(download: Download, root: Path, progress: Progress) -> None:
    """Make the folder or file of a download, from a file that the user put there or from its address."""
    file = root / download.path
    users = there(file)  # the user put it there: check it, use it, leave it
    if not users:
        _fetch_file(download, file, progress)
    elif file_md5(file) != download.md5:
        raise DataError(f"{file} is not the official file (MD5 {download.md5}); remove it to download it")
    if download.unpacked:
        unpack(file, download.unpacked, root)
        if not users:
            file.unlink()


def _fetch_file(download: Download, file: Path, progress: Progress) -> None:
    """Download to a partial file; rename it when size and MD5 are right. A broken transfer is resumed."""
    part = file.with_name(file.name + ".part")
    if there(part) and not part.is_file():
        raise DataError(f"{part} is no regular file; remove it to download there")
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
        raise DataError(f"{download.url} did not give the official file (MD5 {download.md5}); it was removed")
    part.replace(file)


def _transfer(download: Download, part: Path, progress: Progress) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(download.url, headers={"User-Agent": "polyphony"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=60) as response:
        if response.status != 206:  # the server ignored the range
            have = 0
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab" if have else "wb") as out:  # a byte too many: this is not the official file
            while block := response.read(min(1 << 18, download.size + 1 - have)):
                out.write(block)
                have += len(block)
                progress(have)
