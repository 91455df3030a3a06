"""Jobs: work whose result has a key, and the order in which jobs can run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any, Protocol

from polyphony.training.fit import Watch


class Result(Protocol):
    """The place of a result, with its key."""

    @property
    def key(self) -> str:
        """The hash of everything that the result depends on."""

    def is_done(self) -> bool:
        """Whether there is a result with this key."""


class Work(Protocol):
    """The code of a job. It holds a recipe, not data, so that it is cheap to send to another process."""

    def run(self, result: Any, watch: Watch) -> None:
        """Make the result, or its missing part."""


@dataclass(frozen=True)
class Job:
    """Work whose result is a file or a folder."""

    name: str  # for people; unique in a plan
    needs: tuple[str, ...]  # names of the jobs whose results it reads
    result: Result
    work: Work
    epochs: int = 1  # steps of its progress bar
    in_ranks: bool = False  # whether several processes can run it together

    @property
    def key(self) -> str:
        return self.result.key

    def is_done(self) -> bool:
        return self.result.is_done()

    def run(self, watch: Watch) -> None:
        self.work.run(self.result, watch)


class Graph:
    """The jobs to run, and which of them can start: those whose needed jobs have ended.

    Jobs that are needed but not in the list must be done already.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._order = list(self._jobs)
        self._waiting = TopologicalSorter({job.name: self._jobs.keys() & set(job.needs) for job in jobs})
        self._waiting.prepare()
        self._ready: set[str] = set()
        self.running: set[str] = set()
        self.ran: set[str] = set()

    def next(self) -> Job | None:
        """The next job to start, in the order of the list; None if all others wait, or if none is left."""
        self._ready.update(self._waiting.get_ready())
        if not self._ready:
            return None
        name = min(self._ready, key=self._order.index)
        self._ready.remove(name)
        self.running.add(name)
        return self._jobs[name]

    def finish(self, name: str) -> None:
        self.running.remove(name)
        self.ran.add(name)
        self._waiting.done(name)

    def left(self) -> int:
        """How many jobs have not ended."""
        return len(self._jobs) - len(self.ran)


def not_done(jobs: Iterable[Job]) -> list[Job]:
    """The jobs whose results are missing."""
    return [job for job in jobs if not job.is_done()]
