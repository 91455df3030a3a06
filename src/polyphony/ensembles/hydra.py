"""Members that are heads on one trunk: the cheapest student for a trained network."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from polyphony._util.settings import Members, check
from polyphony.ensembles.base import Ensemble, NetworkRunner, check_leading, check_member, share_rows
from polyphony.nn.conversion import normal, replace, trainable_copy
from polyphony.nn.probe import without_hooks

FEW = 2  # images on which the position of the classifier is checked


class Hydra(Ensemble):
    """One trunk and M linear heads, each with its own fresh weights (Tran et al. 2020).

    The heads replace the network's classifier: the layer that `head` names (default: the last one). It must
    be a plain Linear whose output is the network's output. With a `factor_std` the heads start from its
    weights, each weight times N(1, factor_std²); a small value, 0.02, preserves what a trained network has
    learnt. If all members see the same rows, as at test and in distillation, the trunk runs once.
    """

    def __init__(
        self,
        network: nn.Module,
        members: int,
        *,
        head: str | None = None,
        factor_std: float | None = None,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check(Members, members=members)
        self.members = members
        self.head, classifier = find_head(network, head)
        self.heads = Heads(classifier, members, factor_std, rng)
        self.trunk = with_head(network, self.head, nn.Identity())
        self.runner = NetworkRunner(self.trunk, members)
        # Becomes True when the first images show that the classifier is the network's end.
        self.checked = False

    def forward(self, x: Tensor) -> Tensor:
        """[m b c h w] → [m b k]"""
        check_leading(x, self.members)
        rows = x[0] if share_rows(x) else x.flatten(0, 1)
        features = self.runner(self.trunk, rows)
        if not self.checked:
            self.check_end(features, self.runner.formatted(rows[:FEW]))
        if share_rows(x):
            return cast(Tensor, self.heads(features.expand(self.members, *features.shape)))
        return cast(Tensor, self.heads(features.unflatten(0, (self.members, -1))))

    def check_end(self, features: Tensor, rows: Tensor) -> None:
        """Raise a ValueError unless the features fit the heads, and a head's output is the network's."""
        fits = features.dim() == 2 and features.shape[-1] == self.heads.inputs
        unknown = rows.is_meta or torch.compiler.is_compiling()  # then tensors have no values
        if not fits or not (unknown or ends_with_head(self.member(0), self.head, rows)):
            raise ValueError(f"the network does more after its classifier '{self.head}': name another `head`")
        self.checked = not unknown

    def member(self, j: int) -> nn.Module:
        """The plain network that member j is, as a copy: [b c h w] → [b k]."""
        check_member(j, self.members)
        return with_head(self.trunk, self.head, self.heads.plain(j))


class Heads(nn.Module):
    """M linear layers of one shape as one module: weights [m o i], biases [m o]. [m b i] → [m b o]"""

    def __init__(
        self, classifier: nn.Linear, members: int, factor_std: float | None, rng: torch.Generator | None
    ) -> None:
        super().__init__()
        old, bias = classifier.weight.detach(), classifier.bias
        weights = [
            fresh_weight(old, rng) if factor_std is None else old * normal(old.shape, old, rng, 1, factor_std)
            for _ in range(members)
        ]
        self.weight = nn.Parameter(torch.stack(weights))
        start = None if bias is None else torch.zeros_like(bias) if factor_std is None else bias.detach()
        self.bias = None if start is None else nn.Parameter(start.repeat(members, 1))

    @property
    def inputs(self) -> int:
        """The number of features that a head takes."""
        return self.weight.shape[-1]

    def forward(self, features: Tensor) -> Tensor:
        if self.bias is None:
            return features @ self.weight.mT
        return torch.baddbmm(self.bias[:, None], features, self.weight.mT)

    def plain(self, j: int) -> nn.Linear:
        """A copy of head j as an ordinary layer."""
        outputs, inputs = self.weight[j].shape
        plain: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=self.bias is not None)
        plain.weight = nn.Parameter(self.weight[j].detach().clone())
        if self.bias is not None:
            plain.bias = nn.Parameter(self.bias[j].detach().clone())
        return plain


def fresh_weight(like: Tensor, rng: torch.Generator | None) -> Tensor:
    """A random weight of the same shape, device and dtype, with the distribution of PyTorch's Linear."""
    device = like.device if rng is None else rng.device
    weight = torch.empty(like.shape, device=device)
    return nn.init.kaiming_uniform_(weight, a=5**0.5, generator=rng).to(like)


def find_head(network: nn.Module, head: str | None) -> tuple[str, nn.Linear]:
    """The name of a network's classifier (default: the last module) and the layer itself.

    Raises a ValueError if there is no such layer, or if it is not a plain Linear.
    """
    modules = dict(network.named_modules())
    name = list(modules)[-1] if head is None else head
    if name not in modules:
        raise ValueError(f"the network has no layer '{name}' to replace by heads")
    layer = modules[name]
    if type(layer) is not nn.Linear:
        kind = type(layer).__name__
        raise ValueError(
            f"layer '{name}' ({kind}) is not a plain Linear: name the network's classifier as `head`"
        )
    return name, layer


def ends_with_head(network: nn.Module, head: str, rows: Tensor) -> bool:
    """Whether a network's output is the output of the layer `head`. Changes hooks and mode of the network."""
    outputs: list[Tensor] = []
    without_hooks(network).get_submodule(head).register_forward_hook(
        lambda layer, inputs, output: outputs.append(output)
    )
    with torch.no_grad():
        logits = network.eval()(rows)
    same_shape = len(outputs) == 1 and logits.shape == outputs[0].shape
    return same_shape and torch.allclose(logits, outputs[0], rtol=0, atol=0, equal_nan=True)


def with_head(network: nn.Module, name: str, head: nn.Module) -> nn.Module:
    """A copy of a network in which `head` replaces the layer of this name."""
    network = trainable_copy(network)
    old = network.get_submodule(name)
    return replace(network, lambda module: head if module is old else None)
