"""Gives members to any network of Conv2d and Linear layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    NamedModules,
    Order,
    convert,
    draw_factors,
    every_module,
    make_member_layer,
    trainable_copy,
)
from polyphony.nn.probe import Size
from polyphony.nn.rank_one import MemberLayer
from polyphony.nn.running import Front
from polyphony.nn.trial import ORDER, PROVEN, TRIED, find_order, front_at, leave_out

# Layers with weights for which there is no rank-one layer. Members share a network's other parameters.
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

    Returns a converted copy; with `inplace`, the network itself is converted. Trained weights do not change,
    and a module that is used twice stays one module.

    Members share the layers named in `keep`, with all layers inside them, and layers whose inputs do not
    depend on the images. They also share BatchNorm, with statistics over all rows; with `member_norm` each
    member has its own.

    `branch` is the name of a module: members share all modules that run before it. These run once for rows
    that all members see: `converted(x, shared=True)`, [b …] → [(m b) …]. A number between 0 and 1 chooses a
    branch with about this share of the network's multiply-adds before it.

    The conversion is first tested on a few random images of `size`, (channels, height, width); by default of
    a size that the network declares or accepts. Raises a ConversionError that names the layers that cannot
    have members, or whose members would be wrong; the network is then unchanged.
    """
    check(NotNegative, factor_std=factor_std)
    draw = partial(draw_factors, members=members, std=factor_std, rng=rng)
    make = partial(make_member_layer, members=members, draw=draw)
    find = partial(try_order, network, keep, member_norm, branch, size)
    return replace_layers(network, members, make, find, inplace)


def replace_layers(
    network: nn.Module,
    members: int,
    make: Make,
    find: Callable[[], tuple[Order, Size | None]],
    inplace: bool = False,
) -> nn.Module:
    """Replace layers by what `make` returns, by the order of `set_proven`, or else by the one of `find`."""
    check(Members, members=members)
    order, tried = getattr(network, PROVEN, None) or find()
    network = network if inplace else trainable_copy(network)
    vars(network).pop(PROVEN, None)
    converted = convert(network, members, order, make)
    setattr(converted, TRIED, tried)
    setattr(converted, ORDER, order)
    return converted


def set_proven(network: nn.Module, order: Order, size: Size) -> None:
    """Let `add_members` use the order that an earlier trial found on images of this size."""
    setattr(network, PROVEN, (order, size))


def order_of(network: object) -> Order | None:
    """The order by which a network was converted, or None."""
    return getattr(network, ORDER, None)


def try_order(
    network: nn.Module,
    keep: tuple[str, ...],
    member_norm: bool,
    branch: str | float | None,
    size: Size | None,
) -> tuple[Order, Size | None]:
    """The order for these options of `add_members`, and the size of the images of its trial."""

    def layers(front: Front | None) -> list[str]:
        shared = keep if front is None else (*keep, *front.modules)
        return layers_to_convert(without_kept(every_module(network), shared), member_norm)

    front = None
    if isinstance(branch, str):
        front = find_front(network, branch, size)
    elif branch is not None:
        check(Fraction, branch=branch)
        front = front_at(network, branch, layers, size)
    return find_order(network, layers(front), size, front)


def without_kept(modules: NamedModules, keep: tuple[str, ...]) -> NamedModules:
    """The modules without those to keep; a module with several names is kept under all of them.

    Raises a ValueError for a name that the network does not have.
    """
    names = {name for name, _ in modules}
    for name in keep:
        if name not in names:
            raise ValueError(f"the network has no layer '{name}' to keep")
    inside = tuple(f"{name}." for name in keep)
    kept = {module for name, module in modules if f"{name}.".startswith(inside)}
    return [(name, module) for name, module in modules if module not in kept]


def layers_to_convert(
    modules: NamedModules, member_norm: bool, options: Sequence[str] = ("keep",)
) -> list[str]:
    """The names of the layers that get members, each layer once.

    Raises a ConversionError that names all layers that cannot have members and which of the options helps,
    or says that there is no layer.
    """
    kinds = (nn.Conv2d, nn.Linear, _BatchNorm) if member_norm else (nn.Conv2d, nn.Linear)
    obstacles = {name: reason for name, module in modules if (reason := obstacle(module))}
    if obstacles:
        listed = ", ".join(f"'{name}' ({reason})" for name, reason in obstacles.items())
        raise ConversionError(f"no members for layer {listed}; {leave_out([*obstacles], options)}")
    names: dict[nn.Module, str] = {m: name for name, m in reversed(modules) if isinstance(m, kinds)}
    if not names:
        raise ConversionError("the network has no Conv2d or Linear layer to give members to")
    return [name for name, module in modules if names.get(module) == name]


def obstacle(module: nn.Module) -> str | None:
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
    return None if has_plain_weight(module) else f"{kind} has no weight of its own with the usual shape"


def has_plain_weight(layer: nn.Conv2d | nn.Linear) -> bool:
    """Whether a layer has its own weight of the usual shape, which a member's weight can replace."""
    weight = layer._parameters.get("weight")
    if weight is None or isinstance(weight, nn.UninitializedParameter) or any(layer.children()):
        return False
    if isinstance(layer, nn.Linear):
        return weight.shape == (layer.out_features, layer.in_features)
    return weight.shape == (layer.out_channels, layer.in_channels // layer.groups, *layer.kernel_size)
