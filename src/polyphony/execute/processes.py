"""Run jobs in several processes of this machine; their reports reach the board in this process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, Self

import torch

from polyphony._util.files import Terminated, cores, end_with_parent
from polyphony.execute.board import Board, Event, Failed, Finished, Relay
from polyphony.execute.job import Graph
from polyphony.execute.runner import Here, JobError, run_job

LOOK_SECONDS = 0.2  # between checks whether the other processes are alive
SHUTDOWN_SECONDS = 2.0  # for a process to end when asked to


class WorkerLostError(JobError):
    """A process ended before its job did, without an error."""


class Processes:
    """Worker processes with `threads` each. They start when there is work, and are reused.

    If there are GPUs, each process gets one of them; processes share GPUs only if there are too few.
    """

    def __init__(self, at_once: int, threads: int, gpus: Sequence[str] = ()) -> None:
        self.at_once, self.threads, self.gpus = at_once, threads, gpus
        self.workers: list[BaseProcess] = []
        self._context = context()
        self._todo, self._events = self._context.Queue(), self._context.Queue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _worker in self.workers:
            self._todo.put(None)
        for worker in self.workers:
            worker.join(SHUTDOWN_SECONDS)
        self._stop()  # one that was killed while it waited holds the lock of the queue: the others would hang

    def run(self, graph: Graph, board: Board) -> None:
        """Run the jobs of a graph, several at a time; the first failure stops them all and is raised."""
        if graph.left() == 1:  # do not start processes for nothing
            return Here(self.threads).run(graph, board)
        try:
            while graph.left():
                self._start_jobs(graph)
                event = next_event(self._events, self.workers)
                if event is not None:
                    event.tell(board)
                if isinstance(event, Finished):
                    graph.finish(event.name)
        except BaseException:
            self._stop()
            raise

    def _start_jobs(self, graph: Graph) -> None:
        while len(graph.running) < self.at_once and (job := graph.next()) is not None:
            if len(self.workers) < len(graph.running):
                self._start_worker()
            self._todo.put(job)

    def _start_worker(self) -> None:
        gpu = self.gpus[len(self.workers) % len(self.gpus)] if self.gpus else None
        details = (self._todo, self._events, self.threads, gpu)
        worker = self._context.Process(target=work, args=details, daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a worker never gets Ctrl-C
        try:
            worker.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.workers.append(worker)

    def _stop(self) -> None:
        """End the processes, even in the middle of a job, and drop the queues."""
        self._todo.cancel_join_thread()  # unread jobs must not block the end of this process
        for worker in self.workers:
            worker.terminate()
            worker.join()
        self.workers = []
        self._todo, self._events = self._context.Queue(), self._context.Queue()


def context() -> ForkServerContext | SpawnContext:
    """How processes start: on Linux as forks of a process that has only imported PyTorch."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["polyphony.study.run"])
    return server


def default_workers(device: str, threads: int, gpus_per_job: float = 1.0) -> int:
    """As many processes as fit the cores, or the GPUs. Jobs share a GPU only if `gpus_per_job` is below 1."""
    if device == "cpu":
        return max(1, cores() // threads)
    return max(1, len(visible_gpus(device)) * int(1 / gpus_per_job))


def visible_gpus(device: str) -> list[str]:
    """The GPUs of this machine that jobs can have, as CUDA names them."""
    if device != "cuda":  # a device with a number leaves no choice
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(k) for k in range(torch.cuda.device_count())]


def next_event(events: Any, workers: Sequence[BaseProcess]) -> Event | None:
    """The next report of a worker, or None; raises if a worker has ended and there is nothing left to read.

    After a worker has ended this does not wait, since the others may report for ever. A SIGTERM to one worker
    is treated as one to all.
    """
    codes = [worker.exitcode for worker in workers]  # before reading what they have left
    ended = any(code is not None for code in codes)
    try:
        event: Event = events.get(timeout=0.0 if ended else LOOK_SECONDS)
    except queue.Empty:
        if -signal.SIGTERM in codes:
            raise Terminated from None
        if ended:
            raise WorkerLostError(f"a worker process ended early (exit codes {codes})") from None
        return None
    return event


def work(todo: Any, events: Any, threads: int, gpu: str | None = None) -> None:
    """A worker process: runs jobs until one fails, until it is told to end, or until its parent is gone."""
    if gpu is not None:  # CUDA, which is not initialised yet, will see this one alone
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    end_with_parent()
    torch.set_num_threads(threads)
    while (job := todo.get()) is not None:
        try:
            run_job(job, Relay(events.put))
        except Exception as error:
            events.put(Failed(job.name, sendable(error)))
            return


def sendable(error: Exception) -> Exception:
    """The error with this process's traceback; a JobError with its text if it cannot be pickled."""
    error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return JobError(f"{type(error).__name__}: {error}")
    return error
