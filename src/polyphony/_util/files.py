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
    """The path; OSError unless it is a regular file, and not larger than `LARGEST` for its suffix.

    Call it before opening a file: a pipe or a device may never end, and a sparse file can have any size.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if status.st_size > (limit := LARGEST.get(path.suffix.lower(), status.st_size)):
        raise OSError(errno.EFBIG, f"larger than the {limit:,} bytes that such a file may have", str(path))
    return path


class WriteError(OSError):
    """The system could not write a file or folder."""

    def __str__(self) -> str:
        return f"{self.filename} cannot be written ({self.strerror})"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise system errors as a WriteError that names the path."""
    try:
        yield
    except OSError as error:
        raise WriteError(error.errno, error.strerror or str(error), str(path)) from error


def temporary_path(path: Path, folder: Path) -> Path:
    """A unique path in a folder for a file that will be moved to `path`."""
    return folder / f".{path.name}.{secrets.token_hex(4)}.{os.getpid()}.part"


@contextmanager
def atomic_path(file: Path, attempt: Path | None = None) -> Iterator[Path]:
    """A temporary path to write to; it is flushed and renamed to `file` at the end, or removed on failure.

    It is in the folder of the file, or in that of an attempt: if a later attempt has removed that folder, the
    file cannot appear any more.
    """
    temporary = temporary_path(file, attempt or file.parent)
    with writing(file):
        if attempt is None:
            file.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)


def share_file(source: Path, target: Path, attempt: Path | None = None) -> None:
    """Hard-link a file atomically, or copy it if it cannot be linked."""
    with atomic_path(target, attempt) as temporary:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill; it is renamed to `folder` at the end, or removed on failure."""
    temporary = temporary_path(folder, folder.parent)
    with writing(folder):
        temporary.mkdir(parents=True)
        try:
            yield temporary
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


class Terminated(KeyboardInterrupt):
    """SIGTERM; handled like Ctrl-C."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise Terminated at the first SIGTERM; ignore later ones."""

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)  # not SIG_IGN, which new processes would inherit
        raise Terminated

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def claim(folder: Path) -> Path:
    """Claim a folder for a new attempt; returns a new folder in it, which only this attempt writes in.

    The folders of earlier attempts are removed, so that their unfinished files cannot appear later, on any
    machine. This needs no lock, which network file systems may not support. If several processes claim at the
    same time, the last in the order of names wins.
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
    """Remove a folder, even if another process writes to it at the same time."""
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise


def clear_leftovers(folder: Path) -> None:
    """Remove all attempts below a folder, and unfinished files of processes that have ended.

    Subfolders with their own lock are skipped.
    """
    hidden = list(folder.rglob(".*"))
    locked = {path.parent for path in hidden if path.name == LOCK} - {folder}
    for path in hidden:
        if not locked.isdisjoint(path.parents):
            continue
        if path.name.startswith(ATTEMPT):
            remove(path)
        elif path.suffix == ".part" and is_abandoned(path):
            path.unlink(missing_ok=True)


def is_abandoned(part: Path) -> bool:
    """Whether the process that wrote an unfinished file has ended; its ID is in the file's name."""
    pid = part.name.split(".")[-2]
    return pid.isdecimal() and part.is_file() and not is_alive(int(pid))


def end_with_parent() -> None:
    """From now on, end this process as soon as its parent ends: another run may continue its work."""
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
    except (PermissionError, OverflowError):  # another user's process, or not a valid process ID
        pass
    return True


def whereabouts() -> dict[str, str | int]:
    """The name of this host, the ID of this process, and the time."""
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def memory(root: Path = ROOT) -> int:
    """Bytes of memory that this process may use: all, or the limit of a container, scheduler or ulimit."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    groups = [*cgroup_limits("memory.max", root), *cgroup_limits("memory/memory.limit_in_bytes", root)]
    ulimits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    finite = [limit for limit in ulimits if limit != resource.RLIM_INFINITY]
    return min([physical, *map(int, groups), *finite])


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: Python's, or PyTorch's for CUDA or another device."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"MemoryError", "OutOfMemoryError"}) or "can't allocate memory" in str(error)


def cores(root: Path = ROOT) -> int:
    """Number of cores that this process may use: all, or the limit of a container or a scheduler."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [map(int, line.split()) for line in cgroup_limits("cpu.max", root)]
    return max(1, min([available, *(quota // period for quota, period in quotas)]))


@cache
def cgroup_limits(name: str, root: Path) -> list[str]:
    """The contents of a limit's file in the control groups of this process and their parents.

    Groups without a limit are left out. Cached, because every selection of images needs the memory's limit.
    """
    try:
        groups = [line.split(":", 2)[2] for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:  # not Linux
        return []
    *kind, file = name.split("/")  # in cgroup v1 every kind of limit has its own groups
    top = root.joinpath("sys/fs/cgroup", *kind)
    folders = {
        folder for group in groups for folder in (top / group[1:] / "*").parents if folder.is_relative_to(top)
    }
    texts = [folder.joinpath(file).read_text() for folder in folders if folder.joinpath(file).is_file()]
    return [text for text in texts if not text.startswith("max")]


def processor() -> str:
    """The name of the processor; perhaps empty if the system does not tell it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
