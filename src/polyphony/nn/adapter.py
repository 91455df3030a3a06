"""Adapts any classifier: takes pixels in [0, 1], does its preprocessing, returns logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from polyphony.nn.networks import Normalize

ChannelOrder = Literal["rgb", "bgr"]


class Adapted(nn.Module):
    """A network with its preprocessing in front: pixels [b c h w] in [0, 1] → logits [b k]."""

    def __init__(
        self,
        network: nn.Module,
        normalize: Normalize,
        size: tuple[int, int] | None,
        order: ChannelOrder = "rgb",
    ) -> None:
        super().__init__()
        self.normalize, self.size, self.order, self.network = normalize, size, order, network
        self.shape: tuple[int, ...] | None = None  # of the images that it gets, if known

    def forward(self, x: Tensor) -> Tensor:
        if self.size is not None and x.shape[-2:] != self.size:
            x = F.interpolate(x, self.size, mode="bilinear", antialias=True)
        if self.order == "bgr":
            x = x.unflatten(1, (-1, 3)).flip(2).flatten(1, 2)  # for each image: MIMO stacks several
        return logits_of(self.network(self.normalize(x)))


def adapt(
    network: nn.Module,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    size: int | tuple[int, int] | None = None,
    order: ChannelOrder = "rgb",
) -> Adapted:
    """Adapt a classifier to take pixels in [0, 1] and return logits. [b c h w] → [b k]

    Args:
        network: The classifier. It may return a tensor, or a dict, tuple or object with the logits.
        mean: Mean of its normalisation: one number, or one for each channel in the order of its channels.
        std: Standard deviation of its normalisation, likewise.
        size: Side, or (height, width), to which images of other sizes are resized (bilinear, antialiased).
        order: Order of its channels, "rgb" or "bgr".

    Raises:
        ValueError: `mean` and `std` have different lengths, or a standard deviation is not positive.

    Examples:
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10))
        >>> adapt(network, mean=[0.5], std=[0.5], size=8)(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    if len(mean) != len(std) and 1 not in (len(mean), len(std)):
        raise ValueError(f"mean has {len(mean)} channels and std has {len(std)}")
    if min(std) <= 0:
        raise ValueError(f"a standard deviation must be above zero, not {min(std)}")
    normalize = Normalize(max(len(mean), len(std)))
    normalize.set(mean, std)
    return Adapted(network, normalize, (size, size) if isinstance(size, int) else size, order)


def logits_of(output: object) -> Tensor:
    """The logits in a network's output: the output itself, its `logits`, or the first tensor in it.

    Raises a TypeError if it has none.
    """
    if isinstance(output, Tensor):
        return output
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    parts: Iterable[object] = output.values() if isinstance(output, Mapping) else ()
    parts = output if isinstance(output, tuple | list) else parts
    for part in (named, *parts):
        if isinstance(part, Tensor):
            return part
    raise TypeError(f"the network returns {type(output).__qualname__} without logits")
