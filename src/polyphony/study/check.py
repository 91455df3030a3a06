"""Checks whether a device computes correctly. Each check is a function of the device.

A check compares float32 on the device with float64 on the CPU, or a resumed training with an uninterrupted
one, or the accuracy of a small study with chance.
"""

from __future__ import annotations

import copy
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyphony._util.text import first_line
from polyphony.compute.devices import arithmetic, send, wait_for
from polyphony.data import Augmentation, Split
from polyphony.distill import Distill
from polyphony.distill.perturb import ODS, logits_of_one
from polyphony.ensembles import BatchEnsemble, DeepEnsemble, evaluating
from polyphony.execute.board import Relay
from polyphony.execute.runner import Here
from polyphony.nn import resnet
from polyphony.nn.rank_one import Way, set_way
from polyphony.recipe import check as checked_recipe
from polyphony.runs.scores import TEACHERS, mean_of, select
from polyphony.study.run import run_study
from polyphony.study.study import Study
from polyphony.training.fit import Plan, fit

MEMBERS, CLASSES, SIDE, TEMPERATURE = 3, 4, 12, 4.0
PLAN = Plan(
    epochs=2, batch=16, learning_rate=0.05, warm_up=1, augment=Augmentation(pad=1), deterministic=True
)
STUDY = {  # the recipe of the small study
    "name": "check",
    "members": 2,
    "teachers": {
        "network": {"kind": "resnet", "depth": 8, "width": 8},
        "epochs": 6,
        "batch": 16,
        "learning_rate": 0.1,
        "warm_up": 1,
    },
    "student": {"epochs": 6, "batch": 16, "learning_rate": 0.1, "warm_up": 1},
    "methods": {"kd-ods": {"perturb": "ods"}},
}
DATA = {"valid": 32, "test": 64, "augment": {"pad": 0, "flip": False}}
TIMED_SECONDS = 3.0
TIMED_BATCH = {"cpu": 16}  # other devices use the paper's batch
CheckVerdict = tuple[str, str, bool]  # the measured value and the limit as text, and whether the check passed


@dataclass(frozen=True)
class CheckResult:
    """The name of a check, the measured value, the limit, and whether the check passed."""

    check: str
    measured: str
    allowed: str
    passed: bool


def run_checks(device: str) -> Iterator[CheckResult]:
    """Run all checks; a check that raises has failed."""
    for name, check in CHECKS.items():
        try:
            with arithmetic():
                verdict = check(device)
        except Exception as error:  # a device may fail in any way
            verdict = f"{type(error).__name__}: {first_line(error)}", "", False
        yield CheckResult(name, *verdict)


def check_members(device: str) -> CheckVerdict:
    """A student's logits, for both ways to compute rank-one layers, against float64 on the CPU."""
    exact, x = small_student().double(), random_images(MEMBERS * 4).double().unflatten(0, (MEMBERS, -1))
    set_way(exact, "activations")
    tested, worst = small_student().to(device), 0.0
    ways: tuple[Way, ...] = ("weights", "activations")
    with torch.no_grad(), evaluating(exact), evaluating(tested):
        expected = exact(x)
        for way in ways:
            set_way(tested, way)
            worst = max(worst, relative_error(tested(send(x.float(), device)), expected))
    return within(worst, 1e-4)


def check_direction(device: str) -> CheckVerdict:
    """The ODS direction against autograd through the softmax, for a confident teacher."""
    teachers, x = confident_teachers(), random_images(8)
    pixels, logits = logits_of_one(copy.deepcopy(teachers).double(), x.double(), rng := seeded())
    guide = 2 * torch.rand(len(x), CLASSES, generator=rng).double() - 1
    (exact,) = torch.autograd.grad((guide * (logits / TEMPERATURE).softmax(-1)).sum(), pixels)
    images_there, labels = send(x, device), torch.zeros(len(x), dtype=torch.int64)
    perturbed = ODS()(images_there, send(labels, device), teachers.to(device), None, TEMPERATURE, seeded())
    cosines = torch.cosine_similarity((perturbed.cpu() - x).double().flatten(1), exact.flatten(1))
    return within(float(1 - cosines.min()), 1e-4)


def check_step(device: str) -> CheckVerdict:
    """The gradients of a distillation step with ConfODS, against float64 on the CPU."""
    expected, measured = gradients("cpu", torch.float64), gradients(device, torch.float32)
    return within(relative_error(measured, expected), 1e-3)


def gradients(device: str, dtype: torch.dtype) -> Tensor:
    """All gradients of a step as one vector."""
    model, teachers = small_student().to(device, dtype).train(), confident_teachers().to(device, dtype)
    loss = Distill(teachers, temperature=TEMPERATURE, perturb=ODS(scale_by_confidence=True))
    x, y = send(random_images(8).to(dtype), device), send(torch.arange(8) % CLASSES, device)
    loss(model, x, y, seeded())["loss"].backward()
    return torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])


