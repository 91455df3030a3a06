"""The protocol of runners, and the runner of this process.

A runner takes the graph's next job whenever it has room, runs it with `run_job`, sends reports to the board,
and tells the graph when a job has ended. The first failure stops everything and is raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import torch

from polyphony.compute.devices import arithmetic, keep_freed_memory
from polyphony.execute.board import Board, JobWatch
from polyphony.execute.job import Graph, Job
from polyphony.recipe import report_user_errors


class Runner(Protocol):
    """Runs jobs, within a `with` block."""

    @property
    def at_once(self) -> int:
        """How many jobs run at a time, at least one."""

    def run(self, graph: Graph, board: Board) -> None:
        """Run all jobs of a graph; the first failure stops them and is raised."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None:
        """Release processes and connections."""


class JobError(RuntimeError):
    """A job failed in another process with an error that cannot be pickled."""


def run_job(job: Job, board: Board) -> None:
    """Run one job in this process; errors from the user's code are raised as RecipeErrors."""
    keep_freed_memory()
    board.started(job.name, job.epochs)
    with arithmetic(), report_user_errors():  # exact arithmetic, unless a training sets something else
        job.run(JobWatch(board, job.name))
    board.finished(job.name)


@dataclass(frozen=True)
class Here:
    """The runner of this process: jobs one after the other."""

    threads: int
    at_once: int = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, graph: Graph, board: Board) -> None:
        torch.set_num_threads(self.threads)
        while (job := graph.next()) is not None:
            self.run_one(job, board)
            graph.finish(job.name)

    def run_one(self, job: Job, board: Board) -> None:
        run_job(job, board)
