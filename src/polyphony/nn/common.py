"""What our networks have in common: normalisation inside, three stages, how weights are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, fx, nn

from polyphony._util.settings import Count, check
from polyphony._util.text import SettingError


class Normalize(nn.Module):
    """(x − mean) / std per channel, kept with the weights, so that a network takes pixels in [0, 1].

    Changes nothing until `set` is called, for example with `Split.statistics`.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        check(Count, channels=channels)
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))

    def set(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Take the training images' statistics, one number a channel or one for all."""
        self.mean.copy_(torch.tensor(mean).view(-1, 1, 1))
        self.std.copy_(torch.tensor(std).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        check_channels(x, self.mean)
        return (x - self.mean) / self.std


@fx.wrap
def check_channels(x: Tensor, mean: Tensor) -> None:
    """Raise for images of one channel for a network of several, which would be repeated in silence."""
    if len(mean) not in (1, x.shape[-3]):
        raise SettingError(f"the images have {x.shape[-3]} channels, the network takes {len(mean)}")


def initialise(network: nn.Module, rng: torch.Generator | None) -> None:
    """Draw the weights: Kaiming normal by fan-out for Conv2d and the classifier, whose bias is zero."""
    for module in network.modules():
        if not isinstance(module, nn.Conv2d | nn.Linear) or module.weight.is_meta:
            continue  # without numbers there is nothing to draw, and PyTorch takes seconds to find that out
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=rng)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


def stages(block: Callable[[int, int, int], nn.Module], widths: Sequence[int], blocks: int) -> nn.Sequential:
    """One stage a width after the first, `blocks` blocks each; all but the first halve the resolution."""
    return nn.Sequential(
        *(
            nn.Sequential(
                block(inputs, outputs, 1 if k == 0 else 2),
                *(block(outputs, outputs, 1) for _ in range(blocks - 1)),
            )
            for k, (inputs, outputs) in enumerate(pairwise(widths))
        )
    )
