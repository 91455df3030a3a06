"""Whatever has members: maps [m b c h w] → [m b k], member j seeing row block j."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from polyphony.nn import add_members, merge_member
from polyphony.nn.folding import fold_norms


class Ensemble(nn.Module):
    """M predictors in one module: each member's logits on its own rows. [m b c h w] → [m b k]"""

    members: int

    def assign(self, size: int, rng: torch.Generator) -> Tensor:
        """Which example of a batch each member sees in each row: here every one, in order. [m size]"""
        return torch.arange(size).expand(self.members, size)

    if TYPE_CHECKING:

        def __call__(self, x: Tensor) -> Tensor: ...


class DeepEnsemble(Ensemble):
    """M networks of their own, frozen: always in eval mode, their parameters without gradients.

    This is what teachers are, so only gradients with respect to inputs ever flow through it.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        if not networks:
            raise ValueError("a deep ensemble has at least one network")
        self.members = len(networks)
        self.networks = nn.ModuleList(map(channels_last, networks)).requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> DeepEnsemble:
        """Stay in eval mode, whatever a surrounding module asks for."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """[m b c h w] → [m b k]"""
        check_members(x, self.members)
        return torch.stack([network(rows) for network, rows in zip(self.networks, x, strict=True)])

    def folded(self) -> DeepEnsemble:
        """The same teachers, quicker: copies with BatchNorm folded into convolutions where that is safe."""
        return DeepEnsemble([fold_norms(network) for network in self.networks])


class Single(Ensemble):
    """One plain network as an ensemble of one member: how each teacher is trained."""

    members = 1

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = channels_last(network)

    def forward(self, x: Tensor) -> Tensor:
        """[1 b c h w] → [1 b k]"""
        check_members(x, 1)
        return cast(Tensor, self.network(x[0]))[None]


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


def channels_last(network: nn.Module) -> nn.Module:
    """The network with its weights laid out as convolutions run fastest."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def check_members(x: Tensor, members: int) -> None:
    """Raise unless the leading dimension is the members'."""
    if len(x) != members:
        raise ValueError(f"inputs [m b …] for {members} members have a leading dimension of {len(x)}")
