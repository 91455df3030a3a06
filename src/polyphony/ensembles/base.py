"""What all ensembles have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """M predictors in one module: each member's logits on its own rows. [m b c h w] → [m b k]"""

    members: int

    def assign(self, size: int, rng: torch.Generator) -> Tensor:
        """Which example of a batch each member sees in each row: here every one, in order. [m size]"""
        return torch.arange(size).expand(self.members, size)

    if TYPE_CHECKING:

        def __call__(self, x: Tensor) -> Tensor: ...


def channels_last(network: nn.Module) -> nn.Module:
    """The network with its weights laid out as convolutions run fastest."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def check_members(x: Tensor, members: int) -> None:
    """Raise unless the leading dimension is the members'."""
    if len(x) != members:
        raise ValueError(f"inputs [m b …] for {members} members have a leading dimension of {len(x)}")
