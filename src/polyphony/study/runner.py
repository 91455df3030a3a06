"""Where jobs run: the seam between a study's graph of jobs and this process, other processes, or a cluster.

A runner takes a graph's next job whenever it has room for one, runs it by `run_job`, tells the board what is
reported and the graph what is finished. The first failure stops everything and is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any, Protocol, Self

import torch

from polyphony.compute.devices import arithmetic
from polyphony.recipe import own_faults_named
from polyphony.training.collapse import Row
from polyphony.training.fit import Watch

Event = tuple[Any, ...]
"""(what, name of the job, …): a call of the board's, or ("failed", name, error)."""


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


class Board(Protocol):
    """Where people see how the jobs go."""

    def started(self, name: str, epochs: int) -> None:
        """A job begins."""

    def step(self, name: str, done: int, steps: int, row: Row) -> None:
        """So many steps of a job's epoch are done."""

    def epoch(self, name: str, row: Row) -> None:
        """An epoch of a job is over."""

    def warn(self, name: str, sentence: str) -> None:
        """Something a person should know of a job before it is done."""

    def finished(self, name: str) -> None:
        """A job is done."""


class Runner(Protocol):
    """A place to run jobs, as long as its `with` lasts."""

    @property
    def at_once(self) -> int:
        """How many jobs run at a time, one at least."""

    def run(self, graph: Graph, board: Board) -> None:
        """Run a graph's jobs to the last; the first failure stops them all and is raised here."""

    def __enter__(self) -> Self:
        """What runs jobs."""

    def __exit__(self, *_: object) -> None:
        """Let go of whatever was held for jobs to come."""


class JobError(RuntimeError):
    """A job failed in another process, for a reason that could not be sent as it was."""


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


@dataclass(frozen=True)
class JobWatch:
    """A job's watch: everything goes to a board, under the job's name."""

    board: Board
    name: str

    def step(self, done: int, steps: int, row: Row) -> None:
        self.board.step(self.name, done, steps, row)

    def epoch(self, row: Row) -> None:
        self.board.epoch(self.name, row)

    def warn(self, sentence: str) -> None:
        self.board.warn(self.name, sentence)


@dataclass(frozen=True)
class Relay:
    """A board where a job runs: everything is sent as an event to where people look."""

    send: Callable[[Event], object]

    def started(self, name: str, epochs: int) -> None:
        self.send(("started", name, epochs))

    def step(self, name: str, done: int, steps: int, row: Row) -> None:
        self.send(("step", name, done, steps, row))

    def epoch(self, name: str, row: Row) -> None:
        self.send(("epoch", name, row))

    def warn(self, name: str, sentence: str) -> None:
        self.send(("warn", name, sentence))

    def finished(self, name: str) -> None:
        self.send(("finished", name))


def run_job(job: Job, board: Board) -> None:
    """One job from start to end."""
    board.started(job.name, job.epochs)
    with arithmetic(), own_faults_named():  # exact, but for what a training says of itself
        job.run(JobWatch(board, job.name))
    board.finished(job.name)


def pass_on(event: Event, board: Board) -> bool:
    """Tell the board what a relay sent, or raise what made its job fail; whether the job is finished."""
    what, name, *details = event
    if what == "failed":
        raise details[0]
    getattr(board, what)(name, *details)
    return bool(what == "finished")


@dataclass(frozen=True)
class Here:
    """Jobs in this process, one after the other, with so many threads."""

    threads: int
    at_once: int = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was held."""

    def run(self, graph: Graph, board: Board) -> None:
        """Run a graph's jobs to the last, or to the first that fails."""
        torch.set_num_threads(self.threads)
        while (job := graph.next()) is not None:
            self.run_one(job, board)
            graph.finish(job.name)

    def run_one(self, job: Job, board: Board) -> None:
        """One job from start to end."""
        run_job(job, board)
