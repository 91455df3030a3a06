"""Replaces a network's layers by layers with members, and turns member j into a plain network again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import torch
from torch import Tensor, nn

from polyphony._util.text import UserError
from polyphony.nn.rank_one import (
    MemberBatchNorm,
    MemberLayer,
    RankOneConv2d,
    RankOneLinear,
    member_layers,
    rank_ones,
)
from polyphony.nn.running import SHARED, AtOnce, Front, InTurn, Repeat

NamedModules = list[tuple[str, nn.Module]]
Draw = Callable[[nn.Conv2d | nn.Linear], tuple[Tensor, Tensor]]  # the factors r [m i], s [m o] of a layer
Make = Callable[[nn.Module], MemberLayer]  # makes the layer with members that replaces a plain layer

FACTOR_STD = 0.5  # factors start as N(1, 0.5²)
WAS_TRAINABLE = "polyphony_was_trainable"  # attribute of a module: names of the weights that `freeze` froze
LOST = -2  # in place of a dimension, like `SHARED`: the order of the rows is unknown


class ConversionError(UserError, ValueError):
    """A network that cannot have members as it is; the message says why."""


@dataclass(frozen=True)
class Order:
    """How rows reach the layers with members: the dimension of each layer's inputs that holds the members.

    With `in_turn`, members run one after the other, and the dimensions are not used.
    """

    dims: dict[str, int]
    in_turn: bool = False
    front: Front | None = None  # the shared modules that run before members branch

    @property
    def lost(self) -> list[str]:
        """The layers whose rows cannot be followed."""
        branch = [self.front.branch] if self.front and LOST in self.front.dims else []
        return branch + [name for name, dim in self.dims.items() if dim == LOST]


def convert(network: nn.Module, members: int, order: Order, make: Make) -> nn.Module:
    """Replace in place the layers that an order names, except shared ones, by what `make` returns.

    Returns the network, in a module that runs its members if they run in turn or have a front.
    """
    dims = {network.get_submodule(name): dim for name, dim in order.dims.items() if dim != SHARED}

    def with_members(module: nn.Module) -> nn.Module | None:
        if module not in dims:
            return None
        new = make(module)
        new.dim = 0 if order.in_turn else dims[module]
        return new

    converted = replace(network, with_members)
    if order.in_turn:
        return InTurn(converted, members, order.front)
    return AtOnce(converted, members, order.front) if order.front else converted


def freeze(network: nn.Module) -> None:
    """Freeze a network in place; `trainable_copy` undoes it."""
    for module in network.modules():
        own = {name for name, weight in module.named_parameters(recurse=False) if weight.requires_grad}
        if own:  # the mark is on the module, because weights lose theirs in copy.deepcopy
            vars(module)[WAS_TRAINABLE] = vars(module).get(WAS_TRAINABLE, frozenset()) | own
    network.requires_grad_(False)


def trainable_copy(network: nn.Module) -> nn.Module:
    """A copy of a network in which the weights that `freeze` has frozen are trainable again."""
    network = copy.deepcopy(network)
    for module in network.modules():
        for name in vars(module).pop(WAS_TRAINABLE, ()):
            module.get_parameter(name).requires_grad_(True)
    return network


def make_member_layer(module: nn.Module, members: int, draw: Draw) -> MemberLayer:
    """The layer with members that replaces a plain one: rank-one for Conv2d and Linear, else BatchNorms."""
    if isinstance(module, nn.Conv2d):
        return RankOneConv2d(module, draw(module))
    if isinstance(module, nn.Linear):
        return RankOneLinear(module, draw(module))
    return MemberBatchNorm(module, members)


def draw_factors(
    layer: nn.Conv2d | nn.Linear, members: int, std: float, rng: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Draw r [m i] and s [m o] from N(1, std²), on the device of the weight."""
    weight, inputs = layer.weight, layer.in_channels if isinstance(layer, nn.Conv2d) else layer.in_features
    r = normal((members, inputs), weight, rng, 1, std)
    return r, normal((members, len(weight)), weight, rng, 1, std)


