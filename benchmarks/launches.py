"""Kernels, copies and waits of one distillation step, for every student and way: the same on every machine.

Run from the project's root: `python benchmarks/launches.py`. A step is the loss with ConfODS and its backward
pass, without the optimiser, on the device that tests/device.py simulates. A kernel is an operation that
computes values there, so views and empty tensors do not count. The counts do not depend on the number of
images or channels. Prints a table and writes `benchmarks/results/launches.csv`; tests/test_launches.py fails
if a count grows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import device
from polyphony import (
    MIMO,
    ODS,
    BatchEnsemble,
    DeepEnsemble,
    Dirichlet,
    Distill,
    DistillDistribution,
    DistillMean,
    Ensemble,
    Hydra,
    LatentBE,
    Single,
    resnet,
)
from polyphony.nn.rank_one import set_way
from polyphony.runs.rows import csv_text
from polyphony.training.fit import Loss

RESULTS = Path(__file__).parent / "results" / "launches.csv"
MEMBERS, CLASSES, WIDTH, BATCH, SIDE = 4, 10, 2, 2, 8
WAYS = ("weights", "activations")
CONFODS = ODS(scale_by_confidence=True)

Students = dict[str, tuple[Callable[[Callable[..., nn.Module]], Ensemble], Callable[[DeepEnsemble], Loss]]]
STUDENTS: Students = {
    "batch_ensemble": (
        lambda net: BatchEnsemble(net(), MEMBERS),
        lambda teachers: Distill(teachers, perturb=CONFODS),
    ),
    "member_norm": (
        lambda net: BatchEnsemble(net(), MEMBERS, member_norm=True),
        lambda teachers: Distill(teachers, perturb=CONFODS),
    ),
    "latent_be": (
        lambda net: LatentBE(net(), MEMBERS),
        lambda teachers: Distill(teachers, 1.0, perturb=CONFODS, passes="one"),
    ),
    "mimo": (lambda net: MIMO(net(MEMBERS), MEMBERS), lambda teachers: Distill(teachers, perturb=CONFODS)),
    "hydra": (lambda net: Hydra(net(), MEMBERS), lambda teachers: Distill(teachers, perturb=CONFODS)),
    "single": (lambda net: Single(net()), lambda teachers: DistillMean(teachers, perturb=CONFODS)),
    "dirichlet": (
        lambda net: Dirichlet(net()),
        lambda teachers: DistillDistribution(teachers, 10, perturb=CONFODS),
    ),
}
WITH_WAYS = ("batch_ensemble", "member_norm", "latent_be")


@dataclass(frozen=True)
class Launches:
    """Counts of one step."""

    depth: int
    student: str
    way: str
    kernels: int
    copies: int  # from the host to the device, without waiting
    waits: int  # of the host for the device


class Kernels(TorchDispatchMode):
    """Counts the operations that compute something on the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it if it is a kernel."""
        out = func(*args, **(kwargs or {}))
        views = any(value.alias_info and not value.alias_info.is_write for value in func._schema.returns)
        on_device = any(tensor.device.type == "sim" for tensor in device.tensors_in([out, list(args)]))
        self.count += on_device and not views and "empty" not in func._schema.name
        return out


def launches(depth: int, name: str, way: str) -> Launches:
    """Count one step of a student, after one that is not counted."""
    make_student, make_loss = STUDENTS[name]

    def network(copies: int = 1) -> nn.Module:
        return resnet(depth, copies * CLASSES, copies * 3, WIDTH)

    student = make_student(network).to("sim").train()
    set_way(student, way)
    loss = make_loss(DeepEnsemble([network() for _ in range(MEMBERS)]).folded().to("sim"))
    x, y = torch.rand(BATCH, 3, SIDE, SIDE).to("sim"), torch.zeros(BATCH, dtype=torch.int64).to("sim")
    take_step(student, loss, x, y)
    device.reset()
    with Kernels() as kernels:
        take_step(student, loss, x, y)
    events = device.reset()
    assert not events.blocking, events.blocking
    copies = len(events.sent)
    return Launches(depth, name, way, kernels.count - copies, copies, len(events.waits))


def take_step(student: Ensemble, loss: Loss, x: Tensor, y: Tensor) -> None:
    """Compute a loss and its gradients."""
    student.zero_grad(set_to_none=True)
    loss(student, x, y, torch.Generator().manual_seed(0))["loss"].backward()


def cases() -> Iterator[tuple[int, str, str]]:
    """Depth, student and way: all students of ResNet-8, then the paper's student of ResNet-32."""
    for name in STUDENTS:
        for way in WAYS if name in WITH_WAYS else WAYS[:1]:
            yield 8, name, way
    for way in WAYS:
        yield 32, "batch_ensemble", way


def main() -> None:
    """Count, print and write."""
    rows = []
    for case in cases():
        rows.append(asdict(launches(*case)) | {"torch": torch.__version__})
        print("  ".join(str(value).rjust(14) for value in rows[-1].values()), flush=True)
    RESULTS.write_text(csv_text(list(rows[0]), (row.values() for row in rows)))


if __name__ == "__main__":
    main()
