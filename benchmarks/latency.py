"""How long an exported student takes beside the same student in PyTorch, and beside one plain network.

Run from the project's root: `python benchmarks/latency.py [--rounds N]`. ResNet-32 with four members, random
weights, one thread, batches of 1 and 64 images of 32 × 32. Every round times each side once, one after the
other, in processor time, so that whatever else the machine does falls on all; a ratio is the median over the
rounds, with the smallest and largest beside it. Prints a table and writes `benchmarks/results/latency.csv`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import onnxruntime
import torch
from torch import Tensor

from polyphony import BatchEnsemble, Single, export_student, resnet
from polyphony._util.files import processor
from polyphony.runs.rows import csv_text
from polyphony.serve import Student
from polyphony.serve.description import Description

RESULTS = Path(__file__).parent / "results" / "latency.csv"
DEPTH, CLASSES, MEMBERS, SHAPE = 32, 10, 4, (3, 32, 32)
BATCHES = (1, 64)
RATIOS = {
    "student: PyTorch / onnxruntime": ("student, PyTorch", "student, onnxruntime"),
    "onnxruntime: student / one network": ("student, onnxruntime", "network, onnxruntime"),
    "PyTorch: student / one network": ("student, PyTorch", "network, PyTorch"),
}


def student_of(ensemble: BatchEnsemble | Single) -> Student:
    """An ensemble with random weights as a student."""
    described = {
        "network": {"kind": "resnet", "depth": DEPTH},
        "form": {"kind": "batch_ensemble"},
        "members": ensemble.members,
        "classes": [str(label) for label in range(CLASSES)],
        "shape": SHAPE,
        "temperature": 1.5,
        "method": "random",
        "seed": 0,
        "data": "random",
        "recipe": "",
        "weights": "",
        "scores": {},
    }
    return Student(ensemble.eval(), Description.read(described, __file__))


def session_of(student: Student, images: Tensor) -> onnxruntime.InferenceSession:
    """The exported student, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with TemporaryDirectory() as folder:
        export_student(student, Path(folder) / "student.onnx", images)
        return onnxruntime.InferenceSession(Path(folder) / "student.onnx", options)


def seconds(work: Callable[[], object]) -> float:
    """Processor time that it takes once: with one thread what a quiet machine takes, on a busy one too."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(rounds: int) -> list[dict[str, str | int | float]]:
    """A row for every batch and ratio."""
    torch.set_num_threads(1)
    images = torch.randint(0, 256, (max(BATCHES), *SHAPE), dtype=torch.uint8)
    models = {
        "student": student_of(BatchEnsemble(resnet(DEPTH, CLASSES), MEMBERS)),
        "network": student_of(Single(resnet(DEPTH, CLASSES))),
    }
    sessions = {name: session_of(student, images) for name, student in models.items()}
    rows: list[dict[str, str | int | float]] = []
    for batch in BATCHES:
        some, works = images[:batch], {}
        for name, student in models.items():
            works[f"{name}, PyTorch"] = lambda student=student, some=some: student.predict(some)
            given = {"pixels": some.numpy()}
            works[f"{name}, onnxruntime"] = lambda s=sessions[name], given=given: s.run(None, given)
        for work in works.values():  # memory is allocated and kernels are chosen
            work()
        taken = [{name: seconds(work) for name, work in works.items()} for _ in range(rounds)]
        for ratio, (over, under) in RATIOS.items():
            each = [round_[over] / round_[under] for round_ in taken]
            rows.append(
                {
                    "batch": batch,
                    "ratio": ratio,
                    "median": round(statistics.median(each), 3),
                    "least": round(min(each), 3),
                    "most": round(max(each), 3),
                    "rounds": rounds,
                    "load": round(os.getloadavg()[0], 2),
                    "machine": processor(),
                    "torch": torch.__version__,
                    "onnxruntime": onnxruntime.__version__,
                }
            )
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = measure(arguments.rounds)
    for row in rows:
        print(f"batch {row['batch']:>2}  {row['ratio']}: {row['median']} ({row['least']} to {row['most']})")
    arguments.out.write_text(csv_text(list(rows[0]), (row.values() for row in rows)))


if __name__ == "__main__":
    main()
