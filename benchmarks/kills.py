"""Kills a study hundreds of times and resumes it: its files must equal those of an undisturbed run.

Run from the project's root, on Linux: `python benchmarks/kills.py 100 --seed 1`. A study of the digits in two
worker processes is killed at random moments and started again at once, until it ends. Then its files are
compared, and another study begins, until there were 100 kills. A kill is SIGKILL or SIGTERM, sent to the
parent, to one worker, to the process group, or to a process that is writing a file, which is left incomplete.

Every file must be equal bit for bit, and there must be no other files. Measured times would differ: `seconds`
and `images_per_second` in log.jsonl, their sum in done.json, and the tables and figures that show them. So
the clock of trainings is replaced by a counter of its calls.

Importing PyTorch and drawing figures take most of the time. So nine of ten times the study's processes are
forks of this one, with the signal handlers and open files of new processes; the tenth time they are new
processes. One study in four, beginning with the first, draws its page and figures.
Prints a row for each kill, writes it to `benchmarks/results/kills.csv`, and exits with 1 after a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import polyphony.cli
import polyphony.report
import polyphony.training.fit
from polyphony._util.files import processor
from polyphony.runs.rows import csv_text

RESULTS = Path(__file__).parent / "results" / "kills.csv"
SETTINGS = (
    "members=2",
    "seeds=[0]",
    "data={name='digits', per_class=10, valid=100, test=200, augment={pad=1, flip=false}}",
    "teachers={network={kind='resnet', depth=8, width=4}, extra=1, epochs=5, batch=25, learning_rate=0.05}",
    "student={epochs=5, batch=25, learning_rate=0.05}",
    "methods={kd={perturb='clean'}, kd-ods={perturb='ods'}}",
)
VICTIMS = ("parent", "worker", "group", "writer", "group amid a write")
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
MAX_CHANGES = 16  # of files, between the start of a study and its kill
MAX_WRITES = 8  # of one process, before it is killed during a write
FRESH = 0.1  # share of studies that start as new processes
PATIENCE = 1800  # seconds for a study to end
DURING_WRITE = "POLYPHONY_BENCHMARK_KILL"  # environment variable: at which write a process is killed, and how


@dataclass(frozen=True)
class Kill:
    """One kill of a study."""

    victim: str
    signal: str
    processes: str  # fresh or forked
    newest: str  # the file written last, perhaps incomplete
    exit: int | None
    fault: str = ""  # what went wrong


def prepare() -> None:
    """Replace the clock of trainings by a counter, and plan the kill during a write if there is to be one."""
    calls = itertools.count()
    polyphony.training.fit.time = SimpleNamespace(perf_counter=lambda: float(next(calls)))  # type: ignore[assignment]
    if DURING_WRITE not in os.environ:
        return
    plan = json.loads(os.environ[DURING_WRITE])

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        """At the chosen write, truncate the new file before it is renamed, and send the signal."""
        part = Path(str(arguments[0])) if event == "os.rename" else Path()
        if part.suffix != ".part":
            return
        plan["writes"] -= 1
        if plan["writes"] == 0:
            os.truncate(part, int(part.stat().st_size * plan["share"]))
            os.kill(0 if plan["group"] else os.getpid(), plan["signal"])
            time.sleep(PATIENCE)

    sys.addaudithook(hook)


if __name__ == "__mp_main__":  # in a fresh worker
    prepare()


def run_study(folder: Path, fresh: bool, page: bool, plan: dict[str, float] | None) -> None:
    """Run the command `study` in a session of its own; its output goes to a file beside its folder."""
    os.setsid()
    output = os.open(folder.with_name("output"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if plan:
        os.environ[DURING_WRITE] = json.dumps(plan)
    prepare()
    if not page:
        polyphony.report.write_report = lambda runs, out: runs[0]  # type: ignore[assignment]
    if not fresh:
        fork = multiprocessing.get_context("fork")
        multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment]
        os.register_at_fork(after_in_child=like_fresh)
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    polyphony.cli.main(
        ["study", "digits", "--out", str(folder), "--workers", "2", "--device", "cpu", *settings]
    )


def like_fresh() -> None:
    """Make a forked worker like a new one: default signal handlers, and no open lock file of the folder."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for path in Path("/proc/self/fd").iterdir():
        if path.exists() and path.readlink().name == ".lock":
            os.close(int(path.name))


def start(folder: Path, fresh: bool, page: bool, plan: dict[str, float] | None = None) -> Any:
    """Start a process that runs the study."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    context: Any = multiprocessing.get_context("spawn" if fresh else "fork")
    process = context.Process(target=run_study, args=(folder, fresh, page, plan))
    process.start()
    return process


def start_and_kill(folder: Path, page: bool, rng: random.Random, sessions: list[int]) -> Kill | None:
    """Start a study and kill it at a random moment; None if it ended before."""
    victim, number, fresh = rng.choice(VICTIMS), rng.choice(SIGNALS), rng.random() < FRESH
    during_write, group = "writ" in victim, "group" in victim
    plan = {"writes": rng.randint(1, MAX_WRITES), "share": rng.random(), "signal": number, "group": group}
    process = start(folder, fresh, page, plan if during_write else None)
    sessions.append(process.pid)
    if not during_write:
        kill_later(process, folder, victim, number, rng)
    last, code = newest(folder), wait_for(process)
    if code == 0:
        return None
    expected = 143 if number == signal.SIGTERM else 1 if victim in ("worker", "writer") else -number
    fault = "" if code in (-number, expected) else f"exit code {code}: {last_output(folder)}"
    last = newest(folder) if during_write else last
    return Kill(victim, number.name, "fresh" if fresh else "forked", last, code, fault)


def last_output(folder: Path) -> str:
    """The end of a study's output."""
    return folder.with_name("output").read_text()[-300:]


