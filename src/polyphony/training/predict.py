"""Any ensemble × split → Predictions. All scores are functions of these logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polyphony._util.files import memory
from polyphony._util.settings import Count, check
from polyphony.compute.devices import send
from polyphony.data import Split, pixels
from polyphony.ensembles import Ensemble, evaluating
from polyphony.metrics import Predictions

BATCH = 250  # images in a batch, if memory allows
GROWTH = 64  # bytes that a network may use for each byte of its images as floats
PERTURB_BYTES = 2**30  # memory that decides the batch of `before`: the same on every machine


def batch_for(ensemble: Ensemble, shape: Sequence[int]) -> int:
    """How many images [c h w] all members can predict at a time in a quarter of the memory."""
    on_gpu = ensemble.device.type == "cuda"
    free = torch.cuda.mem_get_info(ensemble.device)[0] if on_gpu else memory()
    return _images_in(free // 4 // ensemble.members, shape)


def _images_in(size: int, shape: Sequence[int]) -> int:
    """How many images [c h w] one network can predict at a time in `size` bytes; 1 to `BATCH`."""
    return max(1, min(BATCH, size // (4 * math.prod(shape) * GROWTH)))


def predict(
    ensemble: Ensemble,
    split: Split,
    *,
    batch: int | None = None,
    before: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Predictions:
    """The logits of all members on every image, in eval mode and float32.

    Args:
        ensemble: Teachers or a student, on any device.
        split: Images and labels.
        batch: Images at a time (default: as many as fit in memory).
        before: Perturbs pixels `[b c h w]`, given their labels `[b]`, before the prediction. Its default
            batch depends only on the size of the images, so that its draws are the same on every machine.

    Returns:
        Logits `[m n k]` and labels `[n]`, on the CPU.

    Examples:
        >>> digits = load("digits", Options(per_class=5, valid=50, test=60))
        >>> answers = predict(Single(resnet(8, classes=10, channels=1, width=4)), digits.test)
        >>> answers.logits.shape
        torch.Size([1, 60, 10])
    """
    shape = split.images.shape[1:]
    size = batch_for(ensemble, shape) if batch is None else batch
    before_size = _images_in(PERTURB_BYTES, shape) if batch is None and before is not None else size
    check(Count, batch=size)
    blocks = []
    with torch.no_grad(), evaluating(ensemble):
        parts = zip(split.images.split(before_size), split.labels.split(before_size), strict=True)
        for images, labels in parts:
            x = pixels(send(images, ensemble.device))
            x = x if before is None else before(x, send(labels, ensemble.device))
            for rows in x.split(size):
                blocks.append(ensemble.ask_all(rows).float().cpu())
    return ensemble.predicts(torch.cat(blocks, dim=1), split.labels.cpu())
