"""Losses as pure functions of logits with members first: [m b k], mean over members and examples."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """−log softmax(logits)[label], mean over members and examples (§2.2). [m b k], [m b] → []"""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """τ² KL(teacher ‖ student) at temperature τ, mean over members and examples (§2.2, §2.3). [m b k] → []"""
    log_p = F.log_softmax(teacher / temperature, dim=-1)
    log_q = F.log_softmax(student / temperature, dim=-1)
    kl = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
    return temperature**2 * kl.mean()
