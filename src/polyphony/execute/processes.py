"""Run jobs in several processes of this machine; the board in this process shows their reports."""

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

POLL_SECONDS = 0.2  # between checks that the other processes are alive
SHUTDOWN_SECONDS = 2.0  # timeout for a process to end by itself


class WorkerLostError(JobError):
    """A process ended before its job did, without an error."""


class Processes:
    """Runs jobs in worker processes with `threads` threads each. They start when needed, and are reused.

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
        self._stop()  # a worker that was killed while it waited holds the queue's lock: the others would hang

    def run(self, graph: Graph, board: Board) -> None:
        """Run the jobs of a graph, several at a time; the first failure stops them all and is raised."""
        if graph.left() == 1:  # needs no other process
            return Here(self.threads).run(graph, board)
        try:
            while graph.left():
                self._start_jobs(graph)
                event = next_event(self._events, self.workers)
                if event is not None:
                    event.report_to(board)
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
        arguments = (self._todo, self._events, self.threads, gpu)
        worker = self._context.Process(target=work, args=arguments, daemon=True)
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
    """How processes start: on Linux, as forks of a server process that has only imported modules."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["polyphony.study.run"])
    return server


def default_workers(device: str, threads: int, gpus_per_job: float = 1.0) -> int:
    """How many processes fit on the cores or GPUs. Jobs share a GPU only if `gpus_per_job` is below 1."""
    if device == "cpu":
        return max(1, cores() // threads)
    return max(1, len(visible_gpus(device)) * int(1 / gpus_per_job))


def visible_gpus(device: str) -> list[str]:
    """The GPUs of this machine that jobs can use, by CUDA's names; empty for a device with a number."""
    if device != "cuda":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(k) for k in range(torch.cuda.device_count())]


def next_event(events: Any, workers: Sequence[BaseProcess]) -> Event | None:
    """The next report of a worker, or None after a short wait.

    If a worker has ended and no report is left, raises a WorkerLostError, or Terminated if the worker got a
    SIGTERM. It does not wait then, since the other workers may report forever.
    """
    codes = [worker.exitcode for worker in workers]  # before reading the last reports
    ended = any(code is not None for code in codes)
    try:
        event: Event = events.get(timeout=0.0 if ended else POLL_SECONDS)
    except queue.Empty:
        if -signal.SIGTERM in codes:
            raise Terminated from None
        if ended:
            raise WorkerLostError(f"a worker process ended early (exit codes {codes})") from None
        return None
    return event


def work(todo: Any, events: Any, threads: int, gpu: str | None = None) -> None:
    """A worker process: runs jobs until one fails, until it receives None, or until its parent has ended."""
    if gpu is not None:  # CUDA is not initialised yet, and will see only this one
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
    """The error with this process's traceback as a note; a JobError with its text if it cannot be pickled."""
    error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return JobError(f"{type(error).__name__}: {error}")
    return error
