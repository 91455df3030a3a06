"""A worker and its parent, joined by plain queues; then real processes, whose jobs are built-in functions."""

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

from polyphony._util.files import Terminated
from polyphony.execute.board import Failed, Finished, Stepped
from polyphony.execute.job import Graph
from polyphony.execute.processes import (
    Processes,
    WorkerLostError,
    default_workers,
    next_event,
    visible_gpus,
    work,
)
from polyphony.execute.runner import Here, JobError
from polyphony.runs.store import StoreError


@dataclass
class Job:
    """A job that reports, and may fail."""

    name: str
    error: Exception | None = None
    epochs: int = 2
    needs: tuple[str, ...] = ()

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


def through_a_worker(*jobs: Job) -> Board:
    """What the board hears of jobs that a worker process would run."""
    todo, events, board, finished = queue.Queue(), queue.Queue(), Board(), 0
    for job in (*jobs, None):
        todo.put(job)
    work(todo, events, 1)
    while finished < len(jobs):
        event = next_event(events, [SimpleNamespace(exitcode=None)])
        event.report_to(board)
        finished += isinstance(event, Finished)
    return board


def in_this_process(*jobs: Job) -> Board:
    board = Board()
    Here(1).run(Graph(jobs), board)
    return board


@pytest.mark.parametrize("run", [through_a_worker, in_this_process])
def test_reports_of_jobs_reach_the_board(run):
    assert run(Job("a"), Job("b")).heard == story("a") + story("b")


@pytest.mark.parametrize("run", [through_a_worker, in_this_process])
def test_the_first_failure_is_raised_here_and_nothing_is_run_after_it(run):
    last = Job("c", AssertionError("it was run"))
    with pytest.raises(StoreError, match="disk full"):
        run(Job("a"), Job("b", StoreError("disk full")), last)


class UnsendableError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def test_an_error_that_cannot_be_sent_arrives_as_text():
    with pytest.raises(JobError, match="UnsendableError: first second"):
        through_a_worker(Job("a", UnsendableError("first", "second")))


def test_a_terminated_worker_terminates_the_study():
    with pytest.raises(Terminated):
        next_event(queue.Queue(), [SimpleNamespace(exitcode=None), SimpleNamespace(exitcode=-15)])


@pytest.mark.parametrize("code", [-9, 0])
def test_a_worker_that_ends_without_a_report_is_noticed(code):
    ended = [SimpleNamespace(exitcode=None), SimpleNamespace(exitcode=code)]
    with pytest.raises(WorkerLostError, match=rf"\[None, {code}\]"):
        next_event(queue.Queue(), ended)


class Chatting(queue.Queue):
    """Events of which another comes whenever one waits."""

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        return Stepped("other", 1, 3, {}) if timeout else super().get(block, timeout)


def test_an_ended_worker_is_noticed_after_its_last_reports_even_if_others_report():
    events, ended = Chatting(), [SimpleNamespace(exitcode=None), SimpleNamespace(exitcode=-9)]
    events.put(Failed("a", StoreError("disk full")))
    assert isinstance(next_event(events, ended), Failed)
    with pytest.raises(WorkerLostError):
        next_event(events, ended)


def test_without_jobs_no_process_starts():
    board = Board()
    with Processes(4, 1) as runner:
        runner.run(Graph([]), board)
        assert runner.workers == []
    assert board.heard == []


def simple(run, count: int = 3) -> list[SimpleNamespace]:
    """Jobs that another process can run: each calls a built-in function."""
    return [SimpleNamespace(name=f"job {k}", epochs=0, run=run, needs=()) for k in range(count)]


class OnGpu:
    """A job's run that ends when as many GPUs are in use as it was told."""

    def __init__(self, folder: Path, together: int) -> None:
        self.folder, self.together = folder, together

    def __call__(self, watch) -> None:
        (self.folder / os.environ["CUDA_VISIBLE_DEVICES"]).touch()
        while len(list(self.folder.iterdir())) < self.together:
            time.sleep(0.05)


def test_processes_have_one_gpu_each_and_are_reused_until_the_runner_ends(tmp_path):
    board = Board()
    with Processes(2, 1, gpus=("3", "5")) as runner:
        runner.run(Graph(simple(OnGpu(tmp_path, 2), 2)), board)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "5"]
        first = list(runner.workers)
        assert len(first) == 2
        runner.run(Graph(simple(repr, 4)), board)
        assert runner.workers == first
        first[0].kill()  # one that holds the queue while it waits for work
    assert [event[0] for event in board.heard].count("finished") == 6
    assert None not in [worker.exitcode for worker in first]


