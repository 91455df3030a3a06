"""Somebody else's classifier as one of ours: pixels in [0, 1] in, logits out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from polyphony.nn.networks import Normalize

Order = Literal["rgb", "bgr"]  # of an image's channels


class Adapted(nn.Module):
    """A network with what it expects in front: pixels [b c h w] in [0, 1] → logits [b k]."""

    def __init__(
        self, network: nn.Module, normalize: Normalize, size: tuple[int, int] | None, order: Order = "rgb"
    ) -> None:
        super().__init__()
        self.normalize, self.size, self.order, self.network = normalize, size, order, network
        self.shape: tuple[int, ...] | None = None  # of the images it is shown, where that is known

    def forward(self, x: Tensor) -> Tensor:
        if self.size is not None and x.shape[-2:] != self.size:
            x = F.interpolate(x, self.size, mode="bilinear", antialias=True)
        if self.order == "bgr":
            x = x.unflatten(1, (-1, 3)).flip(2).flatten(1, 2)  # of each image, where it is shown several
        return logits_of(self.network(self.normalize(x)))


def adapt(
    network: nn.Module,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    size: int | tuple[int, int] | None = None,
    order: Order = "rgb",
) -> Adapted:
    """Any classifier as one that takes pixels in [0, 1] and returns logits. [b c h w] → [b k]

    Args:
        network: The classifier; logits are taken out of whatever it returns.
        mean: Mean of the pixels that it expects, one number or one for each channel, in its order.
        std: Standard deviation, likewise.
        size: Side, or (height, width), to which other images are resized (bilinear, antialiased).
        order: Order of its channels, "rgb" or "bgr".

    Examples:
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10))
        >>> adapt(network, mean=[0.5], std=[0.5], size=8)(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    if len(mean) != len(std) and 1 not in (len(mean), len(std)):
        raise ValueError(f"mean is given for {len(mean)} channels and std for {len(std)}")
    if min(std) <= 0:
        raise ValueError(f"a standard deviation is above zero, not {min(std)}")
    normalize = Normalize(max(len(mean), len(std)))
    normalize.set(mean, std)
    return Adapted(network, normalize, (size, size) if isinstance(size, int) else size, order)


def logits_of(output: object) -> Tensor:
    """The logits in what a network returns: itself, what is called `logits`, or the first tensor."""
    if isinstance(output, Tensor):
        return output
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    parts: Iterable[object] = output.values() if isinstance(output, Mapping) else ()
    parts = output if isinstance(output, tuple | list) else parts
    for part in (named, *parts):
        if isinstance(part, Tensor):
            return part
    raise TypeError(f"a network that returns {type(output).__qualname__} gives no logits")