def wait_for(process: Any) -> int | None:
    """The exit code of a process; None if it hung and was killed."""
    process.join(PATIENCE)
    if process.exitcode is None:
        os.killpg(process.pid, signal.SIGKILL)
    return process.exitcode  # type: ignore[no-any-return]


def kill_later(process: Any, folder: Path, victim: str, number: signal.Signals, rng: random.Random) -> None:
    """Kill after a random number of changed files and a pause, unless the study ends before."""
    target, pause = rng.randint(0, MAX_CHANGES), rng.uniform(0, 0.5)
    changes, before = 0, states(folder)
    while changes < target or (victim == "worker" and not workers_of(process.pid)):
        if not process.is_alive():
            return
        time.sleep(0.01)
        now = states(folder)
        changes, before = changes + len(now - before), now
    time.sleep(pause)
    pids = workers_of(process.pid) if victim == "worker" else [process.pid]
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if victim == "group" else os.kill)(rng.choice(pids or [process.pid]), number)


def states(folder: Path) -> set[tuple[int, str]]:
    """The time of the last change of each file in a folder, with its name."""
    files = set()
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                files.add((path.stat().st_mtime_ns, str(path.relative_to(folder))))
        except FileNotFoundError:  # renamed meanwhile
            continue
    return files


def newest(folder: Path) -> str:
    """The file written last."""
    return max(states(folder), default=(0, ""))[1]


def workers_of(parent: int) -> list[int]:
    """The worker processes of a study: its children, and the children of its fork server."""
    workers = []
    for pid in children_of(parent):
        command = process_file(pid, "cmdline")
        if "resource_tracker" not in command:
            workers += children_of(pid) if "forkserver" in command else [pid]
    return workers


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in process_file(pid, f"task/{pid}/children").split()]


def process_file(pid: int, name: str) -> str:
    """A file of a process in /proc; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


def alive(sessions: list[int]) -> bool:
    """Whether a process of these sessions is still running."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if state != "Z" and int(fields[2]) in sessions:
            return True
    return False


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def differences(folder: Path, expected: dict[str, bytes], page: bool) -> str:
    """The files that differ from the undisturbed run's; without `page` there are no page and figures."""
    actual = contents(folder)
    if not page:
        pages = ("figures/", "report.html")
        expected = {name: data for name, data in expected.items() if not name.startswith(pages)}
    names = sorted(actual.keys() | expected.keys())
    return ", ".join(name for name in names if actual.get(name) != expected.get(name))


def killed_study(
    folder: Path, page: bool, limit: int, rng: random.Random, expected: dict[str, bytes]
) -> list[Kill]:
    """Kill and resume one study until it ends, at most `limit` times; the last kill has the final fault."""
    kills: list[Kill] = []
    sessions: list[int] = []
    while len(kills) < limit and (latest := start_and_kill(folder, page, rng, sessions)) is not None:
        kills.append(latest)
        print(latest, flush=True)
    code = wait_for(start(folder, False, page)) if len(kills) == limit else 0
    fault = differences(folder, expected, page) if code == 0 else last_output(folder)
    if alive(sessions):
        fault += " processes are left behind"
    if fault:
        print(fault, flush=True)
        kills[-1:] = [replace(kill, fault=f"{kill.fault} {fault}".strip()) for kill in kills[-1:]]
    return kills


def main(count: int, seed: int) -> None:
    """Kill studies `count` times in all, write a row for each kill, and exit with 1 after a fault."""
    torch.set_num_threads(1)  # threads do not survive a fork
    for slow in ("torch._dynamo", "sklearn.datasets", "matplotlib.backends.backend_svg"):
        import_module(slow)  # once, not in every fork
    rng, studies = random.Random(seed), 0
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        assert wait_for(start(scratch / "undisturbed" / "run", False, True)) == 0
        expected = contents(scratch / "undisturbed" / "run")
        while len(rows) < count:
            studies += 1
            folder = scratch / str(studies) / "run"  # runs side by side would share trainings
            for kill in killed_study(folder, studies % 4 == 1, count - len(rows), rng, expected):
                numbers = {"kill": len(rows) + 1, "study": studies}
                rows.append(numbers | asdict(kill) | {"seed": seed, "machine": processor()})
            shutil.rmtree(folder.parent)
            write(rows)
    faults = [row for row in rows if row["fault"]]
    print(f"{len(rows)} kills of {studies} studies, {len(faults)} faults", *faults, sep="\n")
    sys.exit(bool(faults))


def write(rows: list[dict[str, object]]) -> None:
    """Write the rows so far."""
    RESULTS.write_text(csv_text(list(rows[0]), (row.values() for row in rows)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
