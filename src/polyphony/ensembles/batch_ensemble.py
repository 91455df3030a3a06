"""The paper's student: members that share all weights but for rank-one factors."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from polyphony.ensembles.base import Ensemble, channels_last, check_members
from polyphony.nn import add_members, merge_member


class BatchEnsemble(Ensemble):
    """One network whose M members share their weights but for rank-one factors (Wen et al. 2019)."""

    def __init__(
        self,
        network: nn.Module,
        members: int,
        *,
        rng: torch.Generator | None = None,
        keep: tuple[str, ...] = (),
        member_norm: bool = False,
    ) -> None:
        super().__init__()
        self.members = members
        converted = add_members(network, members, rng=rng, keep=keep, member_norm=member_norm)
        self.network = channels_last(converted)

    def forward(self, x: Tensor) -> Tensor:
        """[m b c h w] → [m b k]"""
        check_members(x, self.members)
        rows = x.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        return cast(Tensor, self.network(rows).unflatten(0, (self.members, -1)))

    def member(self, j: int) -> nn.Module:
        """The plain network that member j is, as a copy: [b c h w] → [b k]."""
        if not 0 <= j < self.members:
            raise IndexError(f"member {j} of {self.members}")
        return merge_member(self.network, j)
