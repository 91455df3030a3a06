"""The signal-to-noise ratio of gradients under a perturbation (§4.3)."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from polyphony.distill import losses
from polyphony.distill.perturb import Perturbation
from polyphony.ensembles import DeepEnsemble, Ensemble, evaluating
from polyphony.training.fit import Unwatched, Watch


class Moments:
    """Elementwise running mean and variance of vectors (Welford's algorithm), in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = torch.zeros((), dtype=torch.float64)

    def add(self, value: Tensor) -> None:
        """Add a vector. [p]"""
        self.count += 1
        deviation = value.double() - self.mean
        self.mean = self.mean + deviation / self.count
        self.squares = self.squares.addcmul(deviation, value - self.mean)

    @property
    def variance(self) -> Tensor:
        """Σ (g − mean)² / (count − 1). [p]"""
        if self.count < 2:
            raise ValueError("a variance needs at least two samples")
        return self.squares / (self.count - 1)


class Snr(NamedTuple):
    """A signal-to-noise ratio: without the noise of the sample mean, and by the paper's literal formula."""

    unbiased: float
    literal: float


def signal_to_noise(moments: Moments) -> Snr:
    """‖E[G]‖₂ / √‖Var[G]‖₂ with elementwise variance, estimated from samples.

    The sample mean is noisy itself: the noise adds Σ Var / samples to its squared length. `unbiased` uses the
    length without it, an unbiased estimate of ‖E[G]‖²; it is 0 if the noise explains the whole length.
    """
    variance = moments.variance
    square, noise = float(moments.mean.square().sum()), float(variance.norm().sqrt())
    signals = (max(0.0, square - float(variance.sum()) / moments.count), square)
    if not noise:
        return Snr(*(float("inf") if signal > 0 else 0.0 for signal in signals))
    return Snr(*(math.sqrt(signal) / noise for signal in signals))


def gradient_snr(
    student: Ensemble,
    teachers: DeepEnsemble,
    x: Tensor,
    y: Tensor,
    perturb: Perturbation,
    temperature: float,
    rng: torch.Generator,
    samples: int = 100,
    watch: Watch = Unwatched(),
) -> Snr:
    """The SNR of G(x, ε) = ∇_θ (L_KD(S(x+ε), T(x+ε)) − L_KD(S(x), T(x))) over draws of ε, for one batch x.

    L_KD is that of Algorithm 1 at temperature τ, a mean over members and examples. θ are all parameters of
    the student. It is in eval mode, so that G depends only on x and ε. x [b c h w], y [b]
    """
    gradient = partial(distillation_gradient, student, teachers, temperature=temperature)
    moments = Moments()
    with evaluating(student):
        clean = gradient(x)
        for done in range(1, samples + 1):
            moments.add(gradient(perturb(x, y, teachers, student, temperature, rng)) - clean)
            watch.step(done, samples, {})
    return signal_to_noise(moments)


def distillation_gradient(student: Ensemble, teachers: DeepEnsemble, x: Tensor, temperature: float) -> Tensor:
    """∇_θ L_KD(S(x), T(x)) as one vector. [b c h w] → [p], float64"""
    with torch.no_grad():
        targets = teachers.ask_all(x)
    with torch.enable_grad():
        loss = losses.distillation(student.ask_all(x), targets, temperature)
        gradients = torch.autograd.grad(loss, [p for p in student.parameters() if p.requires_grad])
    return torch.cat([gradient.flatten() for gradient in gradients]).cpu().double()
