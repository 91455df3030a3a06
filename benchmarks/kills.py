"""A study killed by the hundred: each time it is resumed, and must end with the undisturbed run's files.

Run from the project's root, on Linux: `python benchmarks/kills.py 100 --seed 1`. A study of the digits in two
worker processes is killed at random moments until it gets to its end, then compared, and another is begun,
until there were so many kills. Who is killed: the parent, one worker, the whole process group, or whoever is
amid writing a file, which is left half written; by SIGKILL or SIGTERM. The next call comes at once.

Every file must be equal bit for bit, and no other may be there. Only what is measured would differ: `seconds`
and `images_per_second` in log.jsonl, their sum in done.json, and the tables and figures made of them; so a
training's clock counts here how often it was looked at.

Importing PyTorch and drawing figures take longer than all else here: nine of ten times the study's processes
are forks of this one, with the signals and the open files of fresh ones, and the tenth time they are fresh;
one study in four, the first of them, draws its page and figures.
Prints and writes a row a kill, `benchmarks/results/kills.csv`, and ends with 1 if there was a fault.
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
MOST_CHANGES = 16  # of files, between the start of a study and its death
MOST_WRITES = 8  # of one process, before it dies amid one
FRESH = 0.1  # how many studies are started as processes of their own
PATIENCE = 1800  # seconds for a study to end
AMID_WRITE = "POLYPHONY_BENCHMARK_KILL"  # tells a study's processes at which write to die, and how


@dataclass(frozen=True)
class Death:
    """How a study died."""

    victim: str
    signal: str
    processes: str  # fresh or forked
    newest: str  # the file written last, or half written
    exit: int | None
    fault: str = ""  # what should not have been


def prepare() -> None:
    """Give trainings here a clock that counts looks; and die amid a write if the environment says so."""
    looks = itertools.count()
    polyphony.training.fit.time = SimpleNamespace(perf_counter=lambda: float(next(looks)))  # type: ignore[assignment]
    if AMID_WRITE not in os.environ:
        return
    bomb = json.loads(os.environ[AMID_WRITE])

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        """At the chosen write the new file is cut short, before it is renamed, and the signal is sent."""
        part = Path(str(arguments[0])) if event == "os.rename" else Path()
        if part.suffix != ".part":
            return
        bomb["writes"] -= 1
        if bomb["writes"] == 0:
            os.truncate(part, int(part.stat().st_size * bomb["share"]))
            os.kill(0 if bomb["group"] else os.getpid(), bomb["signal"])
            time.sleep(PATIENCE)

    sys.addaudithook(hook)


if __name__ == "__mp_main__":  # in a fresh worker
    prepare()


def live(folder: Path, fresh: bool, page: bool, bomb: dict[str, float] | None) -> None:
    """The study as a command in a session of its own; its last words go to a file beside its folder."""
    os.setsid()
    words = os.open(folder.with_name("words"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(words, 1)
    os.dup2(words, 2)
    if bomb:
        os.environ[AMID_WRITE] = json.dumps(bomb)
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
    """Give a forked worker what a fresh one has: the usual signals, and no hold on the folder's lock."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for path in Path("/proc/self/fd").iterdir():
        if path.exists() and path.readlink().name == ".lock":
            os.close(int(path.name))


def start(folder: Path, fresh: bool, page: bool, bomb: dict[str, float] | None = None) -> Any:
    """A process in which the study runs."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    context: Any = multiprocessing.get_context("spawn" if fresh else "fork")
    process = context.Process(target=live, args=(folder, fresh, page, bomb))
    process.start()
    return process


def death(folder: Path, page: bool, rng: random.Random, sessions: list[int]) -> Death | None:
    """One life of a study and how it was ended; nothing if it got to its end."""
    victim, number, fresh = rng.choice(VICTIMS), rng.choice(SIGNALS), rng.random() < FRESH
    amid, group = "writ" in victim, "group" in victim
    bomb = {"writes": rng.randint(1, MOST_WRITES), "share": rng.random(), "signal": number, "group": group}
    process = start(folder, fresh, page, bomb if amid else None)
    sessions.append(process.pid)
    if not amid:
        disturb(process, folder, victim, number, rng)
    last, code = newest(folder), ended(process)
    if code == 0:
        return None
    told = 143 if number == signal.SIGTERM else 1 if victim in ("worker", "writer") else -number
    fault = "" if code in (-number, told) else f"exit code {code}: {last_words(folder)}"
    last = newest(folder) if amid else last
    return Death(victim, number.name, "fresh" if fresh else "forked", last, code, fault)


def last_words(folder: Path) -> str:
    """What a study said in the end."""
    return folder.with_name("words").read_text()[-300:]


def ended(process: Any) -> int | None:
    """A process's exit code; none for one that hung, which is killed."""
    process.join(PATIENCE)
    if process.exitcode is None:
        os.killpg(process.pid, signal.SIGKILL)
    return process.exitcode  # type: ignore[no-any-return]


