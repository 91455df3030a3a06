"""Members by low-rank matrices: member j of a layer has the weight W + B_j A_j (LoRA-Ensemble)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import accumulate

import torch
from torch import Tensor, nn

from polyphony._util.text import suggestion
from polyphony.nn.conversion import ConversionError, NamedModules, every_module
from polyphony.nn.folding import FACTORED, Factored
from polyphony.nn.rank_one import ALL_MEMBERS, MemberWeights, rows_of

GAIN = 10.0  # of the Xavier uniform distribution of A
FUSED = ("qkv", "query_key_value")  # layers that compute queries, keys and values at once
ATTENTION = ("attn", "attention")


class LowRank(MemberWeights):
    """Member j's weight is W + B_j A_j, as a matrix [o i…]; A is `down` [m p r i…], B is `up` [m p o/p r].

    A layer that fuses p layers, such as one for queries, keys and values, has its own A and B for each.
    """

    down: nn.Parameter
    up: nn.Parameter

    def __init__(self, shared: nn.Conv2d | nn.Linear, down: Tensor, up: Tensor) -> None:
        super().__init__(shared, down=down, up=up)

    def member_weights(self, of: slice = ALL_MEMBERS) -> Tensor:
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
    """A layer whose members each have their own weight, [m o i]; `shared` only keeps the settings."""

    weights: nn.Parameter

    def __init__(self, shared: nn.Linear, weights: Tensor, bias: Tensor | None) -> None:
        super().__init__(shared, weights=weights)
        if bias is not None:
            self.bias = nn.Parameter(bias)
        shared.register_parameter("weight", None)

    def member_weights(self, of: slice = ALL_MEMBERS) -> Tensor:
        return rows_of(self.weights, of)


def draw_low_rank(
    layer: nn.Conv2d | nn.Linear, name: str, members: int, rank: int, rng: torch.Generator | None
) -> LowRank:
    """A layer whose members all start with the layer's weight: A is Xavier uniform with gain 10, B zero."""
    weight = layer.weight.detach()
    outputs, inputs = len(weight), weight[0].numel()
    parts = 3 if name.rpartition(".")[2] in FUSED and outputs % 3 == 0 else 1
    down = torch.empty(members, parts, rank, inputs, device=weight.device if rng is None else rng.device)
    bound = GAIN * (6 / (inputs + rank)) ** 0.5
    down.uniform_(-bound, bound, generator=rng)
    return LowRank(layer, down.to(weight), weight.new_zeros(members, parts, outputs // parts, rank))


def adapted_layers(network: nn.Module, patterns: tuple[str, ...]) -> NamedModules:
    """The modules to adapt: those whose names match a pattern ("head", "blocks.*.attn.*"), and inner ones.

    Without patterns, the linear layers of attention, or all modules of a network that has none. Raises a
    ConversionError for a pattern that matches no Conv2d or Linear.
    """
    modules = [(name, module) for name, module in every_module(network) if name]
    if not patterns:
        return [named for named in modules if is_attention(*named)] or modules
    matches = {pattern: [named for named in modules if is_match(named[0], pattern)] for pattern in patterns}
    for pattern, matched in matches.items():
        if not any(isinstance(module, nn.Conv2d | nn.Linear) for _, module in matched):
            near = suggestion(pattern, [name for name, _ in modules])
            raise ConversionError(f"the network has no Conv2d or Linear layer in '{pattern}': {near}")
    return [named for named in modules if any(named in matched for matched in matches.values())]


def is_attention(name: str, module: nn.Module) -> bool:
    """Whether a module is a Linear inside attention, judged by the names of the modules around it."""
    parents = name.lower().split(".")[:-1]
    return isinstance(module, nn.Linear) and any(word in part for part in parents for word in ATTENTION)


def is_match(name: str, pattern: str) -> bool:
    """Whether a pattern matches a module's name, or the name of a module around it."""
    prefixes = accumulate(name.split("."), "{}.{}".format)
    return any(fnmatchcase(prefix, pattern) for prefix in prefixes)