def test_there_is_one_process_per_gpu_and_jobs_share_one_only_on_request(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert default_workers("cuda", 1) == 3
    assert default_workers("cuda", 1, gpus_per_job=0.5) == 6
    assert visible_gpus("cuda") == ["0", "1", "2"]
    assert visible_gpus("cuda:1") == []
    assert default_workers("cuda:1", 1) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert visible_gpus("cuda") == ["2", "5"]


def test_a_job_starts_as_soon_as_the_jobs_that_it_needs_are_done(tmp_path):
    jobs, sign = simple(repr, 3), tmp_path / "sign"
    slow = SimpleNamespace(name="slow", epochs=0, run=WaitFor(sign), needs=())
    jobs[1].needs, jobs[2].needs, jobs[2].run = ("job 0",), ("job 1",), Touch(sign)
    ended = []
    board = SimpleNamespace(started=lambda *_: None, finished=ended.append)
    with Processes(2, 1) as runner:
        runner.run(Graph([slow, *jobs]), board)
    assert sorted(ended) == ["job 0", "job 1", "job 2", "slow"]


@dataclass
class Touch:
    """A job's run that makes a file."""

    path: Path

    def __call__(self, watch) -> None:
        self.path.touch()


@dataclass
class WaitFor:
    """A job's run that ends when there is a file, which another job has to make meanwhile."""

    path: Path

    def __call__(self, watch) -> None:
        deadline = time.monotonic() + 300
        while not self.path.exists():
            assert time.monotonic() < deadline, "the other job has not been started"
            time.sleep(0.02)


def test_a_runner_works_again_after_a_failure():
    board = Board()
    with Processes(2, 1) as runner:
        with pytest.raises(TypeError, match="int"):
            runner.run(Graph(simple(int)), board)
        assert runner.workers == []
        board.heard.clear()
        runner.run(Graph(simple(repr)), board)
    assert sorted(event[1] for event in board.heard if event[0] == "finished") == ["job 0", "job 1", "job 2"]


PROC = Path("/proc")
SCRIPT = """
import multiprocessing, os, signal, time
from types import SimpleNamespace
from polyphony._util.files import Terminated, terminable
from polyphony.execute.job import Graph
from polyphony.execute.processes import Processes

class Terminate:
    def __call__(self, watch):
        os.kill(multiprocessing.parent_process().pid, signal.SIGTERM)
        time.sleep(600)

def jobs(count, run):
    common = dict(epochs=0, run=run, needs=(), ballast=bytes(10_000))
    return Graph([SimpleNamespace(name=str(k), **common) for k in range(count)])

def wait(watch):
    time.sleep(600)

if __name__ == "__main__":
    board = SimpleNamespace(started=lambda *_: None, finished=lambda *_: None)
    with Processes(2, 1) as runner:
        runner.run(jobs(2, repr), board)
        print("pids", *(worker.pid for worker in runner.workers), flush=True)
"""
FAILURE_WITH_MUCH_LEFT_TO_DO = """
        try:
            runner.run(jobs(100, int), board)
        except TypeError:
            print("failed")
"""
TERMINATED = """
        try:
            with terminable():
                runner.run(jobs(2, Terminate()), board)
        except Terminated:
            print("terminated")
"""
BUSY = """
        runner.run(jobs(2, wait), board)
"""


def test_a_runner_ends_after_any_failure(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT + TERMINATED + FAILURE_WITH_MUCH_LEFT_TO_DO)
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.endswith("terminated\nfailed\n")
    assert done.stderr == ""  # of no semaphore that was left behind, for one


@pytest.mark.skipif(not PROC.is_dir(), reason="needs /proc to see whether a process runs")
def test_processes_end_when_their_parent_is_killed(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT + BUSY)
    parent = subprocess.Popen([sys.executable, tmp_path / "script.py"], stdout=subprocess.PIPE, text=True)
    with parent:
        pids = next(line for line in parent.stdout if line.startswith("pids")).split()[1:]
        parent.kill()
    wait_for_end(pids)


def wait_for_end(pids: list[str]) -> None:
    deadline = time.monotonic() + 300
    while any(is_running(int(pid)) for pid in pids):
        assert time.monotonic() < deadline, f"{pids} outlived their parent"
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that ended and waits to be collected is not running."""
    try:
        return (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
