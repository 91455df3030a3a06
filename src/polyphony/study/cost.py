"""What a study costs, before it starts: arithmetic counted exactly, time from a few measured steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from polyphony.data import Split, pixels
from polyphony.distill import CrossEntropy
from polyphony.ensembles import DeepEnsemble, Ensemble, Single
from polyphony.predictions import predict
from polyphony.recipe import Schedule, Surroundings
from polyphony.study.study import Study
from polyphony.train import Loss

SMALLEST = 2  # images, which normalisation needs
LEAST_FLOPS = 4e9  # in a measured step: with fewer a busy CPU spends its time on calling operations
LONG_ENOUGH = 0.25  # seconds from which on a step is not doubled, so that most take up to half a second
ENOUGH = 1.5  # seconds after which a measurement is not repeated


@dataclass(frozen=True)
class Cost:
    """One training: operations for all its steps, and seconds on this machine with the study's threads."""

    name: str
    runs: int
    flops: float
    seconds: float


def costs(study: Study) -> Iterator[Cost]:
    """What one teacher, and one student of each method, takes; each is measured when it is asked for."""
    recipe = study.recipe
    torch.set_num_threads(study.threads)
    networks = [study.network(recipe.teachers.network_of(j)) for j in range(recipe.members)]
    if isinstance(recipe.teachers, Schedule):
        teacher = Single(networks[0])
        yield cost(study, "teacher", study.teacher_count, teacher, CrossEntropy(), recipe.teachers)
    teachers = DeepEnsemble(networks).folded().to(study.device)
    for name in recipe.methods:
        student = study.fresh_student(name).to(study.device)
        loss = probing_loss(study, name, teachers, student)
        yield cost(study, name, len(recipe.seeds), student, loss, recipe.schedule(name))


def probing_loss(study: Study, name: str, teachers: DeepEnsemble, student: Ensemble) -> Loss:
    """A method's loss with untrained teachers: a step costs the same whatever they know and its size."""
    method = study.recipe.distillation(name)
    if method is None:
        return CrossEntropy()
    source = DeepEnsemble([teachers.networks[0]]) if method.source else None
    perturb = method.perturbation(Surroundings(1 / 255, student, source))
    return study.recipe.form(name).loss(teachers, method, perturb, study.student_steps)


def cost(study: Study, name: str, runs: int, model: Ensemble, loss: Loss, schedule: Schedule) -> Cost:
    """A training's cost, extrapolated from a few steps and looks at validation images."""
    splits, epochs = study.splits, study.plan(schedule).epochs
    trained = len(splits.train) * epochs
    model.to(study.device)
    with CountFlops() as count:
        probe(study, model, loss, SMALLEST)
    least = max(SMALLEST, int(SMALLEST * LEAST_FLOPS // count.flops))
    batch = probing_batch(lambda size: probe(study, model, loss, size), least, schedule.batch)
    step = typical(lambda: probe(study, model, loss, batch))
    look = typical(lambda: probe_validation(study, model, batch))
    seconds = (trained * step + epochs * len(splits.valid) * look) / batch
    return Cost(name, runs, count.flops / SMALLEST * trained, seconds)


def probing_batch(measure: Callable[[int], float], least: int, largest: int) -> int:
    """The least batch, doubled until a step of it takes long enough to be measured, or the largest one.

    On a GPU small batches say nothing: launching their operations takes longer than the operations.
    """
    batch = min(least, largest)
    while batch < largest and measure(batch) < LONG_ENOUGH:
        batch = min(2 * batch, largest)
    return batch


def typical(measure: Callable[[], float]) -> float:
    """The median of three measurements, or of fewer that take long enough together."""
    found = [measure()]
    while len(found) < 3 and sum(found) < ENOUGH:
        found.append(measure())
    return median(found)


class CountFlops(TorchDispatchMode):
    """Adds up the floating-point operations of matrix products and convolutions, backward passes included.

    PyTorch's own FlopCounterMode tracks modules by hooks that fail inside torch.autograd.grad.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it."""
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        return out


def probe(study: Study, model: Ensemble, loss: Loss, batch: int) -> float:
    """Seconds for one step on grey noise, at the recipe's precision."""
    x, rng = noise(study, batch)
    y = torch.zeros(batch, dtype=torch.int64, device=study.device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0, momentum=0.9)
    precision = getattr(torch, study.recipe.precision, torch.float32)
    start = time.perf_counter()
    with torch.autocast(x.device.type, precision, enabled=precision != torch.float32):
        parts = loss(model.train(), pixels(x), y, rng)
    optimiser.zero_grad(set_to_none=True)
    parts["loss"].backward()
    optimiser.step()
    parts["loss"].item()  # waits for the device
    return time.perf_counter() - start


def probe_validation(study: Study, model: Ensemble, batch: int) -> float:
    """Seconds for the predictions of all members on grey noise."""
    split = Split(noise(study, batch)[0], torch.zeros(batch, dtype=torch.int64))
    start = time.perf_counter()
    predict(model, split)
    return time.perf_counter() - start


def noise(study: Study, batch: int) -> tuple[Tensor, torch.Generator]:
    """Images like the study's, of random bytes, and the generator that drew them. [b c h w]"""
    rng = torch.Generator().manual_seed(0)
    shape = (batch, *study.splits.train.images.shape[1:])
    return torch.randint(256, shape, generator=rng, dtype=torch.uint8).to(study.device), rng
