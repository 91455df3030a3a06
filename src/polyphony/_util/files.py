"""Atomic files, attempts, signals, and the limits of this machine: memory, cores, processor."""

from __future__ import annotations

import errno
import multiprocessing
import os
import platform
import resource
import secrets
import shutil
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from multiprocessing import connection
from pathlib import Path
from threading import Thread

ATTEMPT = ".attempt-"  # prefix of the folders of attempts
LOCK = ".lock"  # lock file of a folder
ROOT = Path("/")
MEGABYTE, GIGABYTE = 1 << 20, 1 << 30
LARGEST = {".json": 64 * MEGABYTE, ".jsonl": GIGABYTE, ".csv": GIGABYTE}  # largest size in bytes, by suffix
LARGEST |= dict.fromkeys((".safetensors", ".pt", ".pth", ".bin", ".ckpt"), 64 * GIGABYTE)


def regular(path: Path) -> Path:
    """The path, if it is a regular file; else an OSError. Call it before opening a file.

    A pipe or a device may never end, and a sparse file can have any size, so files larger than `LARGEST` for
    their suffix are rejected.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    if status.st_size > (most := LARGEST.get(path.suffix.lower(), status.st_size)):
        raise OSError(errno.EFBIG, f"larger than the {most:,} bytes that such a file may have", str(path))
    return path


class WriteError(OSError):
    """The system refused to write a file or folder."""

    def __str__(self) -> str:
        return f"{self.filename} cannot be written ({self.strerror})"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report the system's errors as a WriteError that names the path."""
    try:
        yield
    except OSError as error:
        raise WriteError(error.errno, error.strerror or str(error), str(path)) from error


def part_of(path: Path, folder: Path) -> Path:
    """A temporary path in a folder for a file that will be moved to `path`; no other process has the same."""
    return folder / f".{path.name}.{secrets.token_hex(4)}.{os.getpid()}.part"


@contextmanager
def atomic_path(file: Path, attempt: Path | None = None) -> Iterator[Path]:
    """A path beside `file` to write to; flushed and renamed to `file` at the end, removed on failure.

    An attempt writes in its own folder, so that its files cannot appear after a later attempt removed it.
    """
    beside = part_of(file, attempt or file.parent)
    with writing(file):
        if attempt is None:
            file.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield beside
            with beside.open("rb") as stream:
                os.fsync(stream.fileno())
            beside.replace(file)
        finally:
            beside.unlink(missing_ok=True)


def share_file(source: Path, target: Path, attempt: Path | None = None) -> None:
    """Hard-link a file atomically, or copy it if that is not possible."""
    with atomic_path(target, attempt) as beside:
        try:
            os.link(source, beside)
        except OSError:
            shutil.copyfile(source, beside)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` to fill; it is renamed to `folder` at the end, or removed on failure."""
    beside = part_of(folder, folder.parent)
    with writing(folder):
        beside.mkdir(parents=True)
        try:
            yield beside
            beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


class Terminated(KeyboardInterrupt):
    """SIGTERM; handled like Ctrl-C."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise Terminated at the first SIGTERM; ignore the next ones."""

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)  # not SIG_IGN, which new processes would inherit
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def claim(folder: Path) -> Path:
    """Claim a folder for a new attempt; returns the attempt's own folder, to write in.

    Folders of earlier attempts are removed with all files that were not moved out: nothing of theirs can
    appear later, wherever they run. This needs no lock, which network file systems may not support. If
    several processes claim at the same time, the last in the order of names wins.
    """
    others = [path.name for path in folder.glob(f"{ATTEMPT}*")]
    number = max((int(name.split("-")[1]) for name in others), default=0) + 1
    own = folder / f"{ATTEMPT}{number:09d}-{secrets.token_hex(8)}"
    with writing(own):
        own.mkdir(parents=True)
    for path in sorted(folder.glob(f"{ATTEMPT}*"))[:-1]:
        remove(path)
    return own


def remove(folder: Path) -> None:
    """Remove a folder, even if another process writes to it meanwhile."""
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise


def clear_leftovers(folder: Path) -> None:
    """End all attempts below a folder, and remove unfinished files of processes that are gone.

    Folders below that have their own lock are skipped.
    """
    hidden = list(folder.rglob(".*"))
    others = {path.parent for path in hidden if path.name == LOCK} - {folder}
    for path in hidden:
        if not others.isdisjoint(path.parents):
            continue
        if path.name.startswith(ATTEMPT):
            remove(path)
        elif path.suffix == ".part" and is_abandoned(path):
            path.unlink(missing_ok=True)


def is_abandoned(part: Path) -> bool:
    """Whether the process of this machine that wrote a file is gone."""
    pid = part.name.split(".")[-2]
    return pid.isdecimal() and part.is_file() and not is_alive(int(pid))


def end_with_parent() -> None:
    """From now on, end this process as soon as its parent is gone: another run may continue its work."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    Thread(target=wait, daemon=True).start()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's process; or not a valid number
        pass
    return True


def whereabouts() -> dict[str, str | int]:
    """This host and process, and the time."""
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def memory(root: Path = ROOT) -> int:
    """Bytes of memory this process may use: all, or the limit of a container, scheduler or ulimit."""
    everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    groups = [*granted("memory.max", root), *granted("memory/memory.limit_in_bytes", root)]
    own = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    return min([everything, *map(int, groups), *(limit for limit in own if limit != resource.RLIM_INFINITY)])


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: Python's, PyTorch's for CUDA, or PyTorch's for others."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"MemoryError", "OutOfMemoryError"}) or "can't allocate memory" in str(error)


def cores(root: Path = ROOT) -> int:
    """Cores this process may use: all, or those that a container or a scheduler grants."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [map(int, line.split()) for line in granted("cpu.max", root)]
    return max(1, min([there, *(quota // period for quota, period in quotas)]))


@cache
def granted(name: str, root: Path) -> list[str]:
    """The contents of a limit's file in this process's control groups and those above, where it is limited.

    Cached, because every selection of images asks for the memory.
    """
    try:
        groups = [line.split(":", 2)[2] for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:  # not Linux
        return []
    *kind, file = name.split("/")  # in cgroup v1 every kind of limit has its own groups
    top = root.joinpath("sys/fs/cgroup", *kind)
    places = {
        place for group in groups for place in (top / group[1:] / "*").parents if place.is_relative_to(top)
    }
    found = [place.joinpath(file).read_text() for place in places if place.joinpath(file).is_file()]
    return [text for text in found if not text.startswith("max")]


def processor() -> str:
    """The processor's name, if the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
