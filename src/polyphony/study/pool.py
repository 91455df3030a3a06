"""Run jobs on this machine, in several processes; what they report reaches one board in this one."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol, Self

import torch

from polyphony.collapse import Row
from polyphony.study.jobs import Job

PATIENCE = 0.2  # seconds between looks whether the other processes are alive
FAREWELL = 2.0  # seconds for a process to end when it is told to


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


class JobError(RuntimeError):
    """A process died without a word."""


@dataclass(frozen=True)
class Seat:
    """A job's watch: passes on what it hears under the job's name."""

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
    """A board in a worker process: everything goes to the parent, and ends with it."""

    events: Any
    parent: int

    def _send(self, event: str, *details: object) -> None:
        if os.getppid() != self.parent:  # nobody waits for this work any more
            os._exit(1)
        self.events.put((event, *details))

    def started(self, name: str, epochs: int) -> None:
        self._send("started", name, epochs)

    def step(self, name: str, done: int, steps: int, row: Row) -> None:
        self._send("step", name, done, steps, row)

    def epoch(self, name: str, row: Row) -> None:
        self._send("epoch", name, row)

    def warn(self, name: str, sentence: str) -> None:
        self._send("warn", name, sentence)

    def finished(self, name: str) -> None:
        self._send("finished", name)


class Pool:
    """Worker processes for one list of jobs after another: started at the first that can use several."""

    def __init__(self, workers: int, threads: int) -> None:
        self.workers, self.threads = workers, threads
        self.processes: list[SpawnProcess] = []
        self._context = multiprocessing.get_context("spawn")
        self._todo, self._events = self._context.Queue(), self._context.Queue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _process in self.processes:
            self._todo.put(None)
        for process in self.processes:
            process.join(FAREWELL)
        self._stop()  # one that was killed while it waited has left the others unable to hear

    def run(self, jobs: Sequence[Job], board: Board) -> None:
        """Run independent jobs, several at a time; the first failure stops them all and is raised here."""
        if min(self.workers, len(jobs)) <= 1:
            torch.set_num_threads(self.threads)
            for job in jobs:
                run_job(job, board)
            return
        try:
            while len(self.processes) < min(self.workers, len(jobs)):
                self._start_one()
            for job in jobs:
                self._todo.put(job)
            listen(self._events, self.processes, len(jobs), board)
        except BaseException:
            self._stop()
            raise

    def _start_one(self) -> None:
        details = (self._todo, self._events, self.threads, os.getpid())
        process = self._context.Process(target=work, args=details, daemon=True)
        with deaf_to_interrupts():
            process.start()
        self.processes.append(process)

    def _stop(self) -> None:
        """End the processes, even amid their work; the queues go too, with what is left in them."""
        self._todo.cancel_join_thread()  # jobs that nobody takes must not keep this process from ending
        for process in self.processes:
            process.terminate()
            process.join()
        self.processes = []
        self._todo, self._events = self._context.Queue(), self._context.Queue()


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes started here never hear Ctrl-C, whose meaning this one decides; here it waits for the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_jobs(jobs: Sequence[Job], board: Board, workers: int, threads: int) -> None:
    """Run one list of independent jobs in a pool of its own."""
    with Pool(workers, threads) as pool:
        pool.run(jobs, board)


def run_job(job: Job, board: Board) -> None:
    """One job from start to end."""
    board.started(job.name, job.epochs)
    job.run(Seat(board, job.name))
    board.finished(job.name)


def work(todo: Any, events: Any, threads: int, parent: int) -> None:
    """A worker process: jobs until one fails, until there is the word to end, or until nobody waits."""
    torch.set_num_threads(threads)
    while (job := next_job(todo, parent)) is not None:
        try:
            run_job(job, Relay(events, parent))
        except Exception as error:
            events.put(("failed", sendable(error)))
            return


def next_job(todo: Any, parent: int) -> Job | None:
    """What to do next; nothing when the parent is gone."""
    while os.getppid() == parent:
        try:
            job: Job | None = todo.get(timeout=PATIENCE)
        except queue.Empty:
            continue
        return job
    return None


def sendable(error: Exception) -> Exception:
    """The error with this process's traceback, or its text where it cannot be sent to another process."""
    error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return JobError(f"{type(error).__name__}: {error}")
    return error


def listen(events: Any, processes: Sequence[SpawnProcess], jobs: int, board: Board) -> None:
    """Pass events to the board until every job is finished or one failed."""
    while jobs:
        try:
            event, *details = events.get(timeout=PATIENCE)
        except queue.Empty:
            codes = [process.exitcode for process in processes]
            if any(code is not None for code in codes) and events.empty():
                raise JobError(
                    f"a worker process ended early (exit codes {codes}): if it ran out of memory,"
                    " give a smaller number of --workers"
                ) from None
            continue
        if event == "failed":
            raise details[0]
        getattr(board, event)(*details)
        jobs -= event == "finished"
