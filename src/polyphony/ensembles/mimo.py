"""Members that share all weights except those of the first and the last layer: M images in, M answers out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyphony._util.settings import Count, Members, Share, check
from polyphony.compute.parallel import drawn
from polyphony.ensembles.base import Ensemble, NetworkRunner, check_leading


class MIMO(Ensemble):
    """One network that takes M images at once and answers for each (Havasi et al. 2021).

    The network maps [b (m c) h w] → [b (m k)]: member j's image is in channels j·c … (j + 1)·c − 1 and its
    logits are outputs j·k … (j + 1)·k − 1. In training every member sees the batch in its own order, each
    example `batch_repetition` times. In a share `input_repetition` of the rows, all see the same example.
    """

    def __init__(
        self, network: nn.Module, members: int, *, batch_repetition: int = 1, input_repetition: float = 0.0
    ) -> None:
        super().__init__()
        check(Members, members=members)
        check(Count, batch_repetition=batch_repetition)
        check(Share, input_repetition=input_repetition)
        self.members = members
        self.batch_repetition, self.input_repetition = batch_repetition, input_repetition
        self.network, self.runner = network, NetworkRunner(network)

    def assign(self, size: int, rng: torch.Generator, device: torch.device | str = "cpu") -> Tensor:
        """A shuffle of the repeated batch for every member; the last rows are the same for all. [m rows]"""
        return drawn(lambda total: self.orders(total, rng), size, device, dim=1)

    def orders(self, size: int, rng: torch.Generator) -> Tensor:
        """As `assign`, for all rows of a batch of `size` rows. [m rows]"""
        rows = self.batch_repetition * size
        own = rows - round(self.input_repetition * rows)
        order = shuffled(torch.arange(size).repeat(self.batch_repetition), rng)
        return torch.stack(
            [torch.cat([shuffled(order[:own], rng), order[own:]]) for _ in range(self.members)]
        )

    def forward(self, x: Tensor) -> Tensor:
        """[m b c h w] → [m b k]"""
        check_leading(x, self.members)
        logits = self.runner(self.network, x.transpose(0, 1).flatten(1, 2))
        if logits.shape[-1] % self.members:
            raise ValueError(f"{logits.shape[-1]} outputs do not divide among {self.members} members")
        by_member: Tensor = logits.unflatten(-1, (self.members, -1))
        return by_member.transpose(0, 1)


def shuffled(values: Tensor, rng: torch.Generator) -> Tensor:
    """The values in a random order."""
    return values[torch.randperm(len(values), generator=rng)]
