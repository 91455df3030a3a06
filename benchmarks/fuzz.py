"""Bad input of every kind, by the thousand: what was read, what was refused, and what must not happen.

Run from the project's root: `python benchmarks/fuzz.py 20000 --seed 1` for so many inputs, or `600s` for so
long. Prints a row a kind, writes it to `benchmarks/results/fuzz.csv`, and ends with 1 if there was a fault.
The inputs and rules are those of `tests/fuzz`; `--only KIND …` tries some kinds and leaves the others' rows,
`--replay SEED` judges one input again.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import resource
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fuzz"))

from judge import PATIENCE, SECONDS, FaultError, Kind, Outcome, judge, status
from kinds import ALL as KINDS

from polyphony._util.files import processor
from polyphony.runs.rows import csv_text

RESULTS = Path(__file__).parent / "results" / "fuzz.csv"
SPARE = 6 << 30  # bytes of memory beyond which an input must not drive a process


@dataclass
class Tally:
    """What came of the inputs of one kind so far."""

    kind: Kind
    inputs: int = 0
    read: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest: tuple[float, str] = (0.0, "")
    most: tuple[int, str] = (0, "")
    sentences: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def add(self, seed: str, outcome: Outcome | str) -> None:
        """Count an outcome, or the fault in its place."""
        self.inputs += 1
        if isinstance(outcome, str):
            self.faults.append(outcome)
            return
        self.read += outcome.verdict == "read"
        self.refused += outcome.verdict == "refused"
        self.seconds += outcome.seconds
        self.slowest = max(self.slowest, (outcome.seconds, seed))
        self.most = max(self.most, (outcome.memory, seed))
        self.sentences.add(" ".join(word for word in outcome.sentence.split() if word.isalpha()))

    def row(self, seed: int) -> dict[str, object]:
        """A line of the results. Sentences are told apart by their words alone, without names and numbers."""
        return {
            "kind": self.kind.name,
            "inputs": self.inputs,
            "read": self.read,
            "refused": self.refused,
            "sentences": len(self.sentences - {""}),
            "faults": len(self.faults),
            "mean_ms": round(1000 * self.seconds / max(1, self.read + self.refused), 1),
            "slowest_s": round(self.slowest[0], 2),
            "slowest_seed": self.slowest[1],
            "most_mib": self.most[0] >> 20,
            "most_seed": self.most[1],
            "seed": seed,
            "machine": processor(),
        }


def work(kind: Kind, seeds: Iterator[str], answers: Connection) -> None:
    """Judge one input after the other, in a process of its own that may die of it."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    limit = status("VmSize") + SPARE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for seed in seeds:
        try:
            answers.send(judge(kind, seed))
        except FaultError as fault:
            answers.send(str(fault))


def judged(kind: Kind, seed: int, first: int, count: int) -> Iterator[tuple[str, Outcome | str]]:
    """(input's seed, its outcome or fault) of `count` inputs; a process that dies or hangs is replaced."""
    seeds = [f"{seed}/{k}" for k in range(first, first + count)]
    while seeds:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        worker = multiprocessing.get_context("fork").Process(target=work, args=(kind, iter(seeds), theirs))
        worker.start()
        theirs.close()
        try:
            while seeds and ours.poll(2 * PATIENCE * SECONDS):
                yield seeds[0], ours.recv()
                seeds.pop(0)
        except EOFError:
            worker.join()
            yield seeds[0], f"{kind.name} {seeds.pop(0)}: the process died ({worker.exitcode})"
        else:
            if seeds:
                yield seeds[0], f"{kind.name} {seeds.pop(0)}: no answer"
        worker.kill()
        worker.join()


def run(kinds: list[Kind], inputs: int | None, seconds: float, seed: int) -> list[Tally]:
    """All kinds in turn, a few inputs at a time, until there were enough of them or it took long enough."""
    tallies, started, block, first = [Tally(kind) for kind in kinds], time.monotonic(), 100, 0
    while (inputs is None and time.monotonic() - started < seconds) or (
        inputs is not None and first < inputs
    ):
        count = block if inputs is None else min(block, inputs - first)
        for tally in tallies:
            for name, outcome in judged(tally.kind, seed, first, count):
                tally.add(name, outcome)
        first += count
    return tallies


def show(tallies: list[Tally], seed: int) -> None:
    """Print the table and every fault; write the table."""
    rows = [tally.row(seed) for tally in tallies]
    shown = [name for name in rows[0] if name not in ("seed", "machine")]
    widths = {
        name: max(len(str(row[name])) for row in [*rows, dict(zip(shown, shown, strict=True))])
        for name in shown
    }
    for row in [dict(zip(shown, shown, strict=True)), *rows]:
        print("  ".join(str(row[name]).rjust(widths[name]) for name in shown))
    for tally in tallies:
        for fault in tally.faults:
            print(f"FAULT {fault}")
    faults = sum(len(tally.faults) for tally in tallies)
    print(f"{sum(tally.inputs for tally in tallies):,} inputs, {faults} faults")
    save({str(row["kind"]): row for row in rows})


def save(found: dict[str, dict[str, object]]) -> None:
    """Write the rows; those of kinds that were not tried now stay as they are."""
    with RESULTS.open(newline="") as file:
        kept = {row["kind"]: row for row in csv.DictReader(file)}
    rows = [(kept | found)[kind.name] for kind in KINDS if kind.name in kept | found]
    names = list(next(iter(found.values())))
    RESULTS.write_text(csv_text(names, ([row[name] for name in names] for row in rows)))


def main() -> None:
    """Run as long as told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("amount", help="how many inputs in all, or how many seconds with an s behind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[""], help="kinds whose name has one of these in it")
    parser.add_argument("--replay", help="judge one input again, by its seed")
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if any(word in kind.name for word in given.only)]
    if given.replay:
        print(judge(kinds[0], given.replay))
        return
    timed = given.amount.endswith("s")
    inputs = None if timed else -(-int(given.amount) // len(kinds))
    tallies = run(kinds, inputs, float(given.amount.rstrip("s")), given.seed)
    show(tallies, given.seed)
    sys.exit(any(tally.faults for tally in tallies))


if __name__ == "__main__":
    main()
