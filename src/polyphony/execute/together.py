"""Jobs in a group of processes that torchrun started: all do a training, the first does the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from polyphony.compute.devices import arithmetic
from polyphony.compute.parallel import GoneError, Group, GroupError, group_from_environment, leave
from polyphony.execute.board import Board
from polyphony.execute.job import Job
from polyphony.execute.runner import Here, run_job
from polyphony.recipe import own_faults_named
from polyphony.training.fit import Unwatched
from polyphony.training.tally import DivergedError

Order = tuple[Job, int] | None  # what the others do, with so many threads; nothing: they are done


@dataclass(frozen=True, kw_only=True)
class Together(Here):
    """The first process's runner: jobs one after the other, trainings with all processes."""

    group: Group

    def run_one(self, job: Job, board: Board) -> None:
        """One job from start to end, which the others may have a part in."""
        if job.in_ranks:
            tell(self.group, (job, self.threads))
        run_job(job, board)


def tell(group: Group, order: Order) -> Order:
    """What the first process wants of the others, in all of them."""
    return group.from_first(lambda: order)


def run_together(command: Callable[[], None]) -> None:
    """Run a command in the first process of a group; the others do their part of its trainings."""
    group = group_from_environment()
    if group.rank:
        follow(group)
    else:
        lead(group, command)
    leave(group)


def lead(group: Group, command: Callable[[], None]) -> None:
    """Run the command to its end, and tell the others."""
    try:
        command()
    except SystemExit as end:
        if end.code:
            raise  # torchrun ends the others
    tell(group, None)


def follow(group: Group) -> None:
    """Do what the first process says, until it says no more; raises what fails in this process alone.

    Then this process ends, and the others with it: if it went on, they would wait for each other.
    """
    while (order := tell(group, None)) is not None:
        job, threads = order
        torch.set_num_threads(threads)
        try:
            with arithmetic(), own_faults_named():  # as `run_job` does
                job.run(Unwatched())
        except GoneError:
            raise
        except (DivergedError, GroupError):
            continue  # which all processes raise at the same place: a sweep goes on
