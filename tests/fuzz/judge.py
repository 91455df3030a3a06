"""Whether what came of a bad input is allowed: a result, or one sentence of the project's own, in bounds."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

Call = Callable[[], object]
SECONDS = 20  # of processor time: longer is a hang
PATIENCE = 6  # times as many by the clock: who waits for nothing takes no processor time


def most(size: int) -> int:
    """Bytes of memory that files of so many bytes may take."""
    return (512 << 20) + 100 * size


@dataclass(frozen=True)
class Kind:
    """A kind of bad input: `make` writes one below a folder and gives the call that reads it.

    The call may end with one of `errors`, or with a result that it has looked at itself.
    """

    name: str
    make: Callable[[Random, Path], Call]
    errors: tuple[type[Exception], ...]


@dataclass(frozen=True)
class Outcome:
    """What came of one input: "read" or "refused", the sentence, processor seconds, bytes at the most."""

    verdict: str
    sentence: str
    seconds: float
    memory: int
    size: int


class FaultError(AssertionError):
    """An input that was answered with what is not allowed."""


class Hang(BaseException):
    """An input that was not answered in time; no reader can take it for a damaged file."""


def judge(kind: Kind, seed: str) -> Outcome:
    """The outcome of the input that the seed makes; FaultError where it is not allowed."""
    with scratch() as folder:
        call = kind.make(Random(seed), folder)
        before = contents(folder)
        started, resident = time.process_time(), reset_peak()
        verdict, sentence = answer(kind, call, seed)
        seconds, memory = time.process_time() - started, peak() - resident
        size = sum(size for _, size in before)
        if contents(folder) != before:
            raise FaultError(f"{kind.name} {seed}: files were changed")
        if memory > most(size):
            raise FaultError(f"{kind.name} {seed}: {memory >> 20} MiB of memory for {size:,} bytes")
        return Outcome(verdict, sentence, seconds, memory, size)


def answer(kind: Kind, call: Call, seed: str) -> tuple[str, str]:
    try:
        with in_time():
            call()
    except Hang:
        raise FaultError(f"{kind.name} {seed}: no answer within {SECONDS} s") from None
    except kind.errors as error:
        sentence = str(error)
        if not sentence or len(sentence) > 300 or not sentence.isprintable():
            raise FaultError(f"{kind.name} {seed}: no sentence: {sentence[:500]!r}") from error
        return "refused", sentence
    except Exception as error:
        raise FaultError(f"{kind.name} {seed}: {type(error).__name__}: {str(error)[:500]}") from error
    return "read", ""


@contextmanager
def in_time() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang

    before = {each: signal.signal(each, stop) for each in (signal.SIGALRM, signal.SIGPROF)}
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(PATIENCE * SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder, the data's and the current one; nothing is cached."""
    here, kept = Path.cwd(), {name: os.environ.get(name) for name in ("XDG_CACHE_HOME", "POLYPHONY_DATA")}
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    os.environ |= {"XDG_CACHE_HOME": "/dev/null/cache", "POLYPHONY_DATA": str(folder)}
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(here)
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        shutil.rmtree(folder)


def contents(folder: Path) -> list[tuple[str, int]]:
    """(name, size) of everything below the folder."""
    return sorted((str(path), path.lstat().st_size) for path in folder.rglob("*") if not path.is_dir())


def reset_peak() -> int:
    """Bytes in memory now, from which the peak is measured; 0 where the system does not tell."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return status("VmRSS")


def peak() -> int:
    return status("VmHWM")


def status(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(field)), 0)
