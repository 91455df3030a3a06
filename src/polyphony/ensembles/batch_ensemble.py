"""The paper's student: members that share all weights but for rank-one factors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyphony.ensembles.base import Ensemble, NetworkRunner, check_leading
from polyphony.ensembles.deep import DeepEnsemble
from polyphony.nn import FACTOR_STD, Size, add_members, merge_member
from polyphony.nn.factored import factored_members


class MembersInside(Ensemble):
    """One network whose members differ in some of its layers."""

    def __init__(self, network: nn.Module, members: int, size: Size | None) -> None:
        super().__init__()
        self.members, self.network = members, network
        self.run = NetworkRunner(network, members, size)

    def forward(self, x: Tensor) -> Tensor:
        """[m b c h w] → [m b k]"""
        check_leading(x, self.members)
        return self.run.members(self.network, x)

    def member(self, j: int) -> nn.Module:
        """The plain network that member j is, as a copy: [b c h w] → [b k]."""
        if not 0 <= j < self.members:
            raise IndexError(f"member {j} of {self.members}")
        return merge_member(self.network, j)

    def folded(self) -> DeepEnsemble:
        """Its members as networks that share all weights but their factors: quicker where none learns."""
        return DeepEnsemble(factored_members(self.network, self.members))


class BatchEnsemble(MembersInside):
    """One network whose M members share their weights but for rank-one factors (Wen et al. 2019).

    Args:
        network: Any network of Conv2d and Linear layers, with random or trained weights. It is copied.
        members: M.
        rng: Source of the factors.
        factor_std: Factors start as N(1, factor_std²).
        keep: Names of layers that all members share unchanged.
        member_norm: Whether every member has BatchNorm statistics of its own.
        branch: Name of a module: what runs before it is shared, and runs once where all members see the same
            rows, as at test and in distillation. Or the share of the multiply-adds to share, such as 0.5.
        size: (channels, height, width) of the images with which the conversion is tried.

    Raises:
        ConversionError: A layer cannot have members; the message names it.

    Examples:
        >>> student = BatchEnsemble(resnet(8, classes=10), members=4, rng=torch.Generator().manual_seed(0))
        >>> student(torch.rand(4, 2, 3, 32, 32)).shape
        torch.Size([4, 2, 10])
    """

    def __init__(
        self,
        network: nn.Module,
        members: int,
        *,
        rng: torch.Generator | None = None,
        factor_std: float = FACTOR_STD,
        keep: tuple[str, ...] = (),
        member_norm: bool = False,
        branch: str | float | None = None,
        size: Size | None = None,
    ) -> None:
        converted = add_members(
            network,
            members,
            rng=rng,
            factor_std=factor_std,
            keep=keep,
            member_norm=member_norm,
            branch=branch,
            size=size,
        )
        super().__init__(converted, members, size)
