"""What is asked of the machine: files that appear whole or not at all, a signal, its memory and its name."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """A path beside `file` to write to; flushed and renamed to it at the end, removed if anything fails."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}.part")
    beside.unlink(missing_ok=True)  # a killed process of the same number may have left a link there
    try:
        yield beside
        with beside.open("rb") as stream:
            os.fsync(stream.fileno())
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends what is running as Ctrl-C does."""


@contextmanager
def terminable() -> Iterator[None]:
    """Meanwhile the first SIGTERM raises Terminated; others change nothing."""

    def terminate(*_: object) -> None:
        signal.signal(
            signal.SIGTERM, lambda *_: None
        )  # not SIG_IGN, which processes started now would inherit
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def clear_leftovers(folder: Path) -> None:
    """Remove what processes of this machine that are no more have left half written by `whole`."""
    for path in folder.rglob(".*.part"):
        pid = path.name.split(".")[-2]
        if pid.isdecimal() and not is_alive(int(pid)):
            path.unlink(missing_ok=True)


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


def memory() -> int:
    """How many bytes of memory the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def processor() -> str:
    """The processor's name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
