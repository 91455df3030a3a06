"""One network learns the distribution of the teachers' predictions: EnD², and its proxy for many classes.

The losses ignore the labels, as in their papers. Only the accuracy in the log uses them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from polyphony._util.settings import Count, Positive, Share, Temperature, check
from polyphony.distill import losses
from polyphony.distill.one_to_one import all_teacher_logits
from polyphony.distill.perturb import Clean, Perturbation
from polyphony.ensembles import DeepEnsemble, Dirichlet, Ensemble
from polyphony.training.graphs import Draws, TwoPart


@dataclass(frozen=True)
class DistributionLoss(TwoPart):
    """Base of losses on perturbed inputs for one network that learns a distribution of predictions."""

    teachers: DeepEnsemble
    perturb: Perturbation = field(default=Clean(), kw_only=True)
    temperature: float = field(default=1.0, kw_only=True)  # τ of the perturbation
    unlabelled: bool = field(default=False, kw_only=True)  # may images have no label (−1)?

    def __post_init__(self) -> None:
        check(Temperature, temperature=self.temperature)

    def draw(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> Draws:
        x_tilde = self.perturb(x, y, self.teachers, student, self.temperature, rng)
        return x_tilde, losses.labelled_share(y, self.unlabelled)


@dataclass(frozen=True)
class DistillDistribution(DistributionLoss):
    """Ensemble distribution distillation: T² × the Dirichlet likelihood of the teachers' predictions.

    After Malinin, Mlodozeniec and Gales (2020) and their code. The teachers' softmax(z/T) and the student's
    α = e^(z/T) have the same temperature T, which is annealed (see `temperature_at`). The teachers'
    probabilities are smoothed to (1 − γ) π + γ/K with γ = `smoothing` (their code has 10⁻³ and 10⁻⁷).

    We differ in three ways: T changes every step, not every epoch; inputs may be perturbed; and there is a
    `gradient_limit`. The curvature of the likelihood grows with α, so SGD fails at the learning rates of the
    other losses (on digits, one seed: 0.1 and 0.01 diverged, 0.003 and 0.001 learned badly, 0.0003 learned).
    So an example's gradient with respect to log α is scaled down to this length if it is longer. The default
    is about the longest gradient of a cross-entropy. Annealing needs some hundreds of steps at least, because
    the best z grows faster than T.

    `steps` is the number of steps of the training; the student counts the steps done.
    """

    steps: int
    start_temperature: float = 10.0
    smoothing: float = 1e-4
    gradient_limit: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check(Count, steps=self.steps)
        check(Temperature, start_temperature=self.start_temperature)
        check(Positive, gradient_limit=self.gradient_limit)
        check(Share, smoothing=self.smoothing)

    def compute(self, student: Ensemble, x: Tensor, y: Tensor, draws: Draws) -> dict[str, Tensor]:
        temperature = self.temperature_at(check_dirichlet(student, offset=0).steps)
        x_tilde, labelled = draws
        teachers = F.log_softmax(all_teacher_logits(self.teachers, x_tilde).float() / temperature, dim=-1)
        targets = losses.smooth(teachers, self.smoothing)
        log_alpha = student(x_tilde[None])

        def likelihood(z: Tensor) -> tuple[Tensor, Tensor]:
            nll = losses.dirichlet_nll(z[0] / temperature, targets)
            return temperature**2 * nll, nll

        loss, nll = losses.limit_gradient(likelihood, log_alpha, self.gradient_limit)
        acc = losses.accuracy(log_alpha, y[None], labelled)
        return {"loss": loss, "nll": nll, "temperature": temperature, "acc": acc}

    def temperature_at(self, step: Tensor) -> Tensor:
        """T after `step` steps: constant in the first third of training, linear to 1 in the second, then 1.

        The shape is that of the authors' code, which leaves the lengths open. The thirds are those of a
        reproduction of the paper (10 for 30 epochs, to 1 over 30, 1 for 30). [] → []
        """
        progress = (3 * step.float() / self.steps - 1).clamp(0, 1)  # of the second third
        return self.start_temperature + progress * (1 - self.start_temperature)


@dataclass(frozen=True)
class DistillProxy(DistributionLoss):
    """Distribution distillation for many classes: reverse KL to the teachers' proxy Dirichlet.

    After Ryabinin, Malinin and Gales (2021), without temperature and smoothing, as in their code. The student
    must be a `Dirichlet` with offset 1, since α = e^z + 1. If teachers agree, their divergence is close to 0:
    the authors add 10⁻⁷ to twice the divergence, we clamp it at 10⁻⁶.
    """

    def compute(self, student: Ensemble, x: Tensor, y: Tensor, draws: Draws) -> dict[str, Tensor]:
        check_dirichlet(student, offset=1)
        x_tilde, labelled = draws
        teachers = F.log_softmax(all_teacher_logits(self.teachers, x_tilde).float(), dim=-1)
        log_alpha = student(x_tilde[None])
        loss = losses.proxy_dirichlet(log_alpha[0], teachers)
        return {"loss": loss, "acc": losses.accuracy(log_alpha, y[None], labelled)}


def check_dirichlet(student: Ensemble, offset: float) -> Dirichlet:
    """The student; raises a TypeError or ValueError unless it is a Dirichlet with this offset."""
    if not isinstance(student, Dirichlet):
        raise TypeError(f"the loss needs a Dirichlet student, not a {type(student).__name__}")
    if student.offset != offset:
        raise ValueError(
            f"the loss needs concentrations e^z + {offset:g}, but the student has e^z + {student.offset:g}:"
            f" use Dirichlet(network, offset={offset:g})"
        )
    return student
