"""Time and memory of the training step, ours against the textbook's, measured side by side in one run.

Run from the project's root: `make bench`, or `python benchmarks/step.py [--rounds N]`. Every round times each
side once, one after the other, so that other work on the machine slows both. A ratio is the median over the
rounds, with the smallest and the largest. A step is the loss and its backward pass, without the optimiser,
which is the same on both sides. Prints a table and writes `benchmarks/results/step.csv`. `load` is the
machine's load average: about `threads` if nothing else runs.

Memory: each side runs in a process of its own, which builds everything and takes one step on four images.
The result is the peak resident memory (`getrusage`) after two steps at full size, minus the peak before.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import textbook
from polyphony import ODS, BatchEnsemble, DeepEnsemble, Distill, Single
from polyphony._util.files import processor
from polyphony.ensembles import Ensemble
from polyphony.nn import resnet
from polyphony.runs.rows import csv_text

RESULTS = Path(__file__).parent / "results" / "step.csv"
DEPTH, CLASSES, MEMBERS, BATCH, SIZE = 32, 10, 4, 64, 32
MATMUL = 2048
Work = Callable[[], object]
Row = dict[str, str | int | float]


def images(rows: int) -> tuple[Tensor, Tensor]:
    """Random pixels [b 3 32 32] and labels [b]: the cost does not depend on their content."""
    rng = torch.Generator().manual_seed(0)
    return torch.rand(rows, 3, SIZE, SIZE, generator=rng), torch.randint(CLASSES, (rows,), generator=rng)


def backward(model: nn.Module, loss: Tensor) -> None:
    """Compute the gradients of every parameter."""
    model.zero_grad(set_to_none=True)
    loss.backward()


def our_student() -> BatchEnsemble:
    """ResNet-32 with four members."""
    return BatchEnsemble(resnet(DEPTH, CLASSES), MEMBERS)


def textbook_student() -> textbook.ResNet:
    """The same, with scaled activations."""
    return textbook.ResNet(DEPTH, CLASSES, textbook.RankOne, MEMBERS)


def our_pass(rows: int) -> Work:
    """Forward and backward pass of our student."""
    student, x = our_student(), images(rows)[0].unflatten(0, (MEMBERS, -1))
    return lambda: backward(student, student(x).sum())


def textbook_pass(rows: int) -> Work:
    """Forward and backward pass of the textbook's student."""
    student, x = textbook_student(), images(rows)[0]
    return lambda: backward(student, student(x).sum())


def plain_pass(rows: int) -> Work:
    """Forward and backward pass of one network without members, on the same number of rows."""
    network, x = Single(resnet(DEPTH, CLASSES)), images(rows)[0][None]
    return lambda: backward(network, network(x).sum())


class Free(Ensemble):
    """A student without the cost of members: one plain network for all rows."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.members, self.network = members, Single(resnet(DEPTH, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x.flatten(0, 1)[None])[0].unflatten(0, (self.members, -1))


def our_step_with(student: Ensemble, batch: int) -> Work:
    """Algorithm 1 with ConfODS, as `polyphony.fit` runs it."""
    teachers = DeepEnsemble([resnet(DEPTH, CLASSES) for _ in range(MEMBERS)]).folded()
    loss = Distill(teachers, perturb=ODS(scale_by_confidence=True))
    (x, y), rng = images(batch), torch.Generator().manual_seed(0)
    return lambda: backward(student, loss(student, x, y, rng)["loss"])


def our_step(batch: int) -> Work:
    """The step of our student."""
    return our_step_with(our_student(), batch)


def free_step(batch: int) -> Work:
    """The step without the cost of members: the fastest possible with PyTorch's convolutions."""
    return our_step_with(Free(MEMBERS), batch)


def textbook_step(batch: int) -> Work:
    """The same loss from the textbook."""
    teachers = [textbook.ResNet(DEPTH, CLASSES).eval() for _ in range(MEMBERS)]
    student, loss = textbook_student(), textbook.Distill(teachers)
    (x, y), rng = images(batch), torch.Generator().manual_seed(0)

    def step() -> None:
        source = int(torch.randint(MEMBERS, (), generator=rng))
        guide = 2 * torch.rand(batch, CLASSES, generator=rng) - 1
        backward(student, loss(student, x, y, source, guide))

    return step


def matmul() -> Work:
    """A product of two square matrices: about the machine's peak arithmetic."""
    a, b = torch.rand(2, MATMUL, MATMUL)
    return lambda: a @ b