def disturb(process: Any, folder: Path, victim: str, number: signal.Signals, rng: random.Random) -> None:
    """Kill after some changes of files and a pause, unless the study has ended before."""
    target, pause = rng.randint(0, MOST_CHANGES), rng.uniform(0, 0.5)
    changes, seen = 0, states(folder)
    while changes < target or (victim == "worker" and not workers_of(process.pid)):
        if not process.is_alive():
            return
        time.sleep(0.01)
        now = states(folder)
        changes, seen = changes + len(now - seen), now
    time.sleep(pause)
    pids = workers_of(process.pid) if victim == "worker" else [process.pid]
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if victim == "group" else os.kill)(rng.choice(pids or [process.pid]), number)


def states(folder: Path) -> set[tuple[int, str]]:
    """When each file of a folder was changed last, and its name."""
    found = set()
    for path in folder.rglob("*"):
        try:
            found |= {(path.stat().st_mtime_ns, str(path.relative_to(folder)))} if path.is_file() else set()
        except FileNotFoundError:  # renamed meanwhile
            continue
    return found


def newest(folder: Path) -> str:
    """The file written last."""
    return max(states(folder), default=(0, ""))[1]


def workers_of(parent: int) -> list[int]:
    """The worker processes of a study: its children, or if it has a server of processes, that one's."""
    found = []
    for pid in children_of(parent):
        command = of_process(pid, "cmdline")
        if "resource_tracker" not in command:
            found += children_of(pid) if "forkserver" in command else [pid]
    return found


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in of_process(pid, f"task/{pid}/children").split()]


def of_process(pid: int, what: str) -> str:
    """What Linux says of a process; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/{what}").read_text()
    except OSError:
        return ""


def alive(sessions: list[int]) -> bool:
    """Whether any process of these sessions is left."""
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


def differences(folder: Path, whole: dict[str, bytes], page: bool) -> str:
    """The files in which a run differs from the undisturbed one; without a page it has no figures."""
    found = contents(folder)
    drawn = set() if page else {name for name in whole if name.startswith(("figures/", "report.html"))}
    whole = {name: data for name, data in whole.items() if name not in drawn}
    return ", ".join(
        name for name in sorted(found.keys() | whole.keys()) if found.get(name) != whole.get(name)
    )


def killed_study(
    folder: Path, page: bool, most: int, rng: random.Random, whole: dict[str, bytes]
) -> list[Death]:
    """The deaths of one study, at most so many, until it gets to its end; the last one says what is wrong"""
    deaths: list[Death] = []
    sessions: list[int] = []
    while len(deaths) < most and (latest := death(folder, page, rng, sessions)) is not None:
        deaths.append(latest)
        print(latest, flush=True)
    code = ended(start(folder, False, page)) if len(deaths) == most else 0
    fault = differences(folder, whole, page) if code == 0 else last_words(folder)
    if alive(sessions):
        fault += " processes are left behind"
    if fault:
        print(fault, flush=True)
        deaths[-1:] = [replace(each, fault=f"{each.fault} {fault}".strip()) for each in deaths[-1:]]
    return deaths


def main(count: int, seed: int) -> None:
    """So many kills: a row each, and 1 for a fault."""
    torch.set_num_threads(1)  # threads do not survive a fork
    for slow in ("torch._dynamo", "sklearn.datasets", "matplotlib.backends.backend_svg"):
        import_module(slow)  # once, and not in every fork
    rng, studies = random.Random(seed), 0
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        assert ended(start(scratch / "whole" / "run", False, True)) == 0
        whole = contents(scratch / "whole" / "run")
        while len(rows) < count:
            studies += 1
            folder = scratch / str(studies) / "run"  # runs side by side would share trainings
            for each in killed_study(folder, studies % 4 == 1, count - len(rows), rng, whole):
                begin = {"kill": len(rows) + 1, "study": studies}
                rows.append(begin | asdict(each) | {"seed": seed, "machine": processor()})
            shutil.rmtree(folder.parent)
            write(rows)
    faults = [row for row in rows if row["fault"]]
    print(f"{len(rows)} kills of {studies} studies, {len(faults)} faults", *faults, sep="\n")
    sys.exit(bool(faults))


def write(rows: list[dict[str, object]]) -> None:
    """The table so far."""
    RESULTS.write_text(csv_text(list(rows[0]), (row.values() for row in rows)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