def normal(
    shape: Sequence[int], like: Tensor, rng: torch.Generator | None, mean: float = 0, std: float = 1
) -> Tensor:
    """Draw from N(mean, std²) on the generator's device, and move it to the device and dtype of `like`."""
    device = like.device if rng is None else rng.device
    return torch.empty(shape, device=device).normal_(mean, std, generator=rng).to(like)


def merge_member(network: nn.Module, j: int) -> nn.Module:
    """The plain network that member j of a converted network is, as a copy."""
    network = unwrap(network)
    merged = {id(layer): layer.merge(j) for layer in member_layers(network)}  # deepcopy takes these instead
    return without_repeat(copy.deepcopy(network, merged))


def unwrap(network: nn.Module) -> nn.Module:
    """The network whose layers were converted, without the module that runs it for all members."""
    return network.network if isinstance(network, AtOnce | InTurn) else network


def without_repeat(network: nn.Module) -> nn.Module:
    """Remove the hook that repeats rows for members, and return the network."""
    for module in network.modules():
        for key, hook in list(module._forward_pre_hooks.items()):
            if isinstance(hook, Repeat):
                del module._forward_pre_hooks[key], module._forward_pre_hooks_with_kwargs[key]
    return network


def factors(network: nn.Module) -> Iterator[Tensor]:
    """The rank-one factors r and s of every rank-one layer: parameters, or computed from some (LatentBE)."""
    for layer in rank_ones(network):
        yield from (layer.r, layer.s)


def factor_distance(network: nn.Module) -> float:
    """Distance of two members' factors relative to their norm, mean over pairs of members and over layers.

    Compares the matrices s_j r_jᵀ that multiply a layer's weights, in the Frobenius norm: a scale that moves
    from r to s changes the factors, but not the matrix. The distance is 0 if all members have the same
    weights, and about √(1.125 / 1.5625) = 0.85 for fresh factors, N(1, ½²). Raises a ValueError if the
    network has no rank-one layers, or one member.
    """
    all_factors = list(factors(network))
    if not all_factors or len(all_factors[0]) < 2:
        raise ValueError("a distance of members needs rank-one factors of at least two")
    return fmean(layer_distance(r, s) for r, s in zip(all_factors[::2], all_factors[1::2], strict=True))


def layer_distance(r: Tensor, s: Tensor) -> float:
    """‖s_i r_iᵀ − s_j r_jᵀ‖ / √((‖s_i r_iᵀ‖² + ‖s_j r_jᵀ‖²) / 2), mean over pairs. [m i], [m o] → scalar"""
    r, s = r.detach().cpu().double(), s.detach().cpu().double()
    inner = (r @ r.T) * (s @ s.T)  # ⟨s_i r_iᵀ, s_j r_jᵀ⟩ of all pairs; the matrices are not built
    squares = inner.diagonal()
    pairs = list(combinations(range(len(r)), 2))
    distances = [squares[i] + squares[j] - 2 * inner[i, j] for i, j in pairs]
    norms = [(squares[i] + squares[j]) / 2 for i, j in pairs]
    return fmean(
        float((d.clamp_min(0) / n).sqrt()) if n > 0 else 0.0 for d, n in zip(distances, norms, strict=True)
    )


def member_share(network: nn.Module) -> float:
    """The share of one member's weights that lies in layers with members (rank-one layers, own norms)."""
    layers = member_layers(network)
    own = {p for layer in layers for p in layer.parameters()}
    shared = sum(p.numel() for p in network.parameters() if p not in own)
    mine = sum(p.numel() for layer in layers for p in layer.merge(0).parameters())
    return mine / max(1, mine + shared)


def every_module(network: nn.Module) -> NamedModules:
    """All modules with their names; a module that is used twice is listed twice."""
    return list(network.named_modules(remove_duplicate=False))


def replace(network: nn.Module, convert: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """Replace every module for which `convert` returns another one; `convert` is called once for each."""
    converted: dict[nn.Module, nn.Module | None] = {}
    for name, module in every_module(network):
        if module not in converted:
            converted[module] = convert(module)
        new = converted[module]
        if new is None:
            continue
        if name == "":
            return new
        network.set_submodule(name, new)
    return network
