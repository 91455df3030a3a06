"""Members for any network of Conv2d and Linear layers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from polyphony._util.settings import Fraction, Members, NotNegative, check
from polyphony.nn.branch import find_front
from polyphony.nn.conversion import (
    FACTOR_STD,
    ConversionError,
    Make,
    Order,
    Places,
    convert,
    draw_factors,
    every_module,
    of_members,
)
from polyphony.nn.probe import Size
from polyphony.nn.rank_one import MemberLayer
from polyphony.nn.running import Front
from polyphony.nn.trial import ORDER, PROVEN, TRIED, find_order, front_at

# Layers with weights that have no rank-one form here. A network's other parameters are shared by its members.
UNSUPPORTED = (
    nn.Conv1d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Bilinear,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def add_members(
    network: nn.Module,
    members: int,
    *,
    rng: torch.Generator | None = None,
    factor_std: float = FACTOR_STD,
    keep: tuple[str, ...] = (),
    member_norm: bool = False,
    branch: str | float | None = None,
    size: Size | None = None,
    inplace: bool = False,
) -> nn.Module:
    """Give every Conv2d and Linear of a network rank-one factors, N(1, factor_std²). [(m b) …] → [(m b) …]

    Trained weights stay as they are, a module used twice stays one module, and the layers named in `keep`,
    with all below them, are shared by the members unchanged, as are layers that see nothing of the images.
    BatchNorm is shared, its statistics over all rows; `member_norm` gives each member its own.

    With a `branch`, the name of a module, all that runs before it is shared by the members unchanged, and
    runs once for rows that all members see: `converted(x, shared=True)`, [b …] → [(m b) …]. A number above 0
    and below 1 is a branch with about this share of the network's multiply-adds before it.

    The conversion is first tried on a few random images of `size`, (channels, height, width), or of a size
    that the network declares or else runs on. A ConversionError says which layers cannot have members, or
    would have wrong ones, and leaves the network untouched.
    """
    check(NotNegative, factor_std=factor_std)
    draw = partial(draw_factors, members=members, std=factor_std, rng=rng)
    make = partial(of_members, members=members, draw=draw)
    find = partial(try_order, network, keep, member_norm, branch, size)
    return replace_layers(network, members, make, find, inplace)


def replace_layers(
    network: nn.Module,
    members: int,
    make: Make,
    find: Callable[[], tuple[Order, Size | None]],
    inplace: bool = False,
) -> nn.Module:
    """Put what `make` gives in place of layers, by an order that is known (`set_proven`) or that is found."""
    check(Members, members=members)
    order, tried = getattr(network, PROVEN, None) or find()
    network = network if inplace else copy.deepcopy(network)
    vars(network).pop(PROVEN, None)
    converted = convert(network, members, order, make)
    setattr(converted, TRIED, tried)
    setattr(converted, ORDER, order)
    return converted


def set_proven(network: nn.Module, order: Order, size: Size) -> None:
    """Let `add_members` convert a network by the order that an earlier trial found, on images of a size."""
    setattr(network, PROVEN, (order, size))


def order_of(network: object) -> Order | None:
    """The order that a trial found for a network, if it was converted."""
    return getattr(network, ORDER, None)


def try_order(
    network: nn.Module,
    keep: tuple[str, ...],
    member_norm: bool,
    branch: str | float | None,
    size: Size | None,
) -> tuple[Order, Size | None]:
    """The order for options of `add_members`, and the size of the images that were tried."""

    def layers(front: Front | None) -> list[str]:
        shared = keep if front is None else (*keep, *front.modules)
        return convertible(unless_kept(every_module(network), shared), member_norm)

    front = None
    if isinstance(branch, str):
        front = find_front(network, branch, size)
    elif branch is not None:
        check(Fraction, branch=branch)
        front = front_at(network, branch, layers, size)
    return find_order(network, layers(front), size, front)


def unless_kept(places: Places, keep: tuple[str, ...]) -> Places:
    """The places of modules to convert: one that is kept anywhere is kept wherever it stands."""
    names = {name for name, _ in places}
    for name in keep:
        if name not in names:
            raise ValueError(f"the network has no layer '{name}' to keep")
    inside = tuple(f"{name}." for name in keep)
    kept = {module for name, module in places if f"{name}.".startswith(inside)}
    return [(name, module) for name, module in places if module not in kept]


def convertible(places: Places, member_norm: bool) -> list[str]:
    """The layers that are to have members, once each; a ConversionError names all that cannot."""
    kinds = (nn.Conv2d, nn.Linear, _BatchNorm) if member_norm else (nn.Conv2d, nn.Linear)
    refused = {name: why for name, module in places if (why := refusal(module))}
    if refused:
        listed = ", ".join(f"'{name}' ({why})" for name, why in refused.items())
        raise ConversionError(f"no members for layer {listed}; to share them, set keep={tuple(refused)}")
    names: dict[nn.Module, str] = {m: name for name, m in reversed(places) if isinstance(m, kinds)}
    if not names:
        raise ConversionError("the network has no Conv2d or Linear layer to give members to")
    return [name for name, module in places if names.get(module) == name]


def refusal(module: nn.Module) -> str | None:
    """Why a layer cannot have members, or None."""
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    if isinstance(module, MemberLayer):
        return "it has members already"
    if isinstance(module, UNSUPPORTED):
        return f"{kind} has no rank-one form"
    if not isinstance(module, nn.Conv2d | nn.Linear):
        return None
    if any(getattr(module, hooks) for hooks in HOOKS):
        return "its hooks would be lost"
    return None if has_plain_weight(module) else f"{kind} has no weight of its own of the usual shape"


def has_plain_weight(layer: nn.Conv2d | nn.Linear) -> bool:
    """Whether a layer has a weight of the usual shape, which a member's weight can replace."""
    weight = layer._parameters.get("weight")
    if weight is None or isinstance(weight, nn.UninitializedParameter) or any(layer.children()):
        return False
    if isinstance(layer, nn.Linear):
        return weight.shape == (layer.out_features, layer.in_features)
    return weight.shape == (layer.out_channels, layer.in_channels // layer.groups, *layer.kernel_size)
