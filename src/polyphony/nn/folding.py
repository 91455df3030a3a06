"""BatchNorm folded into the convolution before it: what a network that no longer trains may do without."""

from __future__ import annotations

import copy
from collections import Counter

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from polyphony.nn.adapter import Adapted, logits_of
from polyphony.nn.conversion import replace
from polyphony.nn.probe import images, sizes

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
    for conv, norm in pairs:
        replace(folded, {conv: fuse_conv_bn_eval(conv, norm), norm: nn.Identity()}.get)
    return folded if pairs and answers_alike(network, folded) else network


def foldable(network: nn.Module) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    """Convolutions with the BatchNorms that alone follow them, each called once."""
    if not any(type(module) is nn.BatchNorm2d for module in network.modules()):
        return []
    try:
        graph = fx.Tracer().trace(network)
    except Exception:  # whatever tracing trips over in a stranger's forward, the network itself works
        return []
    nodes = [node for node in graph.nodes if node.op == "call_module"]
    used = Counter(node.target for node in nodes)
    found = []
    for node in nodes:
        before = node.args[0] if node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        conv, norm = (network.get_submodule(str(each.target)) for each in (before, node))
        if used[node.target] * used[before.target] != 1:
            continue
        if type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d and norm.track_running_stats:
            found.append((conv, norm))
    return found


def answers_alike(network: nn.Module, folded: nn.Module) -> bool:
    """Whether two networks give the same on a few images: a forward may go another way while it is traced."""
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
