"""Members by rank-one factors: member j of a layer has the weight W ∘ s_j r_jᵀ and its own bias.

The rows of all members are one batch, member after member: [(m b) …]. There are two ways to compute the same:
scale the weights and run one ordinary layer for each member's block of rows, which is fastest on a CPU; or
scale activations by r_j before the shared layer and by s_j after it (BatchEnsemble, Wen et al. 2019), which
starts the fewest kernels, but passes over the activations more often.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

NO_TURN = -1  # the `turn` of a layer outside `InTurn.forward`
ALL_MEMBERS = slice(None)
Way = Literal["auto", "weights", "activations"]
"""What a rank-one layer scales; `auto`: weights on a CPU, activations on other devices."""


class MemberLayer(nn.Module):
    """A layer that differs between members."""

    members: int
    dim = 0  # the dimension of the inputs that holds the members' rows: [… (m b) …]
    turn: int | None = None  # if members run in turn (`InTurn`), the member that all rows belong to

    def forward(self, x: Tensor) -> Tensor:
        if self.turn == NO_TURN:
            raise RuntimeError("a member layer was called outside `InTurn.forward`")
        if self.turn is not None:
            return self.run_one(x, self.turn)
        return self.run_all(x.movedim(self.dim, 0)).movedim(0, self.dim) if self.dim else self.run_all(x)

    def run_all(self, x: Tensor) -> Tensor:
        """Every member on its own rows. [(m b) …] → [(m b) …]"""
        raise NotImplementedError

    def run_one(self, x: Tensor, j: int) -> Tensor:
        """Member j on all rows. [b …] → [b …]"""
        raise NotImplementedError

    def merge(self, j: int) -> nn.Module:
        """A copy of member j as a plain layer."""
        raise NotImplementedError


class MemberWeights(MemberLayer):
    """A layer with one weight for all members; each member has its `own` tensors, [m …], and a bias [m o].

    Member j's weight is computed from the shared weight and its own tensors. Attributes of the replaced
    layer, such as `.weight` and `.stride`, stay available. While members run in turn, `.weight` and `.bias`
    are those of the current member.
    """

    def __init__(self, shared: nn.Conv2d | nn.Linear, **own: Tensor) -> None:
        super().__init__()
        self.members, self.own = len(next(iter(own.values()))), tuple(own)
        for name, tensor in own.items():
            self.register_parameter(name, nn.Parameter(tensor))
        bias = None if shared.bias is None else nn.Parameter(shared.bias.repeat(self.members, 1).detach())
        self.register_parameter("bias", bias)
        shared.register_parameter("bias", None)
        self.shared = shared  # last: from now on `__getattr__` finds the shared layer's attributes

    def __getattr__(self, name: str) -> Any:
        if name in ("weight", "bias") and self.turn not in (None, NO_TURN):
            return self.member(self.turn)[name == "bias"]
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return getattr(super().__getattr__("shared"), name)

    def member_weights(self, of: slice = ALL_MEMBERS) -> Tensor:
        """The weights of some members. [m o i …]"""
        raise NotImplementedError

    def member(self, j: int) -> tuple[Tensor, Tensor | None]:
        """The weight and the bias of member j."""
        bias = self._parameters["bias"]
        return self.member_weights(slice(j, j + 1))[0], None if bias is None else bias[j]

    def run_all(self, x: Tensor) -> Tensor:
        return self.by_weights(x)

    def by_weights(self, x: Tensor) -> Tensor:
        """Run the layer for each member with its weight; a plain Linear is one batched matrix product."""
        bias = self._parameters["bias"]
        if isinstance(self.shared, nn.Linear) and is_plain(self.shared):
            rows, weights = torch.stack(split_rows(x, self.members)).flatten(1, -2), self.member_weights().mT
            out = rows @ weights if bias is None else torch.baddbmm(bias[:, None], rows, weights)
            return out.view(*x.shape[:-1], self.shared.out_features)
        biases = self.members * [None] if bias is None else bias.unbind()
        blocks = zip(split_rows(x, self.members), self.member_weights().unbind(), biases, strict=True)
        return torch.cat([self.run(*block) for block in blocks])

    def run_one(self, x: Tensor, j: int) -> Tensor:
        return self.run(x, *self.member(j))

    def run(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The shared layer's own forward with another weight and bias."""
        return run_with(self.shared, x, weight, bias)

    def merge(self, j: int) -> nn.Module:
        plain = copy.deepcopy(self.shared)
        weight, bias = self.member(j)
        plain.weight = nn.Parameter(weight.detach().clone())
        if bias is not None:
            plain.bias = nn.Parameter(bias.detach().clone())
        return plain


