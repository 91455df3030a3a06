"""A student of networks that share nothing: the baseline of all that share weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from torch import nn

from polyphony.ensembles.deep import DeepEnsemble, Networks
from polyphony.nn.folding import fold_norms


class Separate(Networks):
    """M networks that share nothing, each taught by its own teacher.

    Their loss is a mean over members, which leaves each an M-th of its gradient. As `own_parameters` each
    trains as it would be trained alone.

    Args:
        networks: Classifiers that take pixels in [0, 1] `[b c h w]` and return logits `[b k]`.

    Examples:
        >>> student = Separate([resnet(8, classes=10, width=8) for _ in range(4)])
        >>> student(torch.rand(4, 2, 3, 32, 32)).shape
        torch.Size([4, 2, 10])
    """

    scales_gradients = True

    def own_parameters(self) -> Iterator[nn.Parameter]:
        """All of them."""
        return self.networks.parameters()

    def member(self, j: int) -> nn.Module:
        """The network that member j is, as a copy: [b c h w] → [b k]."""
        if not 0 <= j < self.members:
            raise IndexError(f"member {j} of {self.members}")
        return copy.deepcopy(self.networks[j])

    def folded(self) -> DeepEnsemble:
        """The same in eval mode, quicker: BatchNorm folded into convolutions where that is safe."""
        return DeepEnsemble([fold_norms(copy.deepcopy(network).eval()) for network in self.networks])
