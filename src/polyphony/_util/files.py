"""What is asked of the machine: files that appear whole or not at all, a signal, memory, cores, its name."""

from __future__ import annotations

import errno
import multiprocessing
import os
import platform
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

ATTEMPT = ".attempt-"  # how the folders of attempts begin
LOCK = ".lock"  # the file of a folder that is worked in
ROOT = Path("/")


MEGABYTE, GIGABYTE = 1 << 20, 1 << 30
LARGEST = {".json": 64 * MEGABYTE, ".jsonl": GIGABYTE, ".csv": GIGABYTE}  # bytes that a file may have
LARGEST |= dict.fromkeys((".safetensors", ".pt", ".pth", ".bin", ".ckpt"), 64 * GIGABYTE)


def regular(path: Path) -> Path:
    """The path of a regular file, checked before it is opened; else an OSError.

    A pipe or a device may never end, and a sparse file can have any size: one that is larger than any of its
    kind (`LARGEST`, by suffix) is refused.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    if status.st_size > (most := LARGEST.get(path.suffix.lower(), status.st_size)):
        raise OSError(errno.EFBIG, f"larger than the {most:,} bytes that such a file may have", str(path))
    return path


class WriteError(OSError):
    """A file or folder that the system would not let us write, in one sentence."""

    def __str__(self) -> str:
        return f"{self.filename} cannot be written ({self.strerror})"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses meanwhile is a WriteError that names the path."""
    try:
        yield
    except OSError as error:
        raise WriteError(error.errno, error.strerror or str(error), str(path)) from error


def part_of(path: Path, folder: Path) -> Path:
    """Where in a folder to make what is to be at a path: nobody else's, also of processes of equal number."""
    return folder / f".{path.name}.{secrets.token_hex(4)}.{os.getpid()}.part"


@contextmanager
def atomic_path(file: Path, attempt: Path | None = None) -> Iterator[Path]:
    """A path beside `file` to write to; flushed and renamed to it at the end, removed if anything fails.

    An attempt's files are made in its own folder, so that they cannot appear once a later one has removed it.
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
    """The same file in another place, whole: a second name for it, or a copy where there can be none."""
    with atomic_path(target, attempt) as beside:
        try:
            os.link(source, beside)
        except OSError:
            shutil.copyfile(source, beside)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` to fill; renamed to it at the end, removed if anything fails."""
    beside = part_of(folder, folder.parent)
    with writing(folder):
        beside.mkdir(parents=True)
        try:
            yield beside
            beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends what is running as Ctrl-C does."""


@contextmanager
def terminable() -> Iterator[None]:
    """Meanwhile the first SIGTERM raises Terminated; others change nothing."""

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)  # not SIG_IGN, which new processes would inherit
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def claim(folder: Path) -> Path:
    """Claim a folder for a new attempt at what it is to hold: the attempt's own folder, to make files in.

    Those of earlier attempts are removed, and with them all that was not moved to its place: nothing of
    theirs can appear afterwards, wherever they run. It needs no lock, which a file system of many machines
    may not keep. Of several who claim at the same time, the last in the order of names has the folder.
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
    """Remove a folder, also one that somebody writes to meanwhile."""
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise


def clear_leftovers(folder: Path) -> None:
    """End all attempts, and remove what processes of this machine that are no more have left half written.

    Other folders below that have a lock of their own are left alone.
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
    """Whether the process of this machine that was writing a file is no more."""
    pid = part.name.split(".")[-2]
    return pid.isdecimal() and part.is_file() and not is_alive(int(pid))


def end_with_parent() -> None:
    """From now on end this process, even amid its work, once its parent is gone: others may go on with it."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    Thread(target=wait, daemon=True).start()


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # somebody else's; or no number of a process
        pass
    return True


def whereabouts() -> dict[str, str | int]:
    """Where this is asked: on which host, in which process, and when."""
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def memory(root: Path = ROOT) -> int:
    """How many bytes of memory this process may have: all, or what a container, scheduler or ulimit gives."""
    limits = [*granted("memory.max", root), *granted("memory/memory.limit_in_bytes", root)]
    everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([everything, *map(int, limits), *own_limits()])


def own_limits() -> list[int]:
    """Bytes of memory that `ulimit -d` and `ulimit -v` leave this process, wherever they are set."""
    try:
        import resource
    except ImportError:  # not on Windows
        return []
    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS))
    return [limit for limit in limits if limit != resource.RLIM_INFINITY]


def out_of_memory(error: BaseException) -> bool:
    """Whether it says that there is no memory left: Python's, PyTorch's for CUDA, PyTorch's for the rest."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"MemoryError", "OutOfMemoryError"}) or "can't allocate memory" in str(error)


def cores(root: Path = ROOT) -> int:
    """How many cores this process may use: all, or those that a container or a scheduler gives."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [map(int, line.split()) for line in granted("cpu.max", root)]
    return max(1, min([there, *(quota // period for quota, period in quotas)]))


@cache
def granted(name: str, root: Path) -> list[str]:
    """What a limit's file says in the control groups, from this process's own up, wherever it is limited.

    It is read once a process: every selection of images asks whether there is room for them.
    """
    try:
        groups = [line.split(":", 2)[2] for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:  # on other systems than Linux
        return []
    *kind, file = name.split("/")  # in the older layout every kind of limit has groups of its own
    top = root.joinpath("sys/fs/cgroup", *kind)
    places = {
        place for group in groups for place in (top / group[1:] / "*").parents if place.is_relative_to(top)
    }
    found = [place.joinpath(file).read_text() for place in places if place.joinpath(file).is_file()]
    return [text for text in found if not text.startswith("max")]


def processor() -> str:
    """The processor's name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
