"""Networks for inference only: BatchNorm folded into convolutions, members as networks that share weights."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_conv_bn_weights

from polyphony.nn.adapter import Adapted, logits_of
from polyphony.nn.conversion import replace, unwrap, without_repeat
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

TOLERANCE = 1e-2  # of the largest logit: rounding errors are far smaller, real differences far larger


def fold_norms(network: nn.Module) -> nn.Module:
    """A faster copy of a network in eval mode: BatchNorm is folded into convolutions.

    A BatchNorm is folded if it is the only user of a convolution's outputs and both layers are called once.
    Returns the network itself if there is nothing to fold, if it has hooks, if its calls cannot be traced, or
    if its outputs would change.
    """
    if any(module._forward_hooks or module._forward_pre_hooks for module in network.modules()):
        return network
    folded = copy.deepcopy(network)
    traceable = folded.network if isinstance(folded, Adapted) else folded
    pairs = foldable(traceable)
    for conv, norm, fused in pairs:
        replace(folded, {conv: fused, norm: nn.Identity()}.get)
    return folded if pairs and same_outputs(network, folded) else network


def foldable(network: nn.Module) -> list[tuple[nn.Module, nn.Module, nn.Module]]:
    """Pairs of a convolution and a BatchNorm that can be folded, each with the layer that computes both."""
    if not any(type(module) in (nn.BatchNorm2d, MemberBatchNorm) for module in network.modules()):
        return []
    try:
        graph = MemberTracer().trace(network)
    except Exception:  # tracing the user's forward may raise anything; the network itself works
        return []
    nodes = [node for node in graph.nodes if node.op == "call_module"]
    calls = Counter(node.target for node in nodes)
    pairs = []
    for node in nodes:
        before = node.args[0] if node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        if calls[node.target] * calls[before.target] != 1:
            continue
        conv, norm = (network.get_submodule(str(target)) for target in (before.target, node.target))
        if (fused := fuse(conv, norm)) is not None:
            pairs.append((conv, norm, fused))
    return pairs


class MemberTracer(fx.Tracer):
    """Traces layers with members as single calls."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, MemberLayer) or super().is_leaf_module(m, module_qualified_name)


def fuse(conv: nn.Module, norm: nn.Module) -> nn.Module | None:
    """One convolution that computes both layers, or None if the layers cannot be fused."""
    norms = [*norm.norms] if isinstance(norm, MemberBatchNorm) else [norm]
    plain = [part for part in norms if type(part) is nn.BatchNorm2d and part.track_running_stats]
    if len(plain) < len(norms):
        return None
    if type(conv) is nn.Conv2d and isinstance(norm, nn.BatchNorm2d):
        return fuse_conv_bn_eval(conv, norm)
    if isinstance(conv, RankOneConv2d) and is_plain(conv.shared):
        return fuse_factors(conv, conv.members // len(plain) * plain)
    return None


def fuse_factors(layer: RankOneConv2d, norms: Sequence[nn.BatchNorm2d]) -> RankOneConv2d:
    """A copy of a layer with members, with each member's norm folded into its factor s and its bias."""
    fused, bias = copy.deepcopy(layer), layer._parameters["bias"]
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
    fused.s = nn.Parameter(torch.stack([s[:, 0] for s, _ in parts]))
    fused.bias = nn.Parameter(torch.stack([shift for _, shift in parts]))
    return fused


def same_outputs(network: nn.Module, folded: nn.Module) -> bool:
    """Whether two networks give the same logits: tracing may have missed what a forward really does."""
    weight = next(network.parameters())
    if weight.is_meta:
        return True
    for size in sizes(network):
        x = images(2, size, network, weight.dtype)
        try:
            expected = outputs(network, x)
        except Exception:  # the network does not accept this size
            continue
        try:
            return bool((expected - outputs(folded, x)).abs().max() <= TOLERANCE * expected.abs().max())
        except Exception:
            return False
    return False


def outputs(network: nn.Module, x: Tensor) -> Tensor:
    """A network's logits, without gradients and without changing PyTorch's global generator."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return logits_of(network(x))


class Factored(nn.Module):
    """Member j of a `MemberWeights` as a layer: every call computes its weight from its own tensors.

    Attributes of the shared layer stay available.
    """

    def __init__(self, shared: nn.Conv2d | nn.Linear, bias: Tensor | None, **own: Tensor) -> None:
        super().__init__()
        for name, tensor in own.items():
            self.register_buffer(name, tensor)
        self.register_buffer("bias", bias)
        self.shared = shared  # last: from now on `__getattr__` finds the shared layer's attributes

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
        if len(self.r) > 1:  # a group of outputs sees only its own inputs
            by_group: Tensor = weight.unflatten(0, (len(self.r), -1)) * self.r.unsqueeze(1)
            return by_group.flatten(0, 1) * self.s
        return weight * self.r * self.s


# The `Factored` of each kind of layer with members; other modules add theirs.
FACTORED: dict[type[MemberLayer], type[Factored]] = {RankOne: FactoredRankOne}


def factored_members(network: nn.Module, members: int) -> list[nn.Module]:
    """The members of a converted network as plain networks in eval mode, with BatchNorm folded.

    They share one copy of all weights and buffers; each has its own `Factored` for a layer with members.
    """
    network = without_repeat(copy.deepcopy(unwrap(network)).eval())
    for layer in member_layers(network):
        layer.turn = 0  # `fold_norms` compares outputs on the rows of one member
    network = fold_norms(network)
    shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    layers = {id(layer): separate_layers(layer) for layer in member_layers(network)}
    return [
        copy.deepcopy(network, shared | {key: by_member[j] for key, by_member in layers.items()})
        for j in range(members)
    ]


def separate_layers(layer: MemberLayer) -> list[nn.Module]:
    """A layer for each member. Equal biases, such as those from a shared BatchNorm, are one tensor."""
    factored = next((result for kind, result in FACTORED.items() if isinstance(layer, kind)), None)
    if factored is None or not isinstance(layer, MemberWeights):
        return [layer.merge(j) for j in range(layer.members)]
    own = {name: getattr(layer, name).detach() for name in layer.own}
    bias = layer._parameters["bias"]
    biases = layer.members * [None] if bias is None else [row.clone() for row in bias.detach()]
    if bias is not None and bool((bias == bias[0]).all()):
        biases = layer.members * biases[:1]
    return [
        factored(layer.shared, biases[j], **{name: tensor[j].clone() for name, tensor in own.items()})
        for j in range(layer.members)
    ]
