"""How long a batch takes: several models side by side, in turn, so that a busy machine slows all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from polyphony.compute.devices import wait_for
from polyphony.ensembles import Ensemble, evaluating
from polyphony.training.fit import Unwatched, Watch


def latencies(
    models: Mapping[str, Ensemble], x: Tensor, repeats: int = 20, watch: Watch = Unwatched()
) -> dict[str, float]:
    """Milliseconds for all members' logits on x [b c h w]: each model's median of alternating repeats."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for model in models.values():  # memory is allocated and kernels are chosen
        seconds(model, x)
    for done in range(1, repeats + 1):
        for name, model in models.items():
            times[name].append(seconds(model, x))
        watch.step(done, repeats, {})
    return {name: 1000 * statistics.median(taken) for name, taken in times.items()}


def seconds(model: Ensemble, x: Tensor) -> float:
    """How long one forward pass takes, to its end."""
    rows = x.expand(model.members, *x.shape)
    with torch.no_grad(), evaluating(model):
        wait_for(x.device)
        start = time.perf_counter()
        model(rows)
        wait_for(x.device)
        return time.perf_counter() - start