def check_resume(device: str) -> CheckVerdict:
    """Compares a training that is resumed after half of its epochs with an uninterrupted one, bit for bit."""
    checkpoint = MemoryCheckpoint()
    expected = train_student(device, checkpoint)
    resumed = train_student(device, MemoryCheckpoint(checkpoint.states[PLAN.epochs // 2 - 1]))
    different = sum(not torch.equal(value, resumed[name]) for name, value in expected.items())
    return f"{different} of {len(expected)} tensors differ", "none", not different


def train_student(device: str, checkpoint: MemoryCheckpoint) -> dict[str, Tensor]:
    """The weights of a trained student, on the CPU."""
    model, data = small_student(), stripes(32)
    loss = Distill(confident_teachers().to(device), perturb=ODS())
    fit(model, loss, data, data, PLAN, seeded(), device=device, checkpoint=checkpoint)
    return {name: value.cpu() for name, value in model.state_dict().items()}


class MemoryCheckpoint:
    """A checkpoint that keeps all states in memory."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self.states = list(states)

    def load(self) -> dict[str, Any] | None:
        return copy.deepcopy(self.states[-1]) if self.states else None

    def save(self, state: dict[str, Any]) -> None:
        self.states.append(copy.deepcopy(state))


def check_study(device: str) -> CheckVerdict:
    """Runs a small study of easy images, whose accuracy must be well above chance."""
    with tempfile.TemporaryDirectory() as folder:
        data, path = stripes(160), Path(folder) / "stripes.npz"
        np.savez(path, images=data.images.permute(0, 2, 3, 1).numpy(), labels=data.labels.numpy())
        table = STUDY | {"data": DATA | {"name": str(path)}}
        silent_board = Relay(lambda event: None)
        small_study = Study(checked_recipe(table, "check"), Path(folder) / "run", None, device)
        rows = run_study(small_study, Here(torch.get_num_threads()), silent_board).scores
    accuracies = {name: mean_of(select(rows, name), "acc").mean for name in (TEACHERS, "kd-ods")}
    text = ", ".join(f"{name} {accuracy:.0%}" for name, accuracy in accuracies.items())
    return f"{text} correct", "over 50%", min(accuracies.values()) > 0.5


def measure_speed(device: str) -> CheckVerdict:
    """Measures images per second of the paper's CIFAR-10 distillation: ResNet-32, four members, ConfODS."""
    batch = TIMED_BATCH.get(device, 128)
    model = BatchEnsemble(resnet(32, 10, rng=seeded()), 4, rng=seeded()).to(device)
    teachers = DeepEnsemble([resnet(32, 10, rng=seeded(j)) for j in range(4)]).folded().to(device)
    loss, rng = Distill(teachers, perturb=ODS(scale_by_confidence=True)), seeded()
    x, y = send(torch.rand(batch, 3, 32, 32), device), send(torch.arange(batch) % 10, device)

    def run_step() -> None:
        model.zero_grad(set_to_none=True)
        loss(model, x, y, rng)["loss"].backward()
        wait_for(model.device)

    run_step()
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < TIMED_SECONDS:
        run_step()
        steps += 1
    rate = steps * batch / (time.perf_counter() - start)
    return f"{rate:.3g} images a second", "any", True


CHECKS: dict[str, Callable[[str], CheckVerdict]] = {
    "members": check_members,
    "ODS direction": check_direction,
    "a step's gradients": check_step,
    "resume": check_resume,
    "a small study": check_study,
    "speed": measure_speed,
}


def small_student() -> BatchEnsemble:
    """A small student, with the same weights in each call."""
    return BatchEnsemble(resnet(8, CLASSES, width=8, rng=seeded(1)), MEMBERS, rng=seeded(2))


def confident_teachers() -> DeepEnsemble:
    """Confident teachers, with the same weights in each call."""
    networks = [resnet(8, CLASSES, width=8, rng=seeded(10 + j)) for j in range(MEMBERS)]
    for network in networks:
        network.classifier.weight.data *= 10
    return DeepEnsemble(networks).folded()


def random_images(count: int) -> Tensor:
    """Random pixels, not close to black or white. [b c h w]"""
    return 0.25 + 0.5 * torch.rand(count, 3, SIDE, SIDE, generator=seeded(3))


def stripes(count: int) -> Split:
    """Images of noise with a bright stripe, whose position is the label."""
    labels = torch.arange(count) % CLASSES
    noise = torch.randint(128, (count, 3, SIDE, SIDE), generator=seeded(4))
    noise[torch.arange(count), :, :, 3 * labels] += 100
    return Split(noise.to(torch.uint8), labels)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def relative_error(measured: Tensor, expected: Tensor) -> float:
    """The norm of the difference divided by the norm of the expected values."""
    return float((measured.cpu().double() - expected).norm() / expected.norm())


def within(error: float, allowed: float) -> CheckVerdict:
    """The verdict on an error that must not exceed a limit."""
    return f"differs by {error:.1g}", f"{allowed:.0g}", math.isfinite(error) and error <= allowed