SIDES = {"student": (our_pass, textbook_pass), "step": (our_step, textbook_step)}
FULL_SIZE = {"student": MEMBERS * BATCH, "step": BATCH}


def seconds(work: Work) -> float:
    """The time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternate(works: dict[str, Work], rounds: int, console: Console) -> dict[str, list[float]]:
    """The seconds of each function in every round, after one untimed call of each."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in track(range(rounds), "timing", console=console, transient=True):
        for name, work in works.items():
            times[name].append(seconds(work))
    return times


def peak() -> int:
    """The peak memory of this process in MB."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit


def added_memory(kind: str, side: int) -> int:
    """MB that two calls at full size add to the peak memory of this process."""
    make = SIDES[kind][side]
    make(MEMBERS)()
    work, before = make(FULL_SIZE[kind]), peak()
    work()
    work()
    return peak() - before


def memory(kind: str, side: int) -> float:
    """`added_memory` in a process of its own."""
    command = [sys.executable, __file__, "--memory", kind, str(side)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def operations(work: Work) -> int:
    """Floating-point operations of one call; a multiply-add counts as two."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def rate(name: str, flops: int, times: list[float]) -> Row:
    """A row: operations per second in each round."""
    return row(name, "GFLOP/s", [flops / second / 1e9 for second in times])


def ratio(name: str, above: list[float], below: list[float]) -> Row:
    """A row: the ratio in each round."""
    return row(name, "ratio", [a / b for a, b in zip(above, below, strict=True)])


def row(name: str, unit: str, values: list[float]) -> Row:
    """A row of the results."""
    return {
        "name": name,
        "unit": unit,
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
        "rounds": len(values),
        "machine": processor(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
    }


def measure(rounds: int, console: Console) -> list[Row]:
    """All rows. Memory comes first: a child's peak starts at its parent's size."""
    ours_mb, textbook_mb = ({kind: memory(kind, side) for kind in SIDES} for side in (0, 1))
    works = {
        "student, ours": our_pass(MEMBERS * BATCH),
        "student, textbook": textbook_pass(MEMBERS * BATCH),
        "plain network, same rows": plain_pass(MEMBERS * BATCH),
        "step, ours": our_step(BATCH),
        "step, textbook": textbook_step(BATCH),
        "step, members for free": free_step(BATCH),
        "matmul": matmul(),
    }
    flops = operations(works["student, ours"])
    times = alternate(works, rounds, console)
    student = times["student, ours"]
    rows = [row(name, "s", times[name]) for name in works]
    rows += [
        ratio("student: textbook / ours", times["student, textbook"], student),
        ratio("student: ours / plain", student, times["plain network, same rows"]),
        ratio("step: textbook / ours", times["step, textbook"], times["step, ours"]),
        ratio("step: textbook / members for free", times["step, textbook"], times["step, members for free"]),
        rate("matmul", 2 * MATMUL**3, times["matmul"]),
        rate("student, ours", flops, student),
    ]
    for kind in SIDES:
        rows += [
            row(f"{kind}, ours: peak memory", "MB", [ours_mb[kind]]),
            row(f"{kind}, textbook: peak memory", "MB", [textbook_mb[kind]]),
            ratio(f"{kind}: memory, ours / textbook", [ours_mb[kind]], [textbook_mb[kind]]),
        ]
    return rows


def show(rows: list[Row], title: str, console: Console) -> None:
    """Print the table."""
    first = rows[0]
    where = f"{first['machine']}, {first['cores']} cores, {first['threads']} threads, torch {first['torch']}"
    where += f"; the machine's load at the end was {first['load']}"
    table = Table("measured", "median", "least", "most", "unit", title=title, caption=where)
    for r in rows:
        values = (f"{float(r[column]):,.4g}" for column in ("median", "least", "most"))
        table.add_row(str(r["name"]), *values, str(r["unit"]))
    console.print(table)


def write(rows: list[Row], path: Path) -> None:
    """Write the results to a temporary file and rename it, so that the file is never incomplete."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(csv_text(list(rows[0]), (row.values() for row in rows)))
    temporary.replace(path)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Time and memory of the training step, side by side.")
    parser.add_argument("--rounds", type=int, default=9, help="how often each side is timed")
    parser.add_argument("--memory", nargs=2, metavar=("KIND", "SIDE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(added_memory(options.memory[0], int(options.memory[1])))
        return
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    console = Console()
    rows = measure(options.rounds, console)
    show(rows, "The training step", console)
    write(rows, RESULTS)


if __name__ == "__main__":
    main()
