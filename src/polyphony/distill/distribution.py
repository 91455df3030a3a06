"""One network learns the distribution of the teachers' predictions: EnD², and its proxy for many classes.

Neither uses the labels, as in their papers; they are read for the accuracy in the log alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from polyphony._util.settings import Count, Positive, Share, Temperature, check
from polyphony.distill import losses
from polyphony.distill.labels import accuracy, labelled_share
from polyphony.distill.one_to_one import all_teachers
from polyphony.distill.perturb import Clean, Perturbation
from polyphony.ensembles import DeepEnsemble, Dirichlet, Ensemble
from polyphony.training.graphs import Drawn, TwoPart


@dataclass(frozen=True)
class DistributionLoss(TwoPart):
    """Base of losses for one network that learns more than the teachers' mean, on perturbed inputs."""

    teachers: DeepEnsemble
    perturb: Perturbation = field(default=Clean(), kw_only=True)
    temperature: float = field(default=1.0, kw_only=True)  # at which a perturbation reads the teachers
    unlabelled: bool = field(default=False, kw_only=True)  # whether there are unlabelled images (label −1)

    def __post_init__(self) -> None:
        check(Temperature, temperature=self.temperature)

    def draw(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> Drawn:
        x_tilde = self.perturb(x, y, self.teachers, student, self.temperature, rng)
        return x_tilde, *labelled_share(y, self.unlabelled)


@dataclass(frozen=True)
class DistillDistribution(DistributionLoss):
    """Ensemble distribution distillation: T² × the Dirichlet likelihood of the teachers' predictions.

    After Malinin, Mlodozeniec and Gales (2020) and their code: the teachers' softmax(z/T) and the student's
    α = e^(z/T) at one temperature T, which is annealed (see `temperature_at`); the teachers' probabilities
    smoothed to (1 − γ) π + γ/K, γ = `smoothing` (their code has 10⁻³ and 10⁻⁷); the loss times T².

    We differ in that T changes every step, not every epoch, that inputs may be perturbed, and in the
    `gradient_limit`: the likelihood's curvature grows with α, and SGD at a learning rate that suits the other
    losses fails (on digits, one seed: 0.1 and 0.01 diverged, 0.003 and 0.001 learned badly, 0.0003 learned).
    So each example's gradient with respect to log α is scaled down to this length where it is longer, about
    the longest that a cross-entropy has. The z that suits a temperature grows faster than T, so that
    annealing takes some hundreds of steps at least.

    `steps` is how many steps the whole training has; the student counts those it has done.
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

    def given(self, student: Ensemble, x: Tensor, y: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        temperature = self.temperature_at(dirichlet(student, offset=0).steps)
        x_tilde, *labelled = drawn
        teachers = F.log_softmax(all_teachers(self.teachers, x_tilde).float() / temperature, dim=-1)
        targets, log_alpha = losses.smooth(teachers, self.smoothing), student(x_tilde[None])

        def likelihood(z: Tensor) -> tuple[Tensor, Tensor]:
            nll = losses.dirichlet_nll(z[0] / temperature, targets)
            return temperature**2 * nll, nll

        loss, nll = losses.limited(likelihood, log_alpha, self.gradient_limit)
        acc = accuracy(log_alpha, y[None], *labelled)
        return {"loss": loss, "nll": nll, "temperature": temperature, "acc": acc}

    def temperature_at(self, step: Tensor) -> Tensor:
        """T after `step` steps: constant in the first third of training, linear to 1 in the second, then 1.

        The shape is that of their code, which leaves the lengths open; thirds are what a reproduction of the
        paper shows (10 for 30 epochs, to 1 over 30, 1 for 30). [] → []
        """
        fallen = (3 * step.float() / self.steps - 1).clamp(0, 1)
        return self.start_temperature + fallen * (1 - self.start_temperature)


@dataclass(frozen=True)
class DistillProxy(DistributionLoss):
    """Distribution distillation for many classes: reverse KL to the teachers' proxy Dirichlet.

    After Ryabinin, Malinin and Gales (2021), with α = e^z + 1, so that the student is a `Dirichlet` of offset
    1; no temperature and no smoothing, as theirs. Where teachers agree, they add 10⁻⁷ to twice their
    divergence, and we clamp the divergence at 10⁻⁶.
    """

    perturb: Perturbation = Clean()  # may be positional

    def given(self, student: Ensemble, x: Tensor, y: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        dirichlet(student, offset=1)
        x_tilde, *labelled = drawn
        teachers = F.log_softmax(all_teachers(self.teachers, x_tilde).float(), dim=-1)
        log_alpha = student(x_tilde[None])
        loss = losses.proxy_dirichlet(log_alpha[0], teachers)
        return {"loss": loss, "acc": accuracy(log_alpha, y[None], *labelled)}


def dirichlet(student: Ensemble, offset: float) -> Dirichlet:
    """The student; a SettingError if its outputs are not the concentrations that a loss needs."""
    if not isinstance(student, Dirichlet):
        raise TypeError(
            f"a distribution is distilled into a Dirichlet student, not a {type(student).__name__}"
        )
    if student.offset != offset:
        raise ValueError(
            f"this loss is for concentrations e^z + {offset:g}, the student's are e^z + {student.offset:g}:"
            f" make it with Dirichlet(network, offset={offset:g})"
        )
    return student
