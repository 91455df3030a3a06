"""Thousands of bad inputs of every kind: how many are read, how many are rejected, and faults.

Run from the project's root: `python benchmarks/fuzz.py 20000 --seed 1` for 20,000 inputs; `600s` in place
of the number tries inputs for 600 seconds. Prints a row for each kind, writes the rows to
`benchmarks/results/fuzz.csv`, and exits with 1 if there was a fault. The inputs and rules are those of
`tests/fuzz`. `--only KIND …` tries some kinds and does not change the rows of the others; `--replay SEED`
judges one input again.
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
SPARE = 6 << 30  # bytes of memory that an input may use


@dataclass
class Tally:
    """Outcomes of the inputs of one kind."""

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
        """Count an outcome, or a fault."""
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
        """A row of the results. Error messages that differ only in names and numbers count once."""
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
    """Judge inputs one after the other. It runs in a process of its own, which an input may kill."""
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
    """The seed of each of `count` inputs, and its outcome or fault. Replaces processes that die or hang."""
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
    """Try all kinds in turn, a block of inputs at a time, up to a number of inputs or of seconds."""
    tallies, start, block, first = [Tally(kind) for kind in kinds], time.monotonic(), 100, 0
    while (inputs is None and time.monotonic() - start < seconds) or (inputs is not None and first < inputs):
        count = block if inputs is None else min(block, inputs - first)
        for tally in tallies:
            for name, outcome in judged(tally.kind, seed, first, count):
                tally.add(name, outcome)
        first += count
    return tallies


def show(tallies: list[Tally], seed: int) -> None:
    """Print the table and every fault; write the table."""
    rows = [tally.row(seed) for tally in tallies]
    columns = [name for name in rows[0] if name not in ("seed", "machine")]
    lines = [dict(zip(columns, columns, strict=True)), *rows]
    widths = {name: max(len(str(line[name])) for line in lines) for name in columns}
    for line in lines:
        print("  ".join(str(line[name]).rjust(widths[name]) for name in columns))
    for tally in tallies:
        for fault in tally.faults:
            print(f"FAULT {fault}")
    faults = sum(len(tally.faults) for tally in tallies)
    print(f"{sum(tally.inputs for tally in tallies):,} inputs, {faults} faults")
    save({str(row["kind"]): row for row in rows})


def save(new: dict[str, dict[str, object]]) -> None:
    """Write the rows, and keep the old rows of kinds that were not tried."""
    with RESULTS.open(newline="") as file:
        old = {row["kind"]: row for row in csv.DictReader(file)}
    rows = [(old | new)[kind.name] for kind in KINDS if kind.name in old | new]
    names = list(next(iter(new.values())))
    RESULTS.write_text(csv_text(names, ([row[name] for name in names] for row in rows)))


def main() -> None:
    """Read the arguments, try the inputs, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("amount", help="number of inputs in all, or of seconds, as in 600s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[""], help="kinds whose name contains one of these")
    parser.add_argument("--replay", help="judge one input again, by its seed")
    options = parser.parse_args()
    kinds = [kind for kind in KINDS if any(word in kind.name for word in options.only)]
    if options.replay:
        print(judge(kinds[0], options.replay))
        return
    timed = options.amount.endswith("s")
    inputs = None if timed else -(-int(options.amount) // len(kinds))
    tallies = run(kinds, inputs, float(options.amount.rstrip("s")), options.seed)
    show(tallies, options.seed)
    sys.exit(any(tally.faults for tally in tallies))


if __name__ == "__main__":
    main()
