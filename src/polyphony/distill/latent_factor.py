"""One network learns a distribution over the teachers' functions, by EM on batches (deep latent factors).

Teacher i's logits are f_i(x) = μ(x) + L Z_i Φ(x) + ε. With B = Φ ⊗ L [b k, q k] the posterior of vec Z_i is
normal with the covariance (I + BᵀB/σ²)⁻¹. Since BᵀB = ΦᵀΦ ⊗ LᵀL, two small eigendecompositions are enough.
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
from polyphony.distill import losses
from polyphony.distill.distribution import DistributionLoss
from polyphony.distill.one_to_one import all_teacher_logits
from polyphony.ensembles import Ensemble, LatentFactor
from polyphony.ensembles.latent_factor import deviations
from polyphony.training.graphs import Draws

RATE = 0.1  # weight of a batch in the running variance, as in BatchNorm


class Posterior(NamedTuple):
    """The normal posterior of every teacher's Z; its covariance as eigenvectors and eigenvalues."""

    mean: Tensor  # [m k q]
    left: Tensor  # eigenvectors of LᵀL [k k]
    right: Tensor  # eigenvectors of ΦᵀΦ [q q]
    variances: Tensor  # eigenvalues of the covariance [k q]


@dataclass(frozen=True)
class DistillFactors(DistributionLoss):
    """Expectation maximisation of the deep latent factor model (NeurIPS 2025), one step for each batch.

    The E-step is the exact posterior of every Z_i given the batch. The M-step is a gradient step on the
    expected squared error of the teachers' logits, centred over classes, and a running mean for σ². In the
    first tenth of the steps Z_i are parameters, and the loss has a penalty: their maximum mean discrepancy
    from N(0, I). The loss ignores labels.

    We had the paper, but not its code. The two phases are the paper's; their lengths and the kernel are ours.
    We differ in one way: μ alone learns the teachers' mean, and Z_i, L, Φ and σ² learn the deviations from
    it. Otherwise Z_i of a batch could explain the mean, too. `docs/students.md` lists what was tried.

    `steps` is the number of steps of the training; the student counts the steps done.
    """

    steps: int
    first: float = 0.1  # share of the steps in which Z_i are parameters
    penalty: float = 1.0  # weight of the discrepancy

    def __post_init__(self) -> None:
        super().__post_init__()
        check(Count, steps=self.steps)
        check(Share, first=self.first)
        check(NotNegative, penalty=self.penalty)

    def compute(self, student: Ensemble, x: Tensor, y: Tensor, draws: Draws) -> dict[str, Tensor]:
        student = check_latent_factor(student, self.teachers.members)
        x_tilde, labelled = draws
        first_phase = student.steps < self.first * self.steps
        mean, features = student.parts(x_tilde)
        with full_precision(x.device):
            logits = all_teacher_logits(self.teachers, x_tilde).to(mean)
            logits, lower = logits - logits.mean(-1, keepdim=True), student.lower()
            residual, latents = deviations(logits), deviations(student.latents)
            z = self.expect(student, residual, features, lower)
            z = z._replace(
                mean=torch.where(first_phase, latents, z.mean), variances=z.variances * ~first_phase
            )
            square = (logits.mean(0) - mean).square().mean()
            error = expected_square(residual, features, lower, z)
            mmd = discrepancy(latents.flatten(1)) * first_phase
        loss = (square + error) / 2 + self.penalty * mmd
        acc = losses.accuracy(mean[None], y[None], labelled)
        return {"loss": loss, "square": square, "error": error, "mmd": mmd, "acc": acc}

    @torch.no_grad()
    def expect(self, student: LatentFactor, residual: Tensor, features: Tensor, lower: Tensor) -> Posterior:
        """The posterior given the batch, with the rows of all processes; updates the student's σ²."""
        residual, features = gather(residual, dim=1), gather(features)
        z = posterior(residual, features, lower, student.variance)
        error = expected_square(residual, features, lower, z)
        student.variance.lerp_(error.to(student.variance), RATE)
        return z


def posterior(residual: Tensor, features: Tensor, lower: Tensor, variance: Tensor) -> Posterior:
    """The posterior of every teacher's Z. residual f − μ [m b k], Φ [b q], L [k k], σ² []"""
    class_values, left = eigen(lower.T @ lower)
    feature_values, right = eigen(features.T @ features)
    variances = variance / (variance + class_values[:, None].clamp_min(0) * feature_values.clamp_min(0))
    cross = left.T @ (lower.T @ residual.mT @ features) @ right
    return Posterior(left @ (cross * variances / variance) @ right.T, left, right, variances)


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of a symmetric matrix; NaN if it is not finite, as after a divergence."""
    finite = matrix.isfinite().all()
    values, vectors = torch.linalg.eigh(torch.where(finite, matrix, 0.0))
    return torch.where(finite, values, torch.nan), torch.where(finite, vectors, torch.nan)


def expected_square(residual: Tensor, features: Tensor, lower: Tensor, z: Posterior) -> Tensor:
    """E (f − μ − L Z Φ)² for Z of a fixed posterior: mean over teachers, examples and classes. → []"""
    fitted = features @ (lower @ z.mean).mT
    class_squares = (lower @ z.left).square().sum(0)
    feature_squares = (features @ z.right).square().sum(0)
    spread = (class_squares[:, None] * z.variances * feature_squares).sum() / fitted[0].numel()
    return (residual - fitted).square().mean() + spread


def discrepancy(z: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of rows from N(0, I), with the kernel exp(−‖a − b‖²/2q). [n q] → []"""
    q = z.shape[-1]
    pairs = torch.exp(-(z[:, None] - z).square().sum(-1) / (2 * q)).mean()
    with_normal = torch.exp(-z.square().sum(-1) / (2 * (q + 1))).mean() * math.pow(q / (q + 1), q / 2)
    return pairs - 2 * with_normal + math.pow(q / (q + 2), q / 2)


def check_latent_factor(student: Ensemble, teachers: int) -> LatentFactor:
    """The student; raises a TypeError or ValueError unless it is a LatentFactor for so many teachers."""
    if not isinstance(student, LatentFactor):
        raise TypeError(f"the loss needs a LatentFactor student, not a {type(student).__name__}")
    if teachers < 2:
        raise ValueError("a LatentFactor student needs two teachers or more")
    if len(student.latents) != teachers:
        raise ValueError(f"the student is made for {len(student.latents)} teachers, not {teachers}")
    return student
