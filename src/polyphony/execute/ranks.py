"""One training in a group of processes with ranks, started by torchrun or by `run_in_ranks`.

All processes take part in trainings; the first process does everything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from polyphony._util.files import end_with_parent
from polyphony.compute.parallel import GoneError, Group, GroupError, group_from_environment, leave
from polyphony.execute.board import Board, Failed, Finished, Relay
from polyphony.execute.job import Job
from polyphony.execute.processes import SHUTDOWN_SECONDS, context, next_event, sendable
from polyphony.execute.runner import Here, run_job
from polyphony.training.tally import DivergedError

HOST = "127.0.0.1"
RankJob = tuple[Job, int] | None  # a job for all processes and its number of threads; None: the end


@dataclass(frozen=True, kw_only=True)
class Together(Here):
    """The runner of the first process: jobs one after the other, trainings with all processes."""

    group: Group

    def run_one(self, job: Job, board: Board) -> None:
        if job.in_ranks:
            broadcast(self.group, (job, self.threads))
        run_job(job, board)


def broadcast(group: Group, rank_job: RankJob) -> RankJob:
    """Send the job of the first process to all processes. Returns this job in each of them."""
    return group.from_first(lambda: rank_job)


def run_together(command: Callable[[], None]) -> None:
    """Run a command in the first process of a group; the others take part in its trainings."""
    group = group_from_environment()
    if group.rank:
        follow(group)
    else:
        try:
            command()
        except SystemExit as end:
            if end.code:
                raise  # torchrun ends the others
        broadcast(group, None)
    leave(group)


def follow(group: Group) -> None:
    """Run the jobs of the first process until it sends None.

    Raises errors that only this process has: it then ends, and torchrun ends the others, which would wait for
    it otherwise. Errors that all processes raise at the same place are ignored, since a sweep continues.
    """
    while (rank_job := broadcast(group, None)) is not None:
        job, threads = rank_job
        torch.set_num_threads(threads)
        try:
            run_job(job, Relay(lambda event: None))
        except GoneError:
            raise
        except (DivergedError, GroupError):
            continue  # raised by all processes


def run_in_ranks(job: Job, count: int, prepare: Callable[[], None], board: Board) -> None:
    """Run a training in `count` processes, which call `prepare` first; one of them reports to the board.

    Raises the error of the training; a WorkerLostError or a GoneError if a process was lost.
    """
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)  # at any free port
    start = context()
    events, event = start.Queue(), None
    ranks: list[BaseProcess] = [
        start.Process(
            target=run_rank,
            args=(rank_environment(rank, count, store.port), prepare, job, events),
            daemon=True,
        )
        for rank in range(count)
    ]
    try:
        for rank in ranks:
            rank.start()
        while not isinstance(event, Finished):
            event = next_event(events, ranks)
            if event is not None:
                event.report_to(board)
        for rank in ranks:
            rank.join(SHUTDOWN_SECONDS)
    finally:
        for rank in ranks:
            if rank.pid is not None:
                rank.kill()
                rank.join()


def rank_environment(rank: int, count: int, port: int) -> dict[str, str]:
    """The environment variables that torchrun would set for a rank, and the visible GPUs of this process."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    return ({} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}) | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "polyphony",
    }


def run_rank(environment: dict[str, str], prepare: Callable[[], None], job: Job, events: Any) -> None:
    """The main function of one process of a training; a process that fails reports its error."""
    end_with_parent()
    os.environ.update(environment)

    def train() -> None:
        Together(torch.get_num_threads(), group=group).run_one(job, Relay(events.put))
        flush(events)  # before the others end

    try:
        group = group_from_environment()  # chooses the GPU of this rank
        prepare()
        run_together(train)
    except Exception as error:
        events.put(Failed(job.name, sendable(error)))
        flush(events)
    os._exit(0)  # a normal exit would abort in torch.distributed's threads


def flush(events: Any) -> None:
    """Close a queue and wait until everything in it was sent."""
    events.close()
    events.join_thread()
