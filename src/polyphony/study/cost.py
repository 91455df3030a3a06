"""What a study costs, before it starts: arithmetic counted exactly, time from a few measured steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from polyphony.distill import CrossEntropy, Distill
from polyphony.ensembles import DeepEnsemble, Single
from polyphony.recipe import PERTURBATIONS, Schedule
from polyphony.study.plan import Study
from polyphony.train import Loss

PROBE_FLOPS = 4e9  # a measured step is made small enough to take about a second
GPU_SPEED = 2e13  # floating-point operations a second that one large GPU sustains here, in float32


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
    teacher = study.network(recipe.teachers.network)
    yield cost(study, "teacher", study.teachers, Single(teacher), CrossEntropy(), recipe.teachers)
    teachers = DeepEnsemble([study.network(recipe.teachers.network) for _ in range(recipe.members)])
    for name in recipe.methods:
        method = recipe.method(name)
        loss: Loss = CrossEntropy()
        if method.perturb:
            step_size = 1 / 255 if method.step_size == "match" else method.step_size
            perturb = PERTURBATIONS[method.perturb](step_size)
            loss = Distill(teachers, method.alpha, method.temperature, perturb)
        yield cost(study, name, len(recipe.seeds), study.fresh_student(), loss, recipe.student)


def cost(study: Study, name: str, runs: int, model: nn.Module, loss: Loss, schedule: Schedule) -> Cost:
    """A training's cost, extrapolated from one step on a batch that takes about a second."""
    steps = len(study.splits.train) // study.plan(schedule).batch * schedule.epochs
    two = step_flops(study, model, loss, 2)
    batch = int(min(schedule.batch, max(2, 2 * PROBE_FLOPS // two)))
    seconds = step_seconds(study, model, loss, batch) * schedule.batch / batch
    return Cost(name, runs, two * schedule.batch / 2 * steps, seconds * steps)


def step_flops(study: Study, model: nn.Module, loss: Loss, batch: int) -> float:
    """Floating-point operations of one step's forward and backward passes."""
    with FlopCounterMode(display=False) as counter:
        probe(study, model, loss, batch)
    return float(counter.get_total_flops())


def step_seconds(study: Study, model: nn.Module, loss: Loss, batch: int) -> float:
    """The quickest of three steps, after one to warm up."""
    times = []
    for _ in range(4):
        start = time.perf_counter()
        probe(study, model, loss, batch)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def probe(study: Study, model: nn.Module, loss: Loss, batch: int) -> None:
    """One step on grey noise."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(batch, *study.splits.train.images.shape[1:], generator=rng)
    y = torch.zeros(batch, dtype=torch.int64)
    loss(model.train(), x.contiguous(memory_format=torch.channels_last), y, rng)["loss"].backward()
