"""Whatever has members: maps [m b c h w] → [m b k], member j seeing row block j."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from polyphony.nn import add_members, merge_member


class Ensemble(Protocol):
    """M predictors in one object."""

    @property
    def members(self) -> int:
        """How many predictors there are."""

    def __call__(self, x: Tensor) -> Tensor:
        """Logits of each member on its own rows. [m b c h w] → [m b k]"""


class Student(Ensemble, Protocol):
    """An ensemble that is trained; a Student is also an nn.Module."""

    def assign(self, size: int, rng: torch.Generator) -> Tensor:
        """Which example of a batch of `size` each member sees in each of its rows. [m b']"""


class DeepEnsemble(nn.Module):
    """M networks of their own, frozen: always in eval mode, their parameters without gradients.

    This is what teachers are, so only gradients with respect to inputs ever flow through it.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        if not networks:
            raise ValueError("a deep ensemble has at least one network")
        self.networks = nn.ModuleList(networks)
        self.requires_grad_(False).to(memory_format=torch.channels_last)
        self.eval()

    @property
    def members(self) -> int:
        """How many networks there are."""
        return len(self.networks)

    def train(self, mode: bool = True) -> DeepEnsemble:
        """Stay in eval mode, whatever a surrounding module asks for."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """[m b c h w] → [m b k]"""
        check_members(x, self.members)
        return torch.stack([network(rows) for network, rows in zip(self.networks, x, strict=True)])


class Single(nn.Module):
    """One plain network as an ensemble of one member: how each teacher is trained."""

    members = 1

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        """[1 b c h w] → [1 b k]"""
        check_members(x, 1)
        return cast(Tensor, self.network(x[0]))[None]

    def assign(self, size: int, rng: torch.Generator) -> Tensor:
        """Every example, in order. [1 size]"""
        return every_example(1, size)


class BatchEnsemble(nn.Module):
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
        self.network = add_members(network, members, rng=rng, keep=keep, member_norm=member_norm)
        self.network.to(memory_format=torch.channels_last)
        self._members = members

    @property
    def members(self) -> int:
        """How many plain networks this one is."""
        return self._members

    def forward(self, x: Tensor) -> Tensor:
        """[m b c h w] → [m b k]"""
        check_members(x, self.members)
        rows = x.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        return cast(Tensor, self.network(rows)).unflatten(0, (self.members, -1))

    def assign(self, size: int, rng: torch.Generator) -> Tensor:
        """Every member sees every example, in the same order. [m size]"""
        return every_example(self.members, size)

    def member(self, j: int) -> nn.Module:
        """The plain network that member j is, as a copy: [b c h w] → [b k]."""
        if not 0 <= j < self.members:
            raise IndexError(f"member {j} of {self.members}")
        return merge_member(self.network, j)


def every_example(members: int, size: int) -> Tensor:
    """Every member sees the whole batch, in the same order. [m size]"""
    return torch.arange(size).expand(members, size)


def check_members(x: Tensor, members: int) -> None:
    """Raise unless the leading dimension is the members'."""
    if len(x) != members:
        raise ValueError(f"inputs [m b …] for {members} members have a leading dimension of {len(x)}")
