"""Members that share all weights except rank-one factors: the paper's student, and LatentBE."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from polyphony.ensembles.base import Ensemble, NetworkRunner, check_leading, check_member
from polyphony.ensembles.deep import DeepEnsemble
from polyphony.nn import FACTOR_STD, Size, add_members, merge_member
from polyphony.nn.folding import factored_members
from polyphony.nn.rank_one import rank_ones


class MembersInside(Ensemble):
    """One network whose members differ in some of its layers."""

    def __init__(self, network: nn.Module, members: int, size: Size | None) -> None:
        super().__init__()
        self.members, self.network = members, network
        self.runner = NetworkRunner(network, members, size)

    def forward(self, x: Tensor) -> Tensor:
        """[m b c h w] → [m b k]"""
        check_leading(x, self.members)
        return self.runner.run_members(self.network, x)

    def member(self, j: int) -> nn.Module:
        """A copy of member j as a plain network: [b c h w] → [b k]."""
        check_member(j, self.members)
        return merge_member(self.network, j)

    def folded(self) -> DeepEnsemble:
        """The members as networks in eval mode that share all weights except their factors; faster."""
        return DeepEnsemble(factored_members(self.network, self.members))


class BatchEnsemble(MembersInside):
    """One network whose M members share all weights except rank-one factors (Wen et al. 2019).

    Args:
        network: Any network of Conv2d and Linear layers, with random or trained weights. It is copied.
        members: M.
        rng: Source of the factors.
        factor_std: Factors start as N(1, factor_std²).
        keep: Names of layers that all members share unchanged.
        member_norm: Whether every member has its own BatchNorm.
        branch: Name of a module. Members share the modules that run before it; these run once if all members
            see the same rows, as at test and in distillation. Or a share of the multiply-adds, such as 0.5.
        size: (channels, height, width) of the images with which the conversion is tested.

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


class LatentBE(MembersInside):
    """A student with members during training that becomes one plain network (Nam et al., ICML 2022).

    Its rank-one factors start at one, weight decay pulls them to one, and `merge` averages them.

    The parameter of a factor is its deviation δ from one. A mean over M members leaves each member 1/M of its
    gradient, so the gradients of `own_parameters` are multiplied by M. For SGD that is M times the learning
    rate with 1/M of the weight decay, which is what `fit` uses for them: M g + λ δ = M (g + λ/M δ), and
    momentum is linear. Other optimisers get M times the rate, too. The authors' code scales the gradients of
    factors; here those of the members' biases are scaled as well.
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
        unused = torch.Generator()  # the draws are replaced, so PyTorch's global generator must not change
        converted = add_members(network, members, rng=unused, keep=keep, branch=branch, size=size)
        super().__init__(converted, members, size)
        for layer in rank_ones(self.network):
            for name in ("r", "s"):
                nn.init.ones_(getattr(layer, name))
                parametrize.register_parametrization(layer, name, AroundOne())

    def merge(self) -> nn.Module:
        """A plain network, as a copy: factors and biases are averaged over members, then folded into W."""
        averaged = copy.deepcopy(self)
        for own in averaged.own_parameters():
            own.data.copy_(own.data.mean(0))  # the mean of deviations is that of factors
        return merge_member(averaged.network, 0)

    def own_parameters(self) -> Iterator[nn.Parameter]:
        """The deviations of factors, and biases. [m …]"""
        for layer in rank_ones(self.network):
            yield from (value for name, value in layer.named_parameters() if not name.startswith("shared."))


class AroundOne(nn.Module):
    """Computes a factor from its deviation: 1 + δ."""

    def forward(self, deviation: Tensor) -> Tensor:
        return 1 + deviation

    def right_inverse(self, factor: Tensor) -> Tensor:
        """The deviation of a factor."""
        return factor - 1
