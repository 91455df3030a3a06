"""The members of a converted network as networks of their own that share every weight but their factors."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from polyphony.nn.conversion import inside, without_repeat
from polyphony.nn.folding import fold_norms
from polyphony.nn.rank_one import MemberWeights, OfMembers, RankOne, run_with


class Factored(nn.Module):
    """The layer that member j of a `MemberWeights` is: its weight is computed of its own at every call.

    Like that layer it has the attributes of the layer it was.
    """

    def __init__(self, shared: nn.Conv2d | nn.Linear, bias: Tensor | None, **own: Tensor) -> None:
        super().__init__()
        for name, each in own.items():
            self.register_buffer(name, each)
        self.register_buffer("bias", bias)
        self.shared = shared  # last: from here on it has the shared layer's attributes

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            return self.member_weight()
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return getattr(super().__getattr__("shared"), name)

    def member_weight(self) -> Tensor:
        """The weight of the member. [o i …]"""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return run_with(self.shared, x, self.member_weight(), self.bias)


class FactoredRankOne(Factored):
    """Member j of a `RankOne`: its weight is (W · r_j) · s_j."""

    r: Tensor
    s: Tensor

    def __init__(self, shared: nn.Conv2d | nn.Linear, bias: Tensor | None, r: Tensor, s: Tensor) -> None:
        groups, kernel = getattr(shared, "groups", 1), (shared.weight.dim() - 2) * [1]
        super().__init__(shared, bias, r=r.view(groups, -1, *kernel), s=s.view(-1, 1, *kernel))

    def member_weight(self) -> Tensor:
        """W ∘ s_j r_jᵀ. [o i …]"""
        weight: Tensor = self.shared.weight
        if len(self.r) > 1:  # a group of outputs sees its own inputs alone
            by_group: Tensor = weight.unflatten(0, (len(self.r), -1)) * self.r.unsqueeze(1)
            return by_group.flatten(0, 1) * self.s
        return weight * self.r * self.s


FACTORED: dict[type[OfMembers], type[Factored]] = {RankOne: FactoredRankOne}  # other kinds add theirs


def factored_members(network: nn.Module, members: int) -> list[nn.Module]:
    """The plain networks that the members of a converted network are, in eval mode, BatchNorm folded.

    They share one copy of all weights and buffers; a layer of members is a `Factored` of its own in each.
    """
    network = without_repeat(copy.deepcopy(inside(network)).eval())
    for layer in layers_of_members(network):
        layer.turn = 0  # so that it takes the rows of one member
    network = fold_norms(network)
    shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    layers = {id(layer): each_alone(layer) for layer in layers_of_members(network)}
    return [
        copy.deepcopy(network, shared | {place: each[j] for place, each in layers.items()})
        for j in range(members)
    ]


def layers_of_members(network: nn.Module) -> list[OfMembers]:
    """All layers that differ between members."""
    return [module for module in network.modules() if isinstance(module, OfMembers)]


def each_alone(layer: OfMembers) -> list[nn.Module]:
    """The layer that each member has. Biases that are alike, as those of a shared BatchNorm, are one."""
    kind = next((made for of, made in FACTORED.items() if isinstance(layer, of)), None)
    if kind is None or not isinstance(layer, MemberWeights):
        return [layer.merge(j) for j in range(layer.members)]
    own = {name: getattr(layer, name).detach() for name in layer.own}
    bias = layer._parameters["bias"]
    biases = layer.members * [None] if bias is None else [each.clone() for each in bias.detach()]
    if bias is not None and bool((bias == bias[0]).all()):
        biases = layer.members * biases[:1]
    return [
        kind(layer.shared, mine, **{name: each[j].clone() for name, each in own.items()})
        for j, mine in enumerate(biases)
    ]
