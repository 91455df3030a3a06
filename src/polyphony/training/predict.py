"""Any ensemble × split → Predictions. Logits are saved once; all scores are functions of them."""

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
AT_ONCE = 2**30  # bytes that one network may use for images that are changed first


def unchanged(x: Tensor, y: Tensor) -> Tensor:
    return x


def batch_for(ensemble: Ensemble, shape: Sequence[int]) -> int:
    """How many images [c h w] all members can take at a time, in a quarter of the memory."""
    on_gpu = ensemble.device.type == "cuda"
    there = torch.cuda.mem_get_info(ensemble.device)[0] if on_gpu else memory()
    return _fitting(there // 4 // ensemble.members, shape)


def _fitting(there: int, shape: Sequence[int]) -> int:
    """How many images [c h w] one network can take at a time in `there` bytes."""
    return max(1, min(BATCH, there // (4 * math.prod(shape) * GROWTH)))


def predict(
    ensemble: Ensemble,
    split: Split,
    *,
    batch: int | None = None,
    before: Callable[[Tensor, Tensor], Tensor] = unchanged,
) -> Predictions:
    """The logits of all members on every image, in eval mode and float32.

    Args:
        ensemble: Teachers or a student, on any device.
        split: Images and labels.
        batch: Images at a time (default: what memory allows; with `before` it depends on the images' size
            alone, so that draws are the same on every machine).
        before: Changes the pixels `[b c h w]` of a batch first, given its labels `[b]`.

    Returns:
        Logits `[m n k]` and labels `[n]`, on the CPU.

    Examples:
        >>> digits = load("digits", Options(per_class=5, valid=50, test=60))
        >>> answers = predict(Single(resnet(8, classes=10, channels=1, width=4)), digits.test)
        >>> answers.logits.shape
        torch.Size([1, 60, 10])
    """
    shape = split.images.shape[1:]
    asked = batch_for(ensemble, shape) if batch is None else batch
    changed = _fitting(AT_ONCE, shape) if batch is None and before is not unchanged else asked
    check(Count, batch=asked)
    blocks = []
    with torch.no_grad(), evaluating(ensemble):
        for images, labels in zip(split.images.split(changed), split.labels.split(changed), strict=True):
            x = before(pixels(send(images, ensemble.device)), send(labels, ensemble.device))
            for some in x.split(asked):
                blocks.append(ensemble.ask_all(some).float().cpu())
    return ensemble.predicts(torch.cat(blocks, dim=1), split.labels.cpu())
