"""A student of members that ends as one plain network: LatentBE (Nam et al., ICML 2022)."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from polyphony.ensembles.base import Ensemble, NetworkRunner, check_leading
from polyphony.nn import Size, add_members, merge_member
from polyphony.nn.rank_one import rank_ones


class LatentBE(Ensemble):
    """Members by rank-one factors that start at one, are pulled together, and are averaged by `merge`.

    What is learnt of a factor is its deviation δ from one, so that weight decay pulls it to one. A mean over
    M members leaves each an M-th of its gradient, so the gradients of what is a member's own are multiplied
    by M. For SGD that is M times the learning rate with an M-th of the weight decay on `own_parameters`,
    which is how `fit` groups them: M g + λ δ = M (g + λ/M δ), and momentum is linear.
    """

    expects_diversity = False

    def __init__(
        self,
        network: nn.Module,
        members: int,
        *,
        keep: tuple[str, ...] = (),
        branch: str | float | None = None,
        size: Size | None = None,
    ) -> None:
        super().__init__()
        self.members = members
        unused = torch.Generator()  # no draw is kept, so none is taken from PyTorch's own generator
        self.network = add_members(network, members, rng=unused, keep=keep, branch=branch, size=size)
        self.run = NetworkRunner(self.network, members, size)
        for layer in rank_ones(self.network):
            for name in ("r", "s"):
                nn.init.ones_(getattr(layer, name))
                parametrize.register_parametrization(layer, name, AroundOne())

    def forward(self, x: Tensor) -> Tensor:
        """[m b c h w] → [m b k]"""
        check_leading(x, self.members)
        return self.run.members(self.network, x)

    def merge(self) -> nn.Module:
        """One plain network, as a copy: factors and biases averaged over members, then folded into W."""
        averaged = copy.deepcopy(self)
        for own in averaged.own_parameters():
            own.data.copy_(own.data.mean(0))  # of deviations, and so of factors
        return merge_member(averaged.network, 0)

    def own_parameters(self) -> Iterator[nn.Parameter]:
        """Members' own, members first: deviations of factors, and biases."""
        for layer in rank_ones(self.network):
            yield from (value for name, value in layer.named_parameters() if not name.startswith("shared."))


class AroundOne(nn.Module):
    """A factor from its deviation: 1 + δ."""

    def forward(self, deviation: Tensor) -> Tensor:
        return 1 + deviation

    def right_inverse(self, factor: Tensor) -> Tensor:
        """The deviation of a factor."""
        return factor - 1
