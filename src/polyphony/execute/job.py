"""A job: a piece of work whose result has a key; and the order in which jobs can run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any, Protocol

from polyphony.training.fit import Watch


class Result(Protocol):
    """Where a result is kept, under the key of everything that it depends on."""

    @property
    def key(self) -> str:
        """The hash of everything that the result depends on."""

    def is_done(self) -> bool:
        """Whether there is a result with this key."""


class Work(Protocol):
    """What a job runs. It holds a recipe, not data, so that it is cheap to send to another process."""

    def run(self, result: Any, watch: Watch) -> None:
        """Make the result, or what is missing of it."""


@dataclass(frozen=True)
class Job:
    """A piece of work whose result is a file or a folder."""

    name: str  # what a person calls it; no other job of a plan has the same
    needs: tuple[str, ...]  # the names of jobs whose results it reads
    result: Result
    work: Work
    epochs: int = 1  # how many steps of progress it makes
    in_ranks: bool = False  # whether several processes can do it together

    @property
    def key(self) -> str:
        """The hash of everything that the result depends on."""
        return self.result.key

    def is_done(self) -> bool:
        """Whether there is a result with this key."""
        return self.result.is_done()

    def run(self, watch: Watch) -> None:
        """Make the result, or what is missing of it."""
        self.work.run(self.result, watch)


class Graph:
    """Jobs that are to be run, each given out when all that it needs has ended; in the list's order.

    What a job needs and is not in the list must be there.
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
        """The next job to be started; nothing while the others wait for those that run, or at the end."""
        self._ready.update(self._waiting.get_ready())
        if not self._ready:
            return None
        name = min(self._ready, key=self._order.index)
        self._ready.remove(name)
        self.running.add(name)
        return self._jobs[name]

    def finish(self, name: str) -> None:
        """A job that was given out is done."""
        self.running.remove(name)
        self.ran.add(name)
        self._waiting.done(name)

    def left(self) -> int:
        """How many jobs have not ended."""
        return len(self._jobs) - len(self.ran)


def not_done(jobs: Iterable[Job]) -> list[Job]:
    """The jobs whose results are not there."""
    return [job for job in jobs if not job.is_done()]
