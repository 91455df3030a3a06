"""Losses as pure functions of logits with members first: [m b k], mean over members and examples.

Those of a Dirichlet student take its log concentrations [b k] and M teachers' log-probabilities [M b k].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad_and_value

from polyphony._util.text import SettingError
from polyphony.data.splits import UNLABELLED
from polyphony.metrics.probabilities import mean_log_probs

AGREEMENT = 1e-6
"""Nats below which teachers count as agreeing: float32 cannot distinguish less from rounding."""


def cross_entropy(logits: Tensor, labels: Tensor, labelled: Tensor | None = None) -> Tensor:
    """−log softmax(logits)[label], mean over members and examples (§2.2). [m b k], [m b] → []

    With `labelled`, the share of examples that have a label, the mean is over those; the others have −1.
    """
    if labelled is None:
        check_labels(logits, labels)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    check_labels(logits, labels, least=UNLABELLED)
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=UNLABELLED, reduction="sum")
    return total / labels.numel() / labelled


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """τ² KL(teacher ‖ student) at temperature τ, mean over members and examples (§2.2, §2.3). [m b k] → []"""
    check_classes(student, teacher)
    log_p = F.log_softmax(teacher / temperature, dim=-1)
    log_q = F.log_softmax(student / temperature, dim=-1)
    kl = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
    return temperature**2 * kl.mean()


def check_labels(logits: Tensor, labels: Tensor, least: int = 0) -> None:
    """Raise unless there are two or more classes, and all labels are classes. [… k], […]"""
    if logits.shape[-1] < 2:
        raise SettingError("the network has one class: there is nothing to tell apart")
    if torch.compiler.is_compiling():  # a graph cannot depend on values
        return
    if labels.device.type == "cpu" and labels.numel():  # on other devices reading it would synchronise
        low, most = int(labels.min()), int(labels.max())
        if low < least or most >= logits.shape[-1]:
            wrong = most if low >= least else low
            raise SettingError(f"there is a label {wrong}, but the network has {logits.shape[-1]} classes")


def check_classes(student: Tensor, teachers: Tensor) -> None:
    """Raise unless both have the same number of classes. 2 × [… k]"""
    if student.shape[-1] != teachers.shape[-1]:
        raise SettingError(
            f"the student has {student.shape[-1]} classes, its teachers {teachers.shape[-1]}: "
            "they must be the same"
        )


def mean_distillation(student: Tensor, teachers: Tensor, temperature: float) -> Tensor:
    """τ² KL(p̄ ‖ q_j) with p̄ the mean of the teachers' softmax at τ, mean over members and examples.

    Plain distillation of an averaged ensemble (Hinton et al. 2015): [m b k], [M b k] → []. Where the members
    see different examples, teachers are [M m b k].
    """
    check_classes(student, teachers)
    log_p = mean_log_probs(F.log_softmax(teachers / temperature, dim=-1))
    log_q = F.log_softmax(student / temperature, dim=-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    return temperature**2 * kl.mean()


def smooth(log_probs: Tensor, amount: float) -> Tensor:
    """log((1 − γ) p + γ/K) from log p: no class is impossible. [… k] → [… k]"""
    floor = log_probs.new_full((), amount / log_probs.shape[-1]).log()
    return torch.logaddexp(log_probs + (math.log1p(-amount) if amount < 1 else -math.inf), floor)


def dirichlet_nll(log_concentrations: Tensor, log_probs: Tensor) -> Tensor:
    """−log Dir(π_j; α), mean over the teachers' predictions π_j and examples. [b k], [M b k] → []

    log Dir(π; α) = log Γ(α₀) − Σ_k log Γ(α_k) + Σ_k (α_k − 1) log π_k with α₀ = Σ_k α_k: the loss of ensemble
    distribution distillation (Malinin, Mlodozeniec and Gales 2020). It is linear in log π, so that the
    teachers enter by their mean log-probability.
    """
    check_classes(log_concentrations, log_probs)
    alpha, total = concentrations(log_concentrations)
    target = precise(log_probs).mean(0)
    likelihood = total.lgamma() - alpha.lgamma().sum(-1) + ((alpha - 1) * target).sum(-1)
    return -likelihood.mean().to(log_concentrations.dtype)


def proxy_dirichlet(log_concentrations: Tensor, log_probs: Tensor) -> Tensor:
    """E_{π ~ Dir(α)}[−Σ_k p̄_k log π_k] + KL(Dir(α) ‖ Dir(1)) / β₀, mean over examples. [b k], [M b k] → []

    p̄ is the teachers' mean prediction and β₀ their `proxy_precision`. This is the reverse KL divergence to
    the teachers' proxy Dirichlet, over β₀ and without what does not depend on α, as Ryabinin, Malinin and
    Gales (2021) train it: of the scale of a cross-entropy for any number of classes. The proxy has the
    concentrations (β₀ − K) p̄ + 1, which would weigh the first term by 1 − K/β₀; they leave that factor out,
    and so do we. With it left out the loss is KL(Dir(α) ‖ Dir(β₀ p̄ + 1)) / β₀.
    """
    check_classes(log_concentrations, log_probs)
    alpha, total = concentrations(log_concentrations)
    mean_log = alpha.digamma() - total.digamma()[:, None]  # E[log π_k]
    expected = -(mean_log_probs(precise(log_probs)).exp() * mean_log).sum(-1)
    normaliser = total.lgamma() - alpha.lgamma().sum(-1) - math.lgamma(alpha.shape[-1])
    spread = normaliser + ((alpha - 1) * mean_log).sum(-1)  # KL(Dir(α) ‖ Dir(1))
    loss: Tensor = (expected + spread / proxy_precision(log_probs)).mean()
    return loss.to(log_concentrations.dtype)


def proxy_precision(log_probs: Tensor) -> Tensor:
    """β₀ of the teachers' proxy Dirichlet: how sharply their predictions lie around their mean. [M b k] → [b]

    β₀ = K + (K − 1) / (2 Σ_k p̄_k (log p̄_k − mean_j log π_jk)): the precision of greatest likelihood after
    Stirling's approximation, plus one for every class (Ryabinin et al. 2021). Teachers that agree exactly
    would make it infinite: the sum, which is mean_j KL(p̄ ‖ π_j), counts as at least `AGREEMENT`.
    """
    log_probs = precise(log_probs)
    mean, classes = mean_log_probs(log_probs), log_probs.shape[-1]
    apart = (mean.exp() * (mean - log_probs.mean(0))).sum(-1)
    return classes + (classes - 1) / (2 * apart.clamp_min(AGREEMENT))


def concentrations(log_concentrations: Tensor) -> tuple[Tensor, Tensor]:
    """α and α₀ = Σ_k α_k from log α. [b k] → [b k], [b]"""
    alpha = precise(log_concentrations).exp()
    return alpha, alpha.sum(-1)


def precise(values: Tensor) -> Tensor:
    """In float64 if the device has it: gamma functions of large α cancel in float32."""
    return values.float() if values.device.type == "mps" else values.double()


def limited(
    loss: Callable[[Tensor], tuple[Tensor, Tensor]], logits: Tensor, limit: float
) -> tuple[Tensor, Tensor]:
    """A loss of logits, in which the gradient of each example is at most `limit` long.

    The loss is a mean over examples, with another number to report. The limit holds for any factor that the
    loss is multiplied by later (a gradient scaler's, a process's share). [m b k] → 2 × []
    """
    gradient, (value, other) = grad_and_value(loss, has_aux=True)(logits.detach())
    length = gradient.norm(dim=-1, keepdim=True)
    share = limit / (logits.shape[0] * logits.shape[1])
    short = gradient.mul((share / length.clamp_min(torch.finfo(length.dtype).tiny)).clamp_max(1.0))
    return value + ((logits - logits.detach()) * short).sum(), other  # adds zero, and the gradient
