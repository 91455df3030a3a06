"""Any ensemble × split → Predictions: logits are made once, every number after that is a function of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from polyphony.data import Split, pixels
from polyphony.devices import send
from polyphony.ensembles import Ensemble, evaluating
from polyphony.limits import counts
from polyphony.metrics import Predictions

BATCH = 250  # images that are predicted at a time


def unchanged(x: Tensor, y: Tensor) -> Tensor:
    """The inputs as they are."""
    return x


def predict(
    ensemble: Ensemble,
    split: Split,
    *,
    batch: int = BATCH,
    before: Callable[[Tensor, Tensor], Tensor] = unchanged,
) -> Predictions:
    """All members on every image, in eval mode and float32; `before` may change a batch's pixels first.

    The images go where the ensemble is; what comes out is on the CPU.
    """
    counts(batch=batch)
    blocks = []
    with torch.no_grad(), evaluating(ensemble):
        for images, labels in zip(split.images.split(batch), split.labels.split(batch), strict=True):
            x = before(pixels(send(images, ensemble.device)), send(labels, ensemble.device))
            blocks.append(ensemble(x.expand(ensemble.members, *x.shape)).float().cpu())
    return ensemble.predicts(torch.cat(blocks, dim=1), split.labels.cpu())
