"""Members with low-rank matrices and their own classifiers, in a trained network."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from polyphony._util.settings import Count, check
from polyphony.ensembles.batch_ensemble import MembersInside
from polyphony.ensembles.hydra import Heads, find_head
from polyphony.nn import Size
from polyphony.nn.conversion import trainable_copy
from polyphony.nn.low_rank import LowRank, OwnWeights, adapted_layers, draw_low_rank
from polyphony.nn.members import layers_to_convert, replace_layers
from polyphony.nn.rank_one import MemberLayer
from polyphony.nn.trial import find_order


class LoRAEnsemble(MembersInside):
    """One network whose members have weights W + B_j A_j and their own classifiers (LoRA-Ensemble, 2024).

    Args:
        network: Any network of Conv2d and Linear layers, usually a trained one. It is copied.
        members: M.
        rank: r, the rank of B_j A_j.
        layers: Names of modules to adapt, with all layers inside them, or patterns ("blocks.*.attn.*").
            Default: the linear layers of attention, or every Linear and Conv2d of a network that has none.
        head: Name of the classifier (default: the last Linear).
        factor_std: Classifiers start as the network's, each weight times N(1, factor_std²) (default: random).
        freeze: Whether only A, B and the classifiers are trained.
        rng: Source of A and of the classifiers. B starts at zero.
        size: (channels, height, width) of the images with which the conversion is tested.

    Raises:
        ConversionError: A layer cannot have members; the message names it.

    Examples:
        >>> student = LoRAEnsemble(resnet(8, classes=10), members=4, rank=2)
        >>> student(torch.rand(4, 2, 3, 32, 32)).shape
        torch.Size([4, 2, 10])
    """

    def __init__(
        self,
        network: nn.Module,
        members: int,
        *,
        rank: int = 8,
        layers: tuple[str, ...] = (),
        head: str | None = None,
        factor_std: float | None = None,
        freeze: bool = False,
        rng: torch.Generator | None = None,
        size: Size | None = None,
    ) -> None:
        check(Count, rank=rank)
        network = trainable_copy(network)
        linear = [name for name, layer in network.named_modules() if type(layer) is nn.Linear]
        head, classifier = find_head(network, head or next(reversed(linear), None))
        heads = Heads(classifier, members, factor_std, rng)
        modules = [named for named in adapted_layers(network, layers) if named[1] is not classifier]
        adapted = layers_to_convert(modules, member_norm=False, options=("layers",))
        names = {network.get_submodule(name): name for name in adapted}

        def make(layer: nn.Module) -> MemberLayer:
            if layer is classifier:
                bias = None if heads.bias is None else heads.bias.detach()
                return OwnWeights(classifier, heads.weight.detach(), bias)
            assert isinstance(layer, nn.Conv2d | nn.Linear)
            return draw_low_rank(layer, names[layer], members, rank, rng)

        find = partial(find_order, network, [*names.values(), head], size, options=("layers",))
        converted = replace_layers(network, members, make, find, inplace=True)
        super().__init__(converted, members, size)
        if freeze:
            self.requires_grad_(False)
            for layer in self.modules():
                if isinstance(layer, LowRank | OwnWeights):
                    layer.requires_grad_(True).shared.requires_grad_(False)
