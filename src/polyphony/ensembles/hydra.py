"""Members that are heads on one trunk: the cheapest student for a network that is trained already."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from polyphony._util.settings import Members, check
from polyphony.ensembles.base import Ensemble, NetworkRunner, check_leading, check_member, share_rows
from polyphony.nn.conversion import normal, replace
from polyphony.nn.probe import without_hooks

FEW = 2  # images that a network's end is looked for on


class Hydra(Ensemble):
    """One trunk and M linear heads, each with fresh weights of its own (Tran et al. 2020).

    The heads take the place of the network's classifier: its last layer, or the one that `head` names, which
    must be a plain Linear whose output is the network's. With a `factor_std` they start from its weights,
    each times N(1, factor_std²): a small one, 0.02, keeps what a trained network knows. Where all members see
    the same rows, as at test and in distillation, the trunk runs once.
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
        self.run = NetworkRunner(self.trunk, members)
        self.checked = False  # whether the classifier is the network's end, on the first images

    def forward(self, x: Tensor) -> Tensor:
        """[m b c h w] → [m b k]"""
        check_leading(x, self.members)
        rows = x[0] if share_rows(x) else x.flatten(0, 1)
        features = self.run(self.trunk, rows)
        if not self.checked:
            self.check_end(features, self.run.laid_out(rows[:FEW]))
        if share_rows(x):
            return cast(Tensor, self.heads(features.expand(self.members, *features.shape)))
        return cast(Tensor, self.heads(features.unflatten(0, (self.members, -1))))

    def check_end(self, features: Tensor, rows: Tensor) -> None:
        """Raise unless heads take these features of the rows, and the network answers what its head gives."""
        fits = features.dim() == 2 and features.shape[-1] == self.heads.inputs
        unknown = rows.is_meta or torch.compiler.is_compiling()  # where tensors have no numbers
        if not fits or not (unknown or answers_as_head(self.member(0), self.head, rows)):
            raise ValueError(f"the network does more after its classifier '{self.head}': name another `head`")
        self.checked = not unknown

    def member(self, j: int) -> nn.Module:
        """The plain network that member j is, as a copy: [b c h w] → [b k]."""
        check_member(j, self.members)
        return with_head(self.trunk, self.head, self.heads.plain(j))


class Heads(nn.Module):
    """M linear layers of one shape as one: weights [m o i], biases [m o]. [m b i] → [m b o]"""

    def __init__(
        self, classifier: nn.Linear, members: int, factor_std: float | None, rng: torch.Generator | None
    ) -> None:
        super().__init__()
        old, bias = classifier.weight.detach(), classifier.bias
        drawn = [
            fresh_weight(old, rng) if factor_std is None else old * normal(old.shape, old, rng, 1, factor_std)
            for _ in range(members)
        ]
        self.weight = nn.Parameter(torch.stack(drawn))
        start = None if bias is None else torch.zeros_like(bias) if factor_std is None else bias.detach()
        self.bias = None if start is None else nn.Parameter(start.repeat(members, 1))

    @property
    def inputs(self) -> int:
        """How many features a head takes."""
        return self.weight.shape[-1]

    def forward(self, features: Tensor) -> Tensor:
        if self.bias is None:
            return features @ self.weight.mT
        return torch.baddbmm(self.bias[:, None], features, self.weight.mT)

    def plain(self, j: int) -> nn.Linear:
        """Head j as an ordinary layer, a copy."""
        outputs, inputs = self.weight[j].shape
        plain: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=self.bias is not None)
        plain.weight = nn.Parameter(self.weight[j].detach().clone())
        if self.bias is not None:
            plain.bias = nn.Parameter(self.bias[j].detach().clone())
        return plain


def fresh_weight(like: Tensor, rng: torch.Generator | None) -> Tensor:
    """A weight of the same shape as PyTorch's own Linear draws it, where the old one lives."""
    device = like.device if rng is None else rng.device
    weight = torch.empty(like.shape, device=device)
    return nn.init.kaiming_uniform_(weight, a=5**0.5, generator=rng).to(like)


def find_head(network: nn.Module, head: str | None) -> tuple[str, nn.Linear]:
    """The name of a network's classifier and the layer itself: the last in the network unless named."""
    modules = dict(network.named_modules())
    name = list(modules)[-1] if head is None else head
    if name not in modules:
        raise ValueError(f"the network has no layer '{name}' to put heads in place of")
    layer = modules[name]
    if type(layer) is not nn.Linear:
        kind = type(layer).__name__
        raise ValueError(
            f"layer '{name}' ({kind}) is no plain Linear: name the network's classifier as `head`"
        )
    return name, layer


def answers_as_head(network: nn.Module, head: str, rows: Tensor) -> bool:
    """Whether a network, a copy that was made for this, answers just what its layer of that name gives."""
    given: list[Tensor] = []
    without_hooks(network).get_submodule(head).register_forward_hook(
        lambda layer, inputs, output: given.append(output)
    )
    with torch.no_grad():
        answers = network.eval()(rows)
    same = len(given) == 1 and answers.shape == given[0].shape
    return same and torch.allclose(answers, given[0], rtol=0, atol=0, equal_nan=True)


def with_head(network: nn.Module, name: str, head: nn.Module) -> nn.Module:
    """A copy of a network with another layer in the place of one that is named."""
    network = copy.deepcopy(network)
    old = network.get_submodule(name)
    return replace(network, lambda module: head if module is old else None)
