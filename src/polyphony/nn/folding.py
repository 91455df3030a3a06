"""Networks that no longer train: BatchNorm folded into convolutions, members that share their weights."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_conv_bn_weights

from polyphony.nn.adapter import Adapted, logits_of
from polyphony.nn.conversion import inside, replace, without_repeat
from polyphony.nn.probe import images, sizes
from polyphony.nn.rank_one import (
    MemberBatchNorm,
    MemberLayer,
    MemberWeights,
    RankOne,
    RankOneConv2d,
    is_plain,
    member_layers,
    run_with,
)

ALIKE = 1e-2  # of the largest logit: rounding is far below, another network far above


def fold_norms(network: nn.Module) -> nn.Module:
    """A copy of a network in eval mode that gives the same outputs with fewer passes over its activations.

    Every BatchNorm that alone follows a convolution becomes part of its weight and bias; layers used
    twice stay. A network without any, with hooks, whose calls cannot be traced, or whose outputs would
    change, comes back as it is.
    """
    if any(module._forward_hooks or module._forward_pre_hooks for module in network.modules()):
        return network
    folded = copy.deepcopy(network)
    traceable = folded.network if isinstance(folded, Adapted) else folded
    pairs = foldable(traceable)
    for conv, norm, both in pairs:
        replace(folded, {conv: both, norm: nn.Identity()}.get)
    return folded if pairs and answers_alike(network, folded) else network


def foldable(network: nn.Module) -> list[tuple[nn.Module, nn.Module, nn.Module]]:
    """Convolutions with the BatchNorms that alone follow them, each called once, and what does both."""
    if not any(type(module) in (nn.BatchNorm2d, MemberBatchNorm) for module in network.modules()):
        return []
    try:
        graph = MemberTracer().trace(network)
    except Exception:  # whatever tracing trips over in a stranger's forward, the network itself works
        return []
    nodes = [node for node in graph.nodes if node.op == "call_module"]
    used = Counter(node.target for node in nodes)
    found = []
    for node in nodes:
        before = node.args[0] if node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        if used[node.target] * used[before.target] != 1:
            continue
        conv, norm = (network.get_submodule(str(each.target)) for each in (before, node))
        if (both := fused(conv, norm)) is not None:
            found.append((conv, norm, both))
    return found


class MemberTracer(fx.Tracer):
    """Traces the calls of layers of members, not what is inside them."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, MemberLayer) or super().is_leaf_module(m, module_qualified_name)


def fused(conv: nn.Module, norm: nn.Module) -> nn.Module | None:
    """The convolution that computes both layers at once, if there is one."""
    norms = [*norm.norms] if isinstance(norm, MemberBatchNorm) else [norm]
    plain = [each for each in norms if type(each) is nn.BatchNorm2d and each.track_running_stats]
    if len(plain) < len(norms):
        return None
    if type(conv) is nn.Conv2d and isinstance(norm, nn.BatchNorm2d):
        return fuse_conv_bn_eval(conv, norm)
    if isinstance(conv, RankOneConv2d) and is_plain(conv.shared):
        return fused_factors(conv, conv.members // len(plain) * plain)
    return None


def fused_factors(layer: RankOneConv2d, norms: Sequence[nn.BatchNorm2d]) -> RankOneConv2d:
    """A copy of a layer of members, each followed by its norm, with the norms in its factors s and biases."""
    both, bias = copy.deepcopy(layer), layer._parameters["bias"]
    parts = [
        fuse_conv_bn_weights(
            layer.s[j][:, None],
            None if bias is None else bias[j],
            norm.running_mean,  # type: ignore[arg-type]
            norm.running_var,  # type: ignore[arg-type]
            norm.eps,
            norm.weight,
            norm.bias,
        )
        for j, norm in enumerate(norms)
    ]
    both.s = nn.Parameter(torch.stack([s[:, 0] for s, _ in parts]))
    both.bias = nn.Parameter(torch.stack([shift for _, shift in parts]))
    return both


def answers_alike(network: nn.Module, folded: nn.Module) -> bool:
    """Whether two networks give the same logits: a forward may behave differently while it is traced."""
    weight = next(network.parameters())
    if weight.is_meta:
        return True
    for size in sizes(network):
        x = images(2, size, network, weight.dtype)
        try:
            expected = outputs(network, x)
        except Exception:  # these are not its images
            continue
        try:
            return bool((expected - outputs(folded, x)).abs().max() <= ALIKE * expected.abs().max())
        except Exception:
            return False
    return False


def outputs(network: nn.Module, x: Tensor) -> Tensor:
    """A network's logits, without gradients and without a draw from PyTorch's own generator."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return logits_of(network(x))


class Factored(nn.Module):
    """Member j of a `MemberWeights` as a layer: its weight is computed from its own tensors at every call.

    It has the attributes of the shared layer.
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


FACTORED: dict[type[MemberLayer], type[Factored]] = {RankOne: FactoredRankOne}  # other kinds add theirs


def factored_members(network: nn.Module, members: int) -> list[nn.Module]:
    """The plain networks that the members of a converted network are, in eval mode, BatchNorm folded.

    They share one copy of all weights and buffers; a layer of members is a `Factored` of its own in each.
    """
    network = without_repeat(copy.deepcopy(inside(network)).eval())
    for layer in member_layers(network):
        layer.turn = 0  # so that it takes the rows of one member
    network = fold_norms(network)
    shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    layers = {id(layer): each_alone(layer) for layer in member_layers(network)}
    return [
        copy.deepcopy(network, shared | {place: each[j] for place, each in layers.items()})
        for j in range(members)
    ]


def each_alone(layer: MemberLayer) -> list[nn.Module]:
    """The layer of each member. Equal biases, as those from a shared BatchNorm, are one tensor."""
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
