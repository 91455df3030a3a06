"""The signal-to-noise ratio of gradients under a perturbation (§4.3)."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from polyphony.distill import losses
from polyphony.distill.perturb import Perturbation
from polyphony.ensembles import DeepEnsemble, Ensemble, evaluating
from polyphony.training.fit import Unwatched, Watch


class Moments:
    """Elementwise mean and variance of vectors that come one at a time (Welford), in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = torch.zeros((), dtype=torch.float64)

    def add(self, value: Tensor) -> None:
        """Count one more vector. [p]"""
        self.count += 1
        above = value.double() - self.mean
        self.mean = self.mean + above / self.count
        self.squares = self.squares.addcmul(above, value - self.mean)

    @property
    def variance(self) -> Tensor:
        """Σ (g − mean)² / (count − 1). [p]"""
        if self.count < 2:
            raise ValueError("a variance needs at least two samples")
        return self.squares / (self.count - 1)


def signal_to_noise(moments: Moments) -> float:
    """‖E[G]‖₂ / √‖Var[G]‖₂ with elementwise variance, estimated from samples.

    The samples' mean has noise of its own, of the squared length Σ Var / samples. It is taken off, which
    leaves an unbiased estimate of ‖E[G]‖²; 0 where noise explains all of the length.
    """
    variance = moments.variance
    signal = float(moments.mean.square().sum()) - float(variance.sum()) / moments.count
    noise = float(variance.norm().sqrt())
    if not noise:
        return float("inf") if signal > 0 else 0.0
    return math.sqrt(max(0.0, signal)) / noise


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
) -> float:
    """The SNR of G(x, ε) = ∇_θ (L_KD(S(x+ε), T(x+ε)) − L_KD(S(x), T(x))) over draws of ε, for one batch x.

    L_KD is Algorithm 1's, at temperature τ, the mean over members and examples; θ are all parameters of the
    student, which is in eval mode, so that G depends on x and ε alone. x [b c h w], y [b]
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
