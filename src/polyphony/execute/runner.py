"""Where jobs run: the seam between a plan and this process, other processes, or a cluster.

A runner takes a graph's next job whenever it has room for one, runs it by `run_job`, tells the board what is
reported and the graph what is finished. The first failure stops everything and is raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import torch

from polyphony.compute.devices import arithmetic
from polyphony.execute.board import Board, JobWatch
from polyphony.execute.job import Graph, Job
from polyphony.recipe import own_faults_named


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


def run_job(job: Job, board: Board) -> None:
    """One job from start to end."""
    board.started(job.name, job.epochs)
    with arithmetic(), own_faults_named():  # exact, but for what a training says of itself
        job.run(JobWatch(board, job.name))
    board.finished(job.name)


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