class RankOne(MemberWeights):
    """A layer with factors r [m i], s [m o]: member j has the weight W ∘ s_j r_jᵀ."""

    r: nn.Parameter
    s: nn.Parameter
    channels: int  # the dimension of the channels in [m b …]
    way: Way = "auto"

    def __init__(self, shared: nn.Conv2d | nn.Linear, factors: tuple[Tensor, Tensor]) -> None:
        super().__init__(shared, r=factors[0], s=factors[1])

    def scales(self, r: Tensor, s: Tensor) -> Tensor:
        """The products of factors that multiply the shared weight. [m i], [m o] → [m o i …]"""
        raise NotImplementedError

    def member_weights(self, of: slice = ALL_MEMBERS) -> Tensor:
        """W ∘ s_j r_jᵀ of some members. [m o i …]"""
        return self.shared.weight * self.scales(rows_of(self.r, of), rows_of(self.s, of))

    def run_all(self, x: Tensor) -> Tensor:
        on_cpu = x.device.type in ("cpu", "meta")
        by_weights = self.way == "weights" or (self.way == "auto" and on_cpu)
        if by_weights or not is_plain(self.shared):  # another forward may use the weight in any way
            return self.by_weights(x)
        return self.by_activations(x)

    def by_activations(self, x: Tensor) -> Tensor:
        """Run the shared layer once: its inputs are scaled by r and its outputs by s."""
        bias, rows = self._parameters["bias"], unfold_rows(x, self.members)
        shape = [self.members, *rows.dim() * [1]][: rows.dim()]
        shape[self.channels] = -1
        scaled = (rows * self.r.view(shape)).flatten(0, 1)
        out: Tensor = self.run(scaled, self.shared.weight, None).unflatten(0, rows.shape[:2])
        out = out * self.s.view(shape)
        out = out if bias is None else out + bias.view(shape)
        return out.flatten(0, 1)


class RankOneConv2d(RankOne):
    """[(m b) c h w] → [(m b) c' h' w'] with any stride, padding, dilation and groups."""

    shared: nn.Conv2d
    channels = 2

    def scales(self, r: Tensor, s: Tensor) -> Tensor:
        """s_j r_jᵀ for every member; a group of outputs has the factors of its inputs. [m o i/groups 1 1]"""
        outputs = s.unflatten(1, (self.shared.groups, -1, 1))
        inputs = r.unflatten(1, (self.shared.groups, 1, -1))
        scale: Tensor = (outputs * inputs).flatten(1, 2)[..., None, None]
        return scale


class RankOneLinear(RankOne):
    """[(m b) … i] → [(m b) … o]"""

    shared: nn.Linear
    channels = -1

    def scales(self, r: Tensor, s: Tensor) -> Tensor:
        """s_j r_jᵀ for every member. [m o i]"""
        return s[:, :, None] * r[:, None, :]


class MemberBatchNorm(MemberLayer):
    """One BatchNorm for each member, with statistics over its own rows. [(m b) c …] → [(m b) c …]"""

    def __init__(self, norm: nn.Module, members: int) -> None:
        super().__init__()
        self.members = members
        self.norms = nn.ModuleList(copy.deepcopy(norm) for _ in range(members))

    def run_all(self, x: Tensor) -> Tensor:
        return torch.cat([self.run_one(rows, j) for j, rows in enumerate(split_rows(x, self.members))])

    def run_one(self, x: Tensor, j: int) -> Tensor:
        out: Tensor = self.norms[j](x)
        return out

    def merge(self, j: int) -> nn.Module:
        return copy.deepcopy(self.norms[j])


def rank_ones(model: nn.Module) -> list[RankOne]:
    """The rank-one layers of a model."""
    return [layer for layer in model.modules() if isinstance(layer, RankOne)]


def member_layers(model: nn.Module) -> list[MemberLayer]:
    """All layers of a model that differ between members."""
    return [layer for layer in model.modules() if isinstance(layer, MemberLayer)]


def set_way(model: nn.Module, way: Way) -> None:
    """Let all rank-one layers scale weights or activations; results differ only by rounding."""
    for layer in rank_ones(model):
        layer.way = way


def run_with(layer: nn.Conv2d | nn.Linear, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A layer's own forward with another weight and bias."""
    if is_plain(layer) and isinstance(layer, nn.Conv2d):
        convolved: Tensor = layer._conv_forward(x, weight, bias)
        return convolved
    if is_plain(layer):
        return F.linear(x, weight, bias)
    parameters = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    out: Tensor = functional_call(layer, parameters, (x,))
    return out


def rows_of(own: Tensor, members: slice) -> Tensor:
    """Some members' rows of a tensor; for all members the tensor itself, since a slice costs kernels."""
    return own if members is ALL_MEMBERS else own[members]


def split_rows(x: Tensor, members: int) -> tuple[Tensor, ...]:
    """The rows of each member. [(m b) …] → m × [b …]"""
    blocks: tuple[Tensor, ...] = unfold_rows(x, members).unbind()
    return blocks


def unfold_rows(x: Tensor, members: int) -> Tensor:
    """All rows with a dimension for members; a ValueError if they do not divide. [(m b) …] → [m b …]"""
    if x.shape[0] % members:
        raise ValueError(f"{x.shape[0]} rows do not divide among {members} members")
    return x.unflatten(0, (members, -1))  # type: ignore[no-any-return]


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer runs the forward of PyTorch's Conv2d or Linear, not one of its own."""
    forward, conv_forward = (
        getattr(getattr(layer, name, None), "__func__", None) for name in ("forward", "_conv_forward")
    )
    is_conv = forward is nn.Conv2d.forward and conv_forward is nn.Conv2d._conv_forward
    return is_conv or forward is nn.Linear.forward
