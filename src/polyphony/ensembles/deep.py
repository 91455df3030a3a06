"""Ensembles of whole networks: the teachers, a student of separate networks, and one network."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from polyphony.ensembles.base import Ensemble, NetworkRunner, check_leading, check_member
from polyphony.nn.conversion import freeze
from polyphony.nn.folding import fold_norms


class Networks(Ensemble):
    """M networks without shared weights, each on its own rows."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        if not networks:
            raise ValueError("an ensemble has at least one network")
        self.members = len(networks)
        self.networks = nn.ModuleList(networks)
        self.runners = [NetworkRunner(network) for network in networks]

    def forward(self, x: Tensor) -> Tensor:
        """[m b c h w] → [m b k]"""
        check_leading(x, self.members)
        return torch.stack([self.ask(j, rows) for j, rows in enumerate(x)])

    def ask_all(self, x: Tensor) -> Tensor:
        logits: Tensor = torch.cat([self.ask(j, x) for j in range(self.members)])
        return logits.view(self.members, -1, logits.shape[-1])

    def ask(self, j: int, x: Tensor) -> Tensor:
        """Network j's logits. [b c h w] → [b k]"""
        return self.runners[j](self.networks[j], x)


class DeepEnsemble(Networks):
    """Teachers: M frozen networks in eval mode. Gradients flow only to their inputs.

    Args:
        networks: Classifiers that take pixels in [0, 1] `[b c h w]` and return logits `[b k]`.

    Examples:
        >>> teachers = DeepEnsemble([resnet(8, classes=10) for _ in range(4)])
        >>> teachers(torch.rand(4, 2, 3, 32, 32)).shape  # every member has its own rows
        torch.Size([4, 2, 10])
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__(networks)
        freeze(self.eval())

    def train(self, mode: bool = True) -> DeepEnsemble:
        """Stay in eval mode; `mode` is ignored."""
        super().train(False)
        return self

    def folded(self) -> DeepEnsemble:
        """Faster copies of the teachers, with BatchNorm folded into convolutions where possible."""
        return DeepEnsemble([fold_norms(network) for network in self.networks])


class Separate(Networks):
    """M networks without shared weights; each learns from its own teacher.

    The loss is a mean over members, which leaves each network 1/M of its gradient. All weights are
    `own_parameters`, so that each network trains as it would alone.

    Args:
        networks: Classifiers that take pixels in [0, 1] `[b c h w]` and return logits `[b k]`.

    Examples:
        >>> student = Separate([resnet(8, classes=10, width=8) for _ in range(4)])
        >>> student(torch.rand(4, 2, 3, 32, 32)).shape
        torch.Size([4, 2, 10])
    """

    scales_gradients = True

    def own_parameters(self) -> Iterator[nn.Parameter]:
        """All parameters."""
        return self.networks.parameters()

    def clip_gradients(self, norm: float) -> None:
        """Clip each network as it would be alone: its gradients here are 1/M of those."""
        for network in self.networks:
            nn.utils.clip_grad_norm_(network.parameters(), norm / self.members)

    def member(self, j: int) -> nn.Module:
        """A copy of network j: [b c h w] → [b k]."""
        check_member(j, self.members)
        return copy.deepcopy(self.networks[j])

    def folded(self) -> DeepEnsemble:
        """Faster copies in eval mode, with BatchNorm folded into convolutions where possible."""
        # Copies first: a DeepEnsemble freezes its networks, and `fold_norms` may return the network itself.
        return DeepEnsemble([fold_norms(copy.deepcopy(network).eval()) for network in self.networks])


class Single(Ensemble):
    """One plain network as an ensemble with one member. Teachers are trained this way.

    Args:
        network: A classifier that takes pixels in [0, 1] `[b c h w]` and returns logits `[b k]`.

    Examples:
        >>> Single(resnet(8, classes=10))(torch.rand(1, 2, 3, 32, 32)).shape
        torch.Size([1, 2, 10])
    """

    members = 1

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.runner = network, NetworkRunner(network)

    def forward(self, x: Tensor) -> Tensor:
        """[1 b c h w] → [1 b k]"""
        check_leading(x, 1)
        return self.runner(self.network, x[0])[None]
