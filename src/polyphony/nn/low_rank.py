"""Members by matrices of low rank: member j of a layer has the weight W + B_j A_j (LoRA-Ensemble)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import accumulate

import torch
from torch import Tensor, nn

from polyphony._util.text import suggestion
from polyphony.nn.conversion import ConversionError, Places, every_module
from polyphony.nn.folding import FACTORED, Factored
from polyphony.nn.rank_one import EVERYONE, MemberWeights, rows_of

GAIN = 10.0  # of A, Xavier uniform
FUSED = ("qkv", "query_key_value")  # layers that compute queries, keys and values at once
ATTENTION = ("attn", "attention")


class LowRank(MemberWeights):
    """Member j's weight is W + B_j A_j, as a matrix [o i…]; A is `down` [m p r i…], B is `up` [m p o/p r].

    A layer that does the work of p layers, as one for queries, keys and values, has A and B for each of them.
    """

    down: nn.Parameter
    up: nn.Parameter

    def __init__(self, shared: nn.Conv2d | nn.Linear, down: Tensor, up: Tensor) -> None:
        super().__init__(shared, down=down, up=up)

    def member_weights(self, of: slice = EVERYONE) -> Tensor:
        """W + B_j A_j of some members. [m o i …]"""
        weight = self.shared.weight
        change: Tensor = rows_of(self.up, of) @ rows_of(self.down, of)
        return weight + change.reshape(-1, *weight.shape)


class FactoredLowRank(Factored):
    """Member j of a `LowRank`: its weight is W + B_j A_j."""

    down: Tensor
    up: Tensor

    def member_weight(self) -> Tensor:
        weight: Tensor = self.shared.weight
        return weight + (self.up @ self.down).view_as(weight)


FACTORED[LowRank] = FactoredLowRank


class OwnWeights(MemberWeights):
    """Every member has a weight of its own, [m o i]; the layer that it was keeps its settings alone."""

    weights: nn.Parameter

    def __init__(self, shared: nn.Linear, weights: Tensor, bias: Tensor | None) -> None:
        super().__init__(shared, weights=weights)
        if bias is not None:
            self.bias = nn.Parameter(bias)
        shared.register_parameter("weight", None)

    def member_weights(self, of: slice = EVERYONE) -> Tensor:
        return rows_of(self.weights, of)


def draw_low_rank(
    layer: nn.Conv2d | nn.Linear, name: str, members: int, rank: int, rng: torch.Generator | None
) -> LowRank:
    """The layer of members that starts as a layer is: A Xavier uniform with gain 10, B zero."""
    weight = layer.weight.detach()
    outputs, inputs = len(weight), weight[0].numel()
    parts = 3 if name.rpartition(".")[2] in FUSED and outputs % 3 == 0 else 1
    down = torch.empty(members, parts, rank, inputs, device=weight.device if rng is None else rng.device)
    bound = GAIN * (6 / (inputs + rank)) ** 0.5
    down.uniform_(-bound, bound, generator=rng)
    return LowRank(layer, down.to(weight), weight.new_zeros(members, parts, outputs // parts, rank))


def adapted_layers(network: nn.Module, names: tuple[str, ...]) -> Places:
    """The places of layers to adapt: those that the names, or patterns such as "blocks.*.attn.*", match.

    Without names, the linear layers of attention, or every Linear and Conv2d of a network that has none.
    """
    places = [(name, module) for name, module in every_module(network) if name]
    if not names:
        return [place for place in places if is_attention(*place)] or places
    matches = {name: [place for place in places if is_match(place[0], name)] for name in names}
    for name, found in matches.items():
        if not any(isinstance(module, nn.Conv2d | nn.Linear) for _, module in found):
            near = suggestion(name, [other for other, _ in places])
            raise ConversionError(f"the network has no Conv2d or Linear layer in '{name}': {near}")
    return [place for place in places if any(place in found for found in matches.values())]


def is_attention(name: str, module: nn.Module) -> bool:
    """Whether a layer is a projection of attention, by the names of the modules that it is in."""
    within = name.lower().split(".")[:-1]
    return isinstance(module, nn.Linear) and any(word in part for part in within for word in ATTENTION)


def is_match(name: str, pattern: str) -> bool:
    """Whether a module is one that a pattern matches, or inside one."""
    parents = accumulate(name.split("."), "{}.{}".format)
    return any(fnmatchcase(each, pattern) for each in parents)
