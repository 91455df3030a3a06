"""Losses and accuracy as functions of logits [m b k]: means over members and examples.

Losses of a Dirichlet student take its log concentrations [b k] and the teachers' log-probabilities [M b k].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad_and_value

from polyphony._util.text import SettingError
from polyphony.compute.parallel import gather
from polyphony.data.splits import NO_LABEL
from polyphony.metrics.probabilities import mean_log_probs

AGREEMENT = 1e-6
"""Smallest divergence of teachers in nats: float32 cannot distinguish a smaller one from rounding."""


def cross_entropy(logits: Tensor, labels: Tensor, labelled: Tensor | None = None) -> Tensor:
    """−log softmax(logits)[label], mean over members and examples (§2.2). [m b k], [m b] → []

    `labelled` is the share of examples that have a label: pass it to ignore the others, whose label is −1.
    """
    if labelled is None:
        check_labels(logits, labels)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    check_labels(logits, labels, lowest=NO_LABEL)
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL, reduction="sum")
    return total / labels.numel() / labelled


def accuracy(logits: Tensor, labels: Tensor, labelled: Tensor | None = None) -> Tensor:
    """Share of correct predictions, over members and examples. [m b k], [m b] → []

    `labelled` is the share of examples that have a label: pass it to ignore the others, whose label is −1.
    """
    correct = (logits.detach().argmax(-1) == labels).float().mean()
    return correct if labelled is None else correct / labelled


def labelled_share(y: Tensor, unlabelled: bool) -> Tensor | None:
    """The share of a batch that has a label, or None if it cannot have unlabelled images. [b] → []

    It counts the rows of all processes: a mean over all rows, divided by it, is the mean over labelled rows.
    """
    return gather((y >= 0).float()).mean() if unlabelled else None


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """τ² KL(teacher ‖ student) at temperature τ, mean over members and examples (§2.2, §2.3). [m b k] → []"""
    check_classes(student, teacher)
    log_p = F.log_softmax(teacher / temperature, dim=-1)
    log_q = F.log_softmax(student / temperature, dim=-1)
    kl = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
    return temperature**2 * kl.mean()


def check_labels(logits: Tensor, labels: Tensor, lowest: int = 0) -> None:
    """Raise a SettingError unless there are two classes or more and all labels are valid. [… k], […]"""
    if logits.shape[-1] < 2:
        raise SettingError("the network has only one class: it needs two or more")
    if torch.compiler.is_compiling():  # a graph cannot branch on values
        return
    if labels.device.type == "cpu" and labels.numel():  # on other devices reading it would synchronise
        low, high = int(labels.min()), int(labels.max())
        if low < lowest or high >= logits.shape[-1]:
            wrong = low if low < lowest else high
            raise SettingError(
                f"there is a label {wrong}, but the network has {logits.shape[-1]} classes: correct the"
                " labels, or build the network for more classes"
            )


def check_classes(student: Tensor, teachers: Tensor) -> None:
    """Raise a SettingError unless both have the same number of classes. 2 × [… k]"""
    if student.shape[-1] != teachers.shape[-1]:
        raise SettingError(
            f"the student has {student.shape[-1]} classes, its teachers {teachers.shape[-1]}: "
            "they must have the same number"
        )


def mean_distillation(student: Tensor, teachers: Tensor, temperature: float) -> Tensor:
    """τ² KL(p̄ ‖ q_j) with p̄ the mean of the teachers' softmax at τ, mean over members and examples.

    Plain distillation of an averaged ensemble (Hinton et al. 2015). [m b k], [M b k] → []; if members get
    different examples, `teachers` is [M m b k].
    """
    check_classes(student, teachers)
    log_p = mean_log_probs(F.log_softmax(teachers / temperature, dim=-1))
    log_q = F.log_softmax(student / temperature, dim=-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    return temperature**2 * kl.mean()


def smooth(log_probs: Tensor, amount: float) -> Tensor:
    """log((1 − γ) p + γ/K) from log p, so that no class has probability 0. [… k] → [… k]"""
    floor = log_probs.new_full((), amount / log_probs.shape[-1]).log()
    return torch.logaddexp(log_probs + (math.log1p(-amount) if amount < 1 else -math.inf), floor)


def dirichlet_nll(log_concentrations: Tensor, log_probs: Tensor) -> Tensor:
    """−log Dir(π_j; α), mean over the teachers' predictions π_j and examples. [b k], [M b k] → []

    log Dir(π; α) = log Γ(α₀) − Σ_k log Γ(α_k) + Σ_k (α_k − 1) log π_k with α₀ = Σ_k α_k. This is the loss of
    ensemble distribution distillation (Malinin, Mlodozeniec and Gales 2020). It is linear in log π, so only
    the mean of the teachers' log-probabilities is needed.
    """
    check_classes(log_concentrations, log_probs)
    alpha, total = concentrations(log_concentrations)
    target = precise(log_probs).mean(0)
    likelihood = total.lgamma() - alpha.lgamma().sum(-1) + ((alpha - 1) * target).sum(-1)
    return -likelihood.mean().to(log_concentrations.dtype)


def proxy_dirichlet(log_concentrations: Tensor, log_probs: Tensor) -> Tensor:
    """E_{π ~ Dir(α)}[−Σ_k p̄_k log π_k] + KL(Dir(α) ‖ Dir(1)) / β₀, mean over examples. [b k], [M b k] → []

    p̄ is the teachers' mean prediction and β₀ their `proxy_precision`. The loss is the reverse KL divergence
    to the teachers' proxy Dirichlet, divided by β₀ and without terms that do not depend on α (Ryabinin,
    Malinin and Gales 2021). For any number of classes it has the scale of a cross-entropy. The proxy has the
    concentrations (β₀ − K) p̄ + 1, which would multiply the first term by 1 − K/β₀. The authors omit that
    factor, and so do we: the loss is KL(Dir(α) ‖ Dir(β₀ p̄ + 1)) / β₀ up to a constant.
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
    """β₀ of the teachers' proxy Dirichlet: large if teachers agree. [M b k] → [b]

    β₀ = K + (K − 1) / (2 Σ_k p̄_k (log p̄_k − mean_j log π_jk)): the maximum-likelihood precision under
    Stirling's approximation, plus one for every class (Ryabinin et al. 2021). The sum is mean_j KL(p̄ ‖ π_j).
    It is clamped at `AGREEMENT`: teachers that agree exactly would make β₀ infinite.
    """
    log_probs = precise(log_probs)
    mean, classes = mean_log_probs(log_probs), log_probs.shape[-1]
    divergence = (mean.exp() * (mean - log_probs.mean(0))).sum(-1)
    return classes + (classes - 1) / (2 * divergence.clamp_min(AGREEMENT))


