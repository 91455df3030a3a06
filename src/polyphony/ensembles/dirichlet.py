"""One network that predicts a distribution over predictions: a Dirichlet for each input."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyphony._util.settings import NotNegative, check
from polyphony.ensembles.base import Ensemble, NetworkRunner, check_leading
from polyphony.metrics import DirichletPredictions


class Dirichlet(Ensemble):
    """One network whose outputs z are the concentrations of a Dirichlet distribution, α = offset + e^z.

    It returns **log concentrations** log α in place of logits. Their softmax α/α₀ is the expected prediction,
    so that accuracy, likelihood and calibration treat them as the logits of one member;
    `DirichletPredictions` computes their spread. The offset is 0 for ensemble distribution distillation
    (Malinin et al. 2020) and 1 for its proxy (Ryabinin et al. 2021), which keeps α above 1, so that the
    density stays bounded.

    `steps` counts forward passes in training mode, as BatchNorm counts its batches. It is saved with the
    weights, so that an annealed temperature resumes exactly.
    """

    members = 1
    predicts = DirichletPredictions
    steps: Tensor

    def __init__(self, network: nn.Module, offset: float = 0.0) -> None:
        super().__init__()
        check(NotNegative, offset=offset)
        self.offset = offset
        self.network, self.runner = network, NetworkRunner(network)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """[1 b c h w] → log α [1 b k]"""
        check_leading(x, 1)
        if self.training:
            self.steps += 1
        outputs = self.runner(self.network, x[0])
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        return torch.logaddexp(outputs, outputs.new_full((), self.offset).log())[None]
