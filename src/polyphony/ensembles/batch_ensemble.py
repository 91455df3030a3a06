"""The paper's student: members that share all weights but for rank-one factors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyphony.ensembles.base import Ensemble, by_rows, channels_last
from polyphony.ensembles.deep import DeepEnsemble
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
        return by_rows(self.network, x, self.members)

    def member(self, j: int) -> nn.Module:
        """The plain network that member j is, as a copy: [b c h w] → [b k]."""
        if not 0 <= j < self.members:
            raise IndexError(f"member {j} of {self.members}")
        return merge_member(self.network, j)

    def folded(self) -> DeepEnsemble:
        """Its members as plain networks: quicker where none of them learns, and M times the weights."""
        return DeepEnsemble([self.member(j) for j in range(self.members)]).folded()