def concentrations(log_concentrations: Tensor) -> tuple[Tensor, Tensor]:
    """α and α₀ = Σ_k α_k from log α. [b k] → [b k], [b]"""
    alpha = precise(log_concentrations).exp()
    return alpha, alpha.sum(-1)


def precise(values: Tensor) -> Tensor:
    """The values in float64 if the device supports it: gamma functions of large α cancel in float32."""
    return values.float() if values.device.type == "mps" else values.double()


def limit_gradient(
    loss: Callable[[Tensor], tuple[Tensor, Tensor]], logits: Tensor, limit: float
) -> tuple[Tensor, Tensor]:
    """The value of a loss whose gradient for each example is shortened to at most `limit`. [m b k] → 2 × []

    `loss` returns a mean over members and examples, and another number for the log; so does this function.
    The limit applies before the loss is multiplied by anything else (a gradient scaler, a process's weight).
    """
    gradient, (value, other) = grad_and_value(loss, has_aux=True)(logits.detach())
    length = gradient.norm(dim=-1, keepdim=True)
    longest = limit / (logits.shape[0] * logits.shape[1])  # the loss is a mean over this many examples
    scale = (longest / length.clamp_min(torch.finfo(length.dtype).tiny)).clamp_max(1.0)
    shortened = gradient.mul(scale)
    return value + ((logits - logits.detach()) * shortened).sum(), other  # adds 0 to the value
