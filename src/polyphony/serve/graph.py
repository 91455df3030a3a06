"""The graph that is exported: pixels in, answers out, with operations that every runtime has."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from polyphony.metrics import DirichletPredictions
from polyphony.serve.student import Student

Levels = Literal["uint8", "float32"]

STEPS = 8  # by which a digamma's argument is raised, to where its series holds


class AnswerGraph(nn.Module):
    """A student's answers from pixels [b c h w] of its size: uint8, or float32 in [0, 1].

    The same numbers as `Student.predict` gives, in float32: what they mean is said of `Answers`. Members are
    plain networks, BatchNorm is folded, normalisation and temperature are inside.
    """

    def __init__(self, student: Student, levels: Levels) -> None:
        super().__init__()
        self.ensemble = student.ensemble.folded().cpu().eval().requires_grad_(False)
        self.temperature = student.temperature
        self.dirichlet = student.ensemble.predicts is DirichletPredictions
        self.scale = 255 if levels == "uint8" else 1

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """The outputs by name, in the order of `Answers`."""
        x = pixels.float() / self.scale
        logits = self.ensemble(x.expand(self.ensemble.members, *x.shape)).float()
        each = logits.log_softmax(-1)
        mean = each.logsumexp(0) - math.log(self.ensemble.members)
        scaled = (mean / self.temperature).log_softmax(-1)
        probabilities, members = scaled.exp(), each.exp()
        if self.dirichlet:
            apart = dirichlet_information(logits[0])
        else:
            apart = (members * (each - mean)).sum(-1).mean(0)  # (1/m) Σ_j KL(p_j ‖ p̄)
        return {
            "probabilities": probabilities,
            "entropy": -(probabilities * scaled).sum(-1),
            "mutual_information": apart.clamp_min(0),
            "members": members,
        }


def dirichlet_information(log_alpha: Tensor) -> Tensor:
    """`metrics.dirichlet_information` without a digamma, which ONNX lacks. [n k] → [n]"""
    log_total = log_alpha.logsumexp(-1, keepdim=True)
    mean = (log_alpha - log_total).exp()
    return (mean * (above_log(log_alpha) - above_log(log_total))).sum(-1)


def above_log(log_a: Tensor) -> Tensor:
    """ψ(a + 1) − log a from log a: ψ(a + 1) = ψ(x) − Σ_{i=1..8} 1/(a + i) with x = a + 9, and ψ's series."""
    a = log_a.exp()
    gap = log_a - math.log(1 + STEPS)
    log_ratio = (-gap).clamp_min(0) + (-gap.abs()).exp().log1p()  # log x − log a, whatever a is
    x = a + 1 + STEPS
    r = 1 / (x * x)
    series = 0.5 / x + r * (1 / 12 - r * (1 / 120 - r / 252))
    steps = (1 / (a[..., None] + torch.arange(1, STEPS + 1))).sum(-1)
    return log_ratio - series - steps
