"""Members by rank-one factors: member j of a layer has the weight W ∘ s_j r_jᵀ and a bias of its own.

Rows come folded, member-major: [(m b) …]. Scaling the small weights and running one ordinary layer for each
member's block of rows is the same function as scaling activations by r_j before and s_j after (BatchEnsemble,
Wen et al. 2019), without four passes over the activations.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

FACTOR_STD = 0.5  # factors start as N(1, 0.5²)

# Layers with weights that have no rank-one form here. A network's other parameters are shared by its members.
UNSUPPORTED = (
    nn.Conv1d,
    nn.Conv2d,  # that is: subclasses, whose forward may differ
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Linear,
    nn.Bilinear,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
)


class ConversionError(ValueError):
    """A network holds a layer that cannot be given members."""


class RankOne(nn.Module):
    """A layer that all members share, with factors r [m i], s [m o] and a bias [m o] for each member."""

    def __init__(self, shared: nn.Conv2d | nn.Linear, factors: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.shared = shared
        self.r, self.s = (nn.Parameter(factor) for factor in factors)
        self.bias = (
            None if shared.bias is None else nn.Parameter(shared.bias.repeat(self.members, 1).detach())
        )
        shared.register_parameter("bias", None)

    @property
    def members(self) -> int:
        """How many plain layers this one is."""
        return len(self.r)

    def member_weights(self) -> Tensor:
        """W ∘ s_j r_jᵀ for every member. [m o i …]"""
        raise NotImplementedError

    def merge(self, j: int) -> nn.Module:
        """The plain layer that member j is."""
        plain = copy.deepcopy(self.shared)
        plain.weight = nn.Parameter(self.member_weights()[j].detach().clone())
        if self.bias is not None:
            plain.bias = nn.Parameter(self.bias[j].detach().clone())
        return plain


class RankOneConv2d(RankOne):
    """[(m b) c h w] → [(m b) c' h' w'], whatever the stride, padding, dilation and groups."""

    shared: nn.Conv2d

    def member_weights(self) -> Tensor:
        """A group of outputs sees only its own inputs' factors. [m o i/groups kh kw]"""
        outputs = self.s.unflatten(1, (self.shared.groups, -1, 1))
        inputs = self.r.unflatten(1, (self.shared.groups, 1, -1))
        scale: Tensor = (outputs * inputs).flatten(1, 2)[..., None, None]
        return self.shared.weight * scale

    def forward(self, x: Tensor) -> Tensor:
        weights = self.member_weights().unbind()
        biases = self.members * [None] if self.bias is None else self.bias.unbind()
        blocks = zip(split_rows(x, self.members), weights, biases, strict=True)
        return torch.cat([self.shared._conv_forward(*block) for block in blocks])


class RankOneLinear(RankOne):
    """[(m b) … i] → [(m b) … o]"""

    shared: nn.Linear

    def member_weights(self) -> Tensor:
        """W ∘ s_j r_jᵀ for every member. [m o i]"""
        return self.shared.weight * (self.s[:, :, None] * self.r[:, None, :])

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.stack(split_rows(x, self.members)).flatten(1, -2)
        weights = self.member_weights().mT
        out = rows @ weights if self.bias is None else torch.baddbmm(self.bias[:, None], rows, weights)
        return out.view(*x.shape[:-1], self.shared.out_features)


class MemberBatchNorm(nn.Module):
    """One BatchNorm for each member, statistics over that member's rows alone. [(m b) c …] → [(m b) c …]"""

    def __init__(self, norm: nn.Module, members: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(copy.deepcopy(norm) for _ in range(members))

    def forward(self, x: Tensor) -> Tensor:
        blocks = split_rows(x, len(self.norms))
        return torch.cat([norm(block) for norm, block in zip(self.norms, blocks, strict=True)])

    def merge(self, j: int) -> nn.Module:
        """The plain BatchNorm of member j."""
        return copy.deepcopy(self.norms[j])


def split_rows(x: Tensor, members: int) -> tuple[Tensor, ...]:
    """The rows of each member. [(m b) …] → m × [b …]"""
    if len(x) % members:
        raise ValueError(f"{len(x)} rows do not divide among {members} members")
    blocks: tuple[Tensor, ...] = x.unflatten(0, (members, -1)).unbind()
    return blocks


def add_members(
    network: nn.Module,
    members: int,
    *,
    rng: torch.Generator | None = None,
    keep: tuple[str, ...] = (),
    member_norm: bool = False,
    inplace: bool = False,
) -> nn.Module:
    """Give every Conv2d and Linear of a network rank-one factors from N(1, 0.5²). [(m b) …] → [(m b) …]

    Trained weights stay as they are, a module used twice stays one module, and the layers named in `keep`,
    with all below them, are shared by the members unchanged. BatchNorm is shared, its statistics over all
    rows; `member_norm` gives each member its own. A ConversionError leaves the network untouched.
    """
    if members < 1:
        raise ValueError(f"a network has at least one member, not {members}")
    network = network if inplace else copy.deepcopy(network)
    chosen = unless_kept(every_module(network), keep)
    for name, module in chosen:
        refuse_unsupported(name, module)

    def convert(module: nn.Module) -> nn.Module | None:
        if isinstance(module, nn.Conv2d):
            return RankOneConv2d(module, draw_factors(module.weight, members, module.in_channels, rng))
        if isinstance(module, nn.Linear):
            return RankOneLinear(module, draw_factors(module.weight, members, module.in_features, rng))
        return MemberBatchNorm(module, members) if member_norm and isinstance(module, _BatchNorm) else None

    return replace(network, chosen, convert)


def merge_member(network: nn.Module, j: int) -> nn.Module:
    """The plain network that member j of a converted network is, as a copy."""

    def merge(module: nn.Module) -> nn.Module | None:
        return module.merge(j) if isinstance(module, RankOne | MemberBatchNorm) else None

    network = copy.deepcopy(network)
    return replace(network, every_module(network), merge)


def factors(network: nn.Module) -> Iterator[Tensor]:
    """The rank-one factors r and s of every layer that has them: parameters, or made of some (LatentBE)."""
    for module in network.modules():
        if isinstance(module, RankOne):
            yield from (module.r, module.s)


def every_module(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every place a module stands in, so that one used twice is listed twice."""
    return list(network.named_modules(remove_duplicate=False))


def unless_kept(places: list[tuple[str, nn.Module]], keep: tuple[str, ...]) -> list[tuple[str, nn.Module]]:
    """The places of modules to convert: one that is kept anywhere is kept wherever it stands."""
    names = {name for name, _ in places}
    for name in keep:
        if name not in names:
            raise ValueError(f"the network has no layer '{name}' to keep")
    kept = {module for name, module in places if is_below(name, keep)}
    return [(name, module) for name, module in places if module not in kept]


def is_below(name: str, keep: tuple[str, ...]) -> bool:
    """Whether a module is one of those kept, or inside one."""
    return any(f"{name}.".startswith(f"{kept}.") for kept in keep)


def draw_factors(
    weight: Tensor, members: int, inputs: int, rng: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """r [m i] and s [m o] from N(1, 0.5²), where the weight lives."""
    device = weight.device if rng is None else rng.device
    r = torch.empty(members, inputs, device=device).normal_(1, FACTOR_STD, generator=rng)
    s = torch.empty(members, len(weight), device=device).normal_(1, FACTOR_STD, generator=rng)
    return r.to(weight), s.to(weight)


def replace(
    network: nn.Module,
    places: list[tuple[str, nn.Module]],
    convert: Callable[[nn.Module], nn.Module | None],
) -> nn.Module:
    """Put convert(module) into every place where it gives one; each module is converted once."""
    converted: dict[nn.Module, nn.Module | None] = {}
    for name, module in places:
        if module not in converted:
            converted[module] = convert(module)
        new = converted[module]
        if new is None:
            continue
        if name == "":
            return new
        network.set_submodule(name, new)
    return network


def refuse_unsupported(name: str, module: nn.Module) -> None:
    """Raise for a layer whose members would not be what they claim."""
    if isinstance(module, RankOne | MemberBatchNorm):
        raise ConversionError(f"layer '{name}' has members already")
    plain = type(module) in (nn.Conv2d, nn.Linear)
    if isinstance(module, UNSUPPORTED) and not (plain and "weight" in module._parameters):
        raise ConversionError(
            f"layer '{name}' ({type(module).__name__}) has no rank-one form, only plain Conv2d and Linear;"
            " name it in `keep` to share it between the members"
        )
    if plain and has_hooks(module):
        raise ConversionError(f"layer '{name}' has hooks, which its members would lose; remove them first")


def has_hooks(module: nn.Module) -> bool:
    """Whether a module's call does more than its forward."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for kind in hooks)
