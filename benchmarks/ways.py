"""What a training step costs in each way to distil: seconds beside counted multiply-adds, in one run.

Run from the project's root: `OMP_NUM_THREADS=1 python benchmarks/ways.py [--rounds N]`. The network is that
of the evidence on CIFAR-10: ResNet-8 with four members, four teachers, 64 images of 16×16 pixels. Every round
times each way once, one after the other, as `step.py` does; a step has no optimiser. The first way is the
paper's, Algorithm 1 as printed: all others are relative to it. Prints a table and writes
`benchmarks/results/ways.csv`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console

from polyphony import ODS, BatchEnsemble, Clean, CrossEntropy, DeepEnsemble, Distill, Gaussian, Single
from polyphony.compute.devices import keep_freed_memory
from polyphony.ensembles import Ensemble
from polyphony.nn import resnet
from step import Row, Work, alternate, backward, operations, ratio, row, show, write

RESULTS = Path(__file__).parent / "results" / "ways.csv"
DEPTH, CLASSES, MEMBERS, BATCH, SIZE = 8, 10, 4, 64, 16
PAPER = "two passes, ODS"


def works() -> dict[str, Work]:
    """A training step of each way, the paper's first, and a step of one teacher."""
    torch.manual_seed(0)
    teachers = DeepEnsemble([resnet(DEPTH, CLASSES) for _ in range(MEMBERS)]).folded()
    x, y = torch.rand(BATCH, 3, SIZE, SIZE), torch.randint(CLASSES, (BATCH,))
    rng = torch.Generator().manual_seed(0)

    def step(model: Ensemble, loss: Distill | CrossEntropy) -> Work:
        return lambda: backward(model, loss(model, x, y, rng)["loss"])

    student = BatchEnsemble(resnet(DEPTH, CLASSES), MEMBERS)
    front = BatchEnsemble(resnet(DEPTH, CLASSES), MEMBERS, branch="stages.1")
    one_network = Single(resnet(DEPTH, CLASSES))
    ods = Distill(teachers, perturb=ODS(), passes="one")
    plain = Distill(teachers, perturb=Clean())
    return {
        PAPER: step(student, Distill(teachers, perturb=ODS())),
        "one pass, ODS": step(student, ods),
        "noise": step(student, Distill(teachers, perturb=Gaussian(), passes="one")),
        "plain": step(student, plain),
        "shared front, one pass, ODS": step(front, ods),
        "shared front, plain": step(front, plain),
        "one teacher": step(one_network, CrossEntropy()),
    }


def measure(rounds: int, console: Console) -> list[Row]:
    """Seconds of the first way; for every other, its share of the seconds and of the multiply-adds."""
    steps = works()
    flops = {name: operations(work) for name, work in steps.items()}
    times = alternate(steps, rounds, console)
    rows = [row(f"{PAPER}: a step", "s", times[PAPER])]
    for name in list(steps)[1:]:
        rows += [
            ratio(f"{name}: seconds", times[name], times[PAPER]),
            row(f"{name}: multiply-adds", "ratio", [flops[name] / flops[PAPER]]),
        ]
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Seconds and multiply-adds of a step in each way to distil.")
    parser.add_argument("--rounds", type=int, default=60, help="how often each way is timed")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    keep_freed_memory()
    console = Console()
    rows = measure(options.rounds, console)
    show(rows, f"A step, relative to that of the paper ({PAPER})", console)
    write(rows, RESULTS)


if __name__ == "__main__":
    main()
