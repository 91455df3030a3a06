"""BatchNorm folded into the convolution before it: what a network that no longer trains may do without."""

from __future__ import annotations

import copy
import math
from collections import Counter

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from polyphony.nn.adapter import Adapted

ALIKE = 1e-2  # of the largest logit: rounding is far below, another way through the network far above


def fold_norms(network: nn.Module) -> nn.Module:
    """A copy of a network in eval mode that gives the same outputs with fewer passes over its activations.

    Every BatchNorm that alone follows a convolution becomes part of its weight and bias; layers used
    twice stay. A network without any, with hooks, or whose calls cannot be traced, comes back as it is.
    """
    if any(module._forward_hooks or module._forward_pre_hooks for module in network.modules()):
        return network
    if not any(type(module) is nn.BatchNorm2d for module in network.modules()):
        return network
    if isinstance(network, Adapted):
        return fold_inside(network)
    try:
        traced = fx.symbolic_trace(copy.deepcopy(network))
    except Exception:  # whatever tracing trips over in a stranger's forward, the network itself works
        return network
    used = Counter(node.target for node in traced.graph.nodes if node.op == "call_module")
    for node in list(traced.graph.nodes):
        fold(traced, node, used)
    traced.recompile()
    traced.delete_all_unused_submodules()
    return traced


def fold_inside(adapted: Adapted) -> Adapted:
    """The same for the network inside, whose calls can be traced where those in front of it cannot."""
    inner = fold_norms(adapted.network)
    if inner is adapted.network:
        return adapted
    folded = copy.deepcopy(adapted, {id(adapted.network): inner})  # which takes the place of the network's
    return folded if answers_alike(adapted, folded) else adapted


def answers_alike(adapted: Adapted, folded: Adapted) -> bool:
    """Whether both give the same on images of the shape they are shown, as far as that is known.

    A stranger's forward may ask whether its input is a Tensor, and go another way while it is traced.
    """
    weight = next(adapted.parameters(), None)
    if adapted.shape is None or weight is None or weight.is_meta:
        return True
    x = torch.linspace(0, 1, 2 * math.prod(adapted.shape), dtype=weight.dtype, device=weight.device)
    x = x.view(2, *adapted.shape)
    try:
        with torch.no_grad():
            expected, found = adapted(x), folded(x)
    except Exception:
        return False
    return bool((expected - found).abs().max() <= ALIKE * expected.abs().max())


def fold(traced: fx.GraphModule, node: fx.Node, used: Counter[fx.node.Target]) -> None:
    """Fold a call of a BatchNorm into the convolution before it, where that changes nothing else."""
    norm, before = called(traced, node), node.args[0] if node.args else None
    if not isinstance(before, fx.Node) or len(before.users) > 1:
        return
    if used[node.target] * used[before.target] != 1:
        return
    conv = called(traced, before)
    if type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d and norm.track_running_stats:
        traced.set_submodule(str(before.target), fuse_conv_bn_eval(conv, norm))
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)


def called(traced: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    """The module that a node of the trace calls."""
    return traced.get_submodule(str(node.target)) if node.op == "call_module" else None
