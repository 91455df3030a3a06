"""One network learns a distribution over the teachers' functions, by EM on batches (deep latent factors).

Teacher i's logits are f_i(x) = μ(x) + L Z_i Φ(x) + ε. With B = Φ ⊗ L [b k, q k] the posterior of vec Z_i is
normal with the covariance (I + BᵀB/σ²)⁻¹. BᵀB = ΦᵀΦ ⊗ LᵀL, so that two small eigendecompositions are enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polyphony._util.settings import Count, NotNegative, Share, check
from polyphony.compute.devices import full_precision
from polyphony.compute.parallel import gather
from polyphony.distill.distribution import DistributionLoss
from polyphony.distill.labels import accuracy
from polyphony.distill.one_to_one import all_teachers
from polyphony.ensembles import Ensemble, LatentFactor
from polyphony.training.graphs import Drawn

RATE = 0.1  # of a batch in the running variance, as BatchNorm's


class Posterior(NamedTuple):
    """Of every teacher's Z: its mean [m k q]; and the covariance, as eigenvectors and `variances` [k q]."""

    mean: Tensor
    left: Tensor  # eigenvectors of LᵀL [k k]
    right: Tensor  # eigenvectors of ΦᵀΦ [q q]
    variances: Tensor


@dataclass(frozen=True)
class DistillFactors(DistributionLoss):
    """Expectation maximisation of the deep latent factor model (NeurIPS 2025), one step a batch.

    The E-step is the exact posterior of every Z_i given the batch. The M-step is a gradient step on the
    expected squared error of the teachers' logits, centred over classes, and a running mean for σ². In the
    first tenth of the steps Z_i are parameters, with `penalty` times their maximum mean discrepancy from
    N(0, I). Labels are not used.

    The paper's code was not seen. The two phases are the paper's; their lengths and the kernel are ours. We
    differ in that μ alone learns the teachers' mean, and Z_i, L, Φ and σ² what is apart from it: Z_i of a
    batch could explain the mean, too. `docs/students.md` says what was tried.

    `steps` is how many steps the whole training has; the student counts those it has done.
    """

    steps: int
    first: float = 0.1  # share of the steps in which Z_i are parameters
    penalty: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check(Count, steps=self.steps)
        check(Share, first=self.first)
        check(NotNegative, penalty=self.penalty)

    def given(self, student: Ensemble, x: Tensor, y: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        student = latent_factor(student, self.teachers.members)
        x_tilde, *labelled = drawn
        begins = student.steps < self.first * self.steps
        mean, features = student.parts(x_tilde)
        with full_precision(x.device):
            logits = all_teachers(self.teachers, x_tilde).to(mean)
            logits, lower = logits - logits.mean(-1, keepdim=True), student.lower()
            contrasts, latents = apart(logits), apart(student.latents)
            found = self.expect(student, contrasts, features, lower)
            z, spread = torch.where(begins, latents, found.mean), found.variances * ~begins
            square = (logits.mean(0) - mean).square().mean()
            error = expected_square(contrasts, features, lower, found._replace(mean=z, variances=spread))
            mmd = discrepancy(latents.flatten(1)) * begins
        loss, acc = (square + error) / 2 + self.penalty * mmd, accuracy(mean[None], y[None], *labelled)
        return {"loss": loss, "square": square, "error": error, "mmd": mmd, "acc": acc}

    @torch.no_grad()
    def expect(self, student: LatentFactor, residual: Tensor, features: Tensor, lower: Tensor) -> Posterior:
        """The posterior given the whole batch, rows of other processes included; σ² follows."""
        residual, features = gather(residual, dim=1), gather(features)
        found = posterior(residual, features, lower, student.variance)
        error = expected_square(residual, features, lower, found)
        student.variance.lerp_(error.to(student.variance), RATE)
        return found


def posterior(residual: Tensor, features: Tensor, lower: Tensor, variance: Tensor) -> Posterior:
    """The posterior of every teacher's Z. residual f − μ [m b k], Φ [b q], L [k k], σ² []"""
    of_classes, left = torch.linalg.eigh(lower.T @ lower)
    of_features, right = torch.linalg.eigh(features.T @ features)
    variances = variance / (variance + of_classes[:, None].clamp_min(0) * of_features.clamp_min(0))
    cross = left.T @ (lower.T @ residual.mT @ features) @ right
    return Posterior(left @ (cross * variances / variance) @ right.T, left, right, variances)


def expected_square(residual: Tensor, features: Tensor, lower: Tensor, found: Posterior) -> Tensor:
    """E (f − μ − L Z Φ)² under a posterior that does not depend on L and Φ: a mean over all. → []"""
    fitted = features @ (lower @ found.mean).mT
    of_classes = (lower @ found.left).square().sum(0)
    of_features = (features @ found.right).square().sum(0)
    spread = (of_classes[:, None] * found.variances * of_features).sum() / fitted[0].numel()
    return (residual - fitted).square().mean() + spread


def discrepancy(z: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of rows from N(0, I), by the kernel exp(−‖a − b‖²/2q). [n q] → []"""
    q = z.shape[-1]
    pairs = torch.exp(-(z[:, None] - z).square().sum(-1) / (2 * q)).mean()
    with_normal = torch.exp(-z.square().sum(-1) / (2 * (q + 1))).mean() * math.pow(q / (q + 1), q / 2)
    return pairs - 2 * with_normal + math.pow(q / (q + 2), q / 2)


def apart(each: Tensor) -> Tensor:
    """What teachers have beside their mean, scaled so that it has the variance of one of them. [m …]"""
    return (each - each.mean(0)) * math.sqrt(len(each) / (len(each) - 1))


def latent_factor(student: Ensemble, teachers: int) -> LatentFactor:
    """The student, if it is of the kind that the loss is made for."""
    if not isinstance(student, LatentFactor):
        raise TypeError(f"latent factors are distilled into a LatentFactor, not a {type(student).__name__}")
    if teachers < 2:
        raise ValueError("a student of latent factors needs two teachers or more")
    if len(student.latents) != teachers:
        raise ValueError(f"the student is made for {len(student.latents)} teachers, not {teachers}")
    return student
