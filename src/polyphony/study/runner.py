"""Where jobs run: the seam between a study's graph of jobs and this process, other processes, or a cluster.

A runner takes a graph's next job whenever it has room for one, runs it by `run_job`, tells the board what is
reported and the graph what is finished. The first failure stops everything and is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch

from polyphony.compute.devices import arithmetic
from polyphony.recipe import own_faults_named
from polyphony.training.collapse import Row
from polyphony.training.fit import Watch

Event = tuple[Any, ...]
"""(what, name of the job, …): a call of the board's, or ("failed", name, error)."""


class Job(Protocol):
    """A piece of work whose result is a file. It holds a recipe, not data, so that it is cheap to send."""

    @property
    def name(self) -> str:
        """What a person calls it; no other job of a graph has the same."""

    @property
    def epochs(self) -> int:
        """How many steps of progress it makes."""

    @property
    def needs(self) -> Sequence[Job]:
        """The jobs whose results must be there before this one can be asked whether it is done, or run."""
        return ()

    def is_done(self) -> bool:
        """Whether its result is there already."""

    def run(self, watch: Watch) -> None:
        """Make the result, or what is missing of it."""


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
    """A list of jobs, given out when all they need is there; where there is a choice, in the list's order.

    Whether a job is done can depend on what it needs, so that it is asked only then: `missing` is given jobs
    that can be asked, and returns those that must be run. What is needed and not in the list must be there.
    """

    def __init__(
        self, jobs: Sequence[Job], missing: Callable[[Sequence[Job]], Sequence[Job]] | None = None
    ) -> None:
        self._missing = missing or not_done
        self._unasked = {job.name: job for job in jobs}
        self._needs = {job.name: {need.name for need in job.needs} & self._unasked.keys() for job in jobs}
        self._order = list(self._unasked)
        self._ready: dict[str, Job] = {}
        self.running: set[str] = set()
        self.found: set[str] = set()  # names of jobs that need not be run
        self.ran: set[str] = set()  # and of those that were

    def next(self) -> Job | None:
        """The next job to be started; nothing while the others wait for those that run, or at the end."""
        self._ask()
        for name in self._order:
            if name in self._ready:
                self.running.add(name)
                return self._ready.pop(name)
        return None

    def finish(self, name: str) -> None:
        """A job that was given out is done."""
        self.running.remove(name)
        self.ran.add(name)

    def left(self) -> int:
        """How many jobs are not done, as far as can be told."""
        self._ask()
        return len(self._unasked) + len(self._ready) + len(self.running)

    def _ask(self) -> None:
        """Find out which jobs must be run, as far as all is there that they need."""
        while able := [
            job for job in self._unasked.values() if self._needs[job.name] <= self.found | self.ran
        ]:
            missing = {job.name: job for job in self._missing(able)}
            self._ready |= missing
            self.found |= {job.name for job in able} - missing.keys()
            for job in able:
                del self._unasked[job.name]


def not_done(jobs: Sequence[Job]) -> list[Job]:
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
