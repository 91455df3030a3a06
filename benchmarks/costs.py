"""Counted costs of the paper's recipes, how they grow, and estimated against measured steps.

Run from the project's root: `python benchmarks/costs.py`. Operations are counted as `polyphony show` counts
them, on PyTorch's meta device, without the data. Prints the tables of docs/scale.md and writes them to
`benchmarks/results/costs.csv`; times of steps are processor time in one thread, which hardly depends on
other processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import torch

from polyphony._util.files import processor
from polyphony.recipe import read_recipe
from polyphony.runs.rows import csv_text
from polyphony.study.cost import blank, costs, sketch_on, training_step, trainings
from polyphony.study.study import Study

RESULTS = Path(__file__).parent / "results" / "costs.csv"
PAPER = (
    "cifar10-resnet32-be4",
    "cifar10-resnet32-be8",
    "cifar100-wrn28x2-be4",
    "cifar100-wrn28x5-be4",
    "cifar100-wrn28x10-be4",
    "cifar100-wrn28x10-mimo3",
    "tinyimagenet-wrn28x5-be4",
)
BASE = "cifar10-resnet32-be4"
METHOD = "methods={kd-confods={perturb='confods'}}"  # the only one
GROWTH = {  # changes of the base recipe
    "as it is": (),
    "M = 2": ("members=2",),
    "M = 8": ("members=8",),
    "M = 16": ("members=16",),
    "N / 2": ("data.limit=22500",),
    "16 × 16 pixels": ("data.resolution=16",),
    "64 × 64 pixels": ("data.resolution=64",),
}
SIZES = {  # settings for which a step is measured
    "ResNet-8, 8 × 8": ("teachers.network={kind='resnet', depth=8}", "data.resolution=8", "student.batch=64"),
    "ResNet-8, 16 × 16": (
        "teachers.network={kind='resnet', depth=8}",
        "data.resolution=16",
        "student.batch=64",
    ),
    "ResNet-32, 32 × 32": ("student.batch=16",),
}
GPU = 2e13  # assumed operations per second of a GPU
Row = dict[str, object]


def outlined(recipe: str, *overrides: str) -> Study:
    """The study of a recipe, without its data."""
    return Study(read_recipe(recipe, overrides), Path("nowhere")).outlined()


def paper_rows() -> Iterator[Row]:
    """The cost of each recipe of the paper."""
    for name in PAPER:
        counts = costs(outlined(name))
        total, jobs = sum(cost.runs * cost.flops for cost in counts), sum(cost.runs for cost in counts)
        yield {
            "table": "paper",
            "what": name,
            "trainings": jobs,
            "eflop": total / 1e18,
            "hours": total / GPU / 3600,
        }


def growth_rows() -> Iterator[Row]:
    """The cost of a teacher and of a student after one change, relative to the base recipe."""
    first: tuple[float, float] | None = None
    for what, overrides in GROWTH.items():
        teacher, student = costs(outlined(BASE, *overrides, METHOD))
        first = first or (teacher.flops, student.flops)
        yield {
            "table": "growth",
            "what": what,
            "teacher": teacher.flops / first[0],
            "student": student.flops / first[1],
        }


def measured_rows() -> Iterator[Row]:
    """The estimated time of a student's step, relative to the measured time."""
    torch.set_num_threads(1)
    for what, overrides in SIZES.items():
        study = outlined(BASE, *overrides, METHOD, "threads=1", "data.limit=2000", "student.epochs=1")
        _, estimate = costs(study)
        _, (*_, student, loss) = trainings(sketch_on("cpu", study))
        x = torch.rand_like(blank(study, study.recipe.student.batch, "cpu"))
        steps = -(-len(study.data().train) // len(x))
        seconds = []
        for _ in range(4):
            start = time.process_time()
            training_step(student, loss, x)
            seconds.append(time.process_time() - start)
        yield {"table": "measured", "what": what, "ratio": estimate.seconds / steps / min(seconds[1:])}


def main() -> None:
    """Count, measure, print and write."""
    rows = []
    for row in (row for table in (paper_rows, growth_rows, measured_rows) for row in table()):
        print(row, flush=True)
        rows.append(row | {"torch": torch.__version__, "machine": processor()})
    names = list(dict.fromkeys(name for row in rows for name in row))
    RESULTS.write_text(csv_text(names, ([rounded(row.get(name)) for name in names] for row in rows)))


def rounded(value: object) -> object:
    """A number to three significant digits."""
    return f"{value:.3g}" if isinstance(value, float) else value


if __name__ == "__main__":
    main()
