"""Any ensemble × split → Predictions: logits are made once, every number after that is a function of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from polyphony.data import Split, pixels
from polyphony.ensembles import Ensemble
from polyphony.ensembles import evaluating as evaluating


@dataclass(frozen=True, eq=False)
class Predictions:
    """Each member's logits [m n k] on a split, and the split's labels [n]."""

    logits: Tensor
    labels: Tensor

    @property
    def members(self) -> int:
        """How many predictors these are the outputs of."""
        return len(self.logits)


def unchanged(x: Tensor, y: Tensor) -> Tensor:
    """The inputs as they are."""
    return x


def predict(
    ensemble: Ensemble,
    split: Split,
    *,
    batch: int = 250,
    device: torch.device | str = "cpu",
    before: Callable[[Tensor, Tensor], Tensor] = unchanged,
) -> Predictions:
    """All members on every image, in eval mode and float32; `before` may change a batch's pixels first."""
    blocks = []
    with torch.no_grad(), evaluating(ensemble):
        for images, labels in zip(split.images.split(batch), split.labels.split(batch), strict=True):
            x = before(pixels(images.to(device)), labels.to(device))
            blocks.append(ensemble(x.expand(ensemble.members, *x.shape)).float().cpu())
    return Predictions(torch.cat(blocks, dim=1), split.labels.cpu())
