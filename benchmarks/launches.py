"""Kernels, copies and waits of one distillation step, for every student and way: the same on every machine.

Run from the project's root: `python benchmarks/launches.py`. A step is the loss (ConfODS, where the student
takes it) and its backward pass, without the optimiser, on the device that tests/device.py simulates. A kernel
is an operation there that computes: no view, and no memory without values. How many there are does not depend
on the number of images or channels. Prints a table and writes `benchmarks/results/launches.csv`, which
tests/test_launches.py holds: no count may grow.
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
        lambda them: Distill(them, perturb=CONFODS),
    ),
    "member_norm": (
        lambda net: BatchEnsemble(net(), MEMBERS, member_norm=True),
        lambda them: Distill(them, perturb=CONFODS),
    ),
    "latent_be": (
        lambda net: LatentBE(net(), MEMBERS),
        lambda them: Distill(them, 1.0, perturb=CONFODS, passes="one"),
    ),
    "mimo": (lambda net: MIMO(net(MEMBERS), MEMBERS), lambda them: Distill(them, perturb=CONFODS)),
    "hydra": (lambda net: Hydra(net(), MEMBERS), lambda them: Distill(them, perturb=CONFODS)),
    "single": (lambda net: Single(net()), lambda them: DistillMean(them, perturb=CONFODS)),
    "dirichlet": (lambda net: Dirichlet(net()), lambda them: DistillDistribution(them, 10, perturb=CONFODS)),
}
WITH_WAYS = ("batch_ensemble", "member_norm", "latent_be")


@dataclass(frozen=True)
class Launches:
    """What one step asks of the device."""

    depth: int
    student: str
    way: str
    kernels: int
    copies: int  # from the host, none of them waited for
    waits: int  # of the host for the device


class Kernels(TorchDispatchMode):
    """Counts the operations that compute something on the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it."""
        out = func(*args, **(kwargs or {}))
        views = any(value.alias_info and not value.alias_info.is_write for value in func._schema.returns)
        there = any(tensor.device.type == "sim" for tensor in device.tensors_in([out, list(args)]))
        self.count += there and not views and "empty" not in func._schema.name
        return out


def launches(depth: int, name: str, way: str) -> Launches:
    """Count one step of a student, after one that is not counted."""
    make, lose = STUDENTS[name]

    def network(copies: int = 1) -> nn.Module:
        return resnet(depth, copies * CLASSES, copies * 3, WIDTH)

    student = make(network).to("sim").train()
    set_way(student, way)
    loss = lose(DeepEnsemble([network() for _ in range(MEMBERS)]).folded().to("sim"))
    x, y = torch.rand(BATCH, 3, SIDE, SIDE).to("sim"), torch.zeros(BATCH, dtype=torch.int64).to("sim")
    take_step(student, loss, x, y)
    device.reset()
    with Kernels() as kernels:
        take_step(student, loss, x, y)
    passed = device.reset()
    assert not passed.blocking, passed.blocking
    copies = len(passed.sent)
    return Launches(depth, name, way, kernels.count - copies, copies, len(passed.waits))


def take_step(student: Ensemble, loss: Loss, x: Tensor, y: Tensor) -> None:
    """A loss and its gradients."""
    student.zero_grad(set_to_none=True)
    loss(student, x, y, torch.Generator().manual_seed(0))["loss"].backward()


def cases() -> Iterator[tuple[int, str, str]]:
    """Every student of ResNet-8, in every way where it has rank-one layers; then the paper's of ResNet-32."""
    for name in STUDENTS:
        for way in WAYS if name in WITH_WAYS else WAYS[:1]:
            yield 8, name, way
    for way in WAYS:
        yield 32, "batch_ensemble", way


def main() -> None:
    """Count, print and keep."""
    rows = []
    for case in cases():
        rows.append(asdict(launches(*case)) | {"torch": torch.__version__})
        print("  ".join(str(value).rjust(14) for value in rows[-1].values()), flush=True)
    RESULTS.write_text(csv_text(list(rows[0]), (row.values() for row in rows)))


if __name__ == "__main__":
    main()
