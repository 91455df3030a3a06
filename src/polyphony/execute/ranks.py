"""One training in several processes of this machine, which have ranks as if torchrun had started them."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from polyphony._util.files import end_with_parent
from polyphony.compute.parallel import group_from_environment
from polyphony.execute.board import Board, Failed, Finished, Relay
from polyphony.execute.job import Job
from polyphony.execute.processes import SHUTDOWN_SECONDS, context, next_event, sendable
from polyphony.execute.together import Together, run_together

HOST = "127.0.0.1"


def run_in_ranks(job: Job, count: int, prepare: Callable[[], None], board: Board) -> None:
    """Run a training in so many processes, each of which is prepared first; one of them tells the board.

    Raises what made it fail; where a process was lost, a WorkerLostError or a GoneError.
    """
    meeting = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)  # at a port that is free
    start = context()
    events, event = start.Queue(), None
    ranks: list[BaseProcess] = [
        start.Process(
            target=take_rank,
            args=(variables(rank, count, meeting.port), prepare, job, events),
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
                event.tell(board)
        for rank in ranks:
            rank.join(SHUTDOWN_SECONDS)
    finally:
        for rank in ranks:
            if rank.pid is not None:
                rank.kill()
                rank.join()


def variables(rank: int, count: int, port: int) -> dict[str, str]:
    """What torchrun tells the process of a rank, by variables of its environment; and which GPUs are ours."""
    ours = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    meeting = {"MASTER_ADDR": HOST, "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    told = {**ours, **meeting, "TORCHELASTIC_RUN_ID": "polyphony"}
    gpus = {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ}
    return gpus | {name: str(value) for name, value in told.items()}


def take_rank(told: dict[str, str], prepare: Callable[[], None], job: Job, events: Any) -> None:
    """A process of a training, from start to end; whichever fails says why."""
    end_with_parent()
    os.environ.update(told)

    def lead() -> None:
        Together(torch.get_num_threads(), group=group).run_one(job, Relay(events.put))
        tell_all(events)  # before the others end

    try:
        group = group_from_environment()  # which chooses the GPU of this rank
        prepare()
        run_together(lead)
    except Exception as error:
        events.put(Failed(job.name, sendable(error)))
        tell_all(events)
    os._exit(0)  # torch.distributed's threads abort a process in which Python is taken down around them


def tell_all(events: Any) -> None:
    """Wait until all that was put into a queue has left this process."""
    events.close()
    events.join_thread()
