"""The pool's two ends, joined by plain queues; then real processes, whose jobs are built-in functions."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from polyphony.store import StoreError
from polyphony.study import JobError, run_jobs
from polyphony.study.pool import Pool, listen, work


@dataclass
class Job:
    """A job that reports, and may fail."""

    name: str
    error: Exception | None = None
    epochs: int = 2

    def run(self, watch) -> None:
        watch.step(1, 3, {"loss": 0.5})
        if self.error:
            raise self.error
        watch.epoch({"epoch": 0})
        watch.warn("take care")


@dataclass
class Board:
    """All it hears, in order."""

    heard: list[tuple[object, ...]] = field(default_factory=list)

    def started(self, name: str, epochs: int) -> None:
        self.heard.append(("started", name, epochs))

    def step(self, name: str, done: int, steps: int, row: dict[str, float]) -> None:
        self.heard.append(("step", name, done, steps, row))

    def epoch(self, name: str, row: dict[str, float]) -> None:
        self.heard.append(("epoch", name, row))

    def warn(self, name: str, sentence: str) -> None:
        self.heard.append(("warn", name, sentence))

    def finished(self, name: str) -> None:
        self.heard.append(("finished", name))


def story(name: str) -> list[tuple[object, ...]]:
    """What a job that goes well reports."""
    return [
        ("started", name, 2),
        ("step", name, 1, 3, {"loss": 0.5}),
        ("epoch", name, {"epoch": 0}),
        ("warn", name, "take care"),
        ("finished", name),
    ]


@pytest.fixture
def worked():
    """What a worker process would send to its parent."""

    def through(*jobs: Job) -> queue.Queue:
        todo, events = queue.Queue(), queue.Queue()
        for job in [*jobs, None]:
            todo.put(job)
        work(todo, events, 1, os.getppid())
        return events

    return through


ALIVE = [SimpleNamespace(exitcode=None)]


def test_reports_of_a_worker_reach_the_board(worked):
    board = Board()
    listen(worked(Job("a"), Job("b")), ALIVE, 2, board)
    assert board.heard == story("a") + story("b")


def test_the_same_reports_come_from_jobs_that_run_here():
    board = Board()
    run_jobs([Job("a"), Job("b")], board, 1, 1)
    assert board.heard == story("a") + story("b")


def test_a_workers_failure_is_raised_here(worked):
    board = Board()
    with pytest.raises(StoreError, match="disk full"):
        listen(worked(Job("a"), Job("b", StoreError("disk full")), Job("c")), ALIVE, 3, board)
    assert board.heard == story("a") + story("b")[:2]


@pytest.mark.parametrize("code", [-9, 0])
def test_a_worker_that_ends_without_a_word_is_noticed(code):
    ended = [SimpleNamespace(exitcode=None), SimpleNamespace(exitcode=code)]
    with pytest.raises(JobError, match=rf"\[None, {code}\].*smaller number of --workers"):
        listen(queue.Queue(), ended, 1, Board())


def test_one_worker_runs_jobs_in_order_until_one_fails():
    board = Board()
    with pytest.raises(KeyError, match="b"):
        run_jobs([Job("a"), Job("b", KeyError("b")), Job("c")], board, 1, 1)
    assert [event[1] for event in board.heard if event[0] == "started"] == ["a", "b"]


def test_no_jobs_are_no_work():
    board = Board()
    run_jobs([], board, 4, 1)
    assert board.heard == []


def simple(run, count: int = 3) -> list[SimpleNamespace]:
    """Jobs that another process can run: each calls a built-in function."""
    return [SimpleNamespace(name=f"job {k}", epochs=0, run=run) for k in range(count)]


def test_processes_are_kept_from_one_list_of_jobs_to_the_next_and_end_with_the_pool():
    board = Board()
    with Pool(2, 1) as pool:
        pool.run(simple(repr), board)
        first = list(pool.processes)
        pool.run(simple(repr, 4), board)
        assert pool.processes == first
    assert [event[0] for event in board.heard].count("finished") == 7
    assert None not in [process.exitcode for process in first]


def test_a_pool_works_again_after_a_failure():
    board = Board()
    with Pool(2, 1) as pool:
        with pytest.raises(TypeError, match="int"):
            pool.run(simple(int), board)
        assert pool.processes == []
        board.heard.clear()
        pool.run(simple(repr), board)
    assert sorted(event[1] for event in board.heard if event[0] == "finished") == ["job 0", "job 1", "job 2"]


PROC = Path("/proc")
SCRIPT = """
import os, signal, time
from types import SimpleNamespace
from polyphony.study.pool import Pool

def jobs(count, run):
    return [SimpleNamespace(name=str(k), epochs=0, run=run, ballast=bytes(10_000)) for k in range(count)]

if __name__ == "__main__":
    board = SimpleNamespace(started=lambda *_: None, finished=lambda *_: None)
    with Pool(2, 1) as pool:
        pool.run(jobs(2, repr), board)
        print("pids", *(process.pid for process in pool.processes), flush=True)
"""
FAILURE_WITH_MUCH_LEFT_TO_DO = """
        try:
            pool.run(jobs(100, int), board)
        except TypeError:
            print("stopped")
"""
IDLE_WORKER_KILLED = """
        os.kill(pool.processes[0].pid, signal.SIGKILL)
        print("stopped")
"""
IDLE = """
        time.sleep(600)
"""


@pytest.mark.parametrize(
    "then", [FAILURE_WITH_MUCH_LEFT_TO_DO, IDLE_WORKER_KILLED], ids=["failure", "killed"]
)
def test_a_pool_ends_whatever_has_happened_to_it(tmp_path, then):
    (tmp_path / "script.py").write_text(SCRIPT + then)
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.endswith("stopped\n")


@pytest.mark.skipif(not PROC.is_dir(), reason="needs /proc to see whether a process runs")
def test_idle_processes_end_when_their_parent_is_killed(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT + IDLE)
    parent = subprocess.Popen([sys.executable, tmp_path / "script.py"], stdout=subprocess.PIPE, text=True)
    with parent:
        pids = next(line for line in parent.stdout if line.startswith("pids")).split()[1:]
        parent.kill()
    deadline = time.monotonic() + 60
    while any(is_running(int(pid)) for pid in pids):
        assert time.monotonic() < deadline, f"{pids} outlived their parent"
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that ended and waits to be collected is not running."""
    try:
        return (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
