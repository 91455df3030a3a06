"""What all ensembles have in common."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from polyphony.metrics import Predictions
from polyphony.nn.folding import fold_norms
from polyphony.parallel import whole


class Ensemble(nn.Module):
    """M predictors in one module: each member's logits on its own rows. [m b c h w] → [m b k]"""

    members: int
    expects_diversity: bool = True  # whether members that become alike in training are worth a warning
    predicts: type[Predictions] = Predictions  # what its logits are

    @property
    def device(self) -> torch.device:
        """Where its weights are, and so its inputs; the CPU for one without any."""
        return next((weight.device for weight in self.parameters()), torch.device("cpu"))

    def assign(self, size: int, rng: torch.Generator, device: torch.device | str = "cpu") -> Tensor:
        """Which example of a batch each member sees in each row: here every one, in order. [m size]

        Members that see the same rows are said to do so by a stride of 0 over members. Where several
        processes train, these are a process's own rows; indices of any other stride are of the whole batch.
        """
        return torch.arange(size, device=device).as_strided((self.members, size), (0, 1))

    def own_parameters(self) -> Iterator[nn.Parameter]:
        """What `fit` teaches M times as fast, with an M-th of the weight decay: here nothing.

        For what is a member's own in a loss that is a mean over members, which leaves it an M-th of its
        gradient.
        """
        return iter(())

    def folded(self) -> Ensemble:
        """The same in eval mode, quicker: a copy with BatchNorm folded into convolutions."""
        quick = copy.deepcopy(self).eval()
        for name, part in quick.named_children():
            setattr(quick, name, fold_norms(part))
        return quick

    if TYPE_CHECKING:

        def __call__(self, x: Tensor) -> Tensor: ...


def as_seen(batch: Tensor, seen: Tensor) -> Tensor:
    """Each member's rows of a batch, batch[seen]. [b …], [m rows] → [m rows …]

    Where all members see the same rows the result is expanded too: a view of one member's rows, so that an
    ensemble may notice (`share_rows`) and do once what is the same for all.
    """
    batch = known_to(seen, batch)
    if share_rows(seen):
        rows = batch[seen[0]]
        return rows.expand(len(seen), *rows.shape)
    return batch[seen]


def known_to(seen: Tensor, batch: Tensor, dim: int = 0) -> Tensor:
    """The rows that `Ensemble.assign` counts in: a process's own of a batch, or those of all processes."""
    return batch if seen.stride(0) == 0 else whole(batch, dim)


def share_rows(x: Tensor) -> bool:
    """Whether the members' rows are one and the same in memory, as in x.expand(members, …). [m …]"""
    return len(x) == 1 or x.stride(0) == 0


def channels_last(network: nn.Module) -> nn.Module:
    """The network with its weights laid out as convolutions run fastest."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def check_members(x: Tensor, members: int) -> None:
    """Raise unless the leading dimension is the members'."""
    if len(x) != members:
        raise ValueError(f"inputs [m b …] for {members} members have a leading dimension of {len(x)}")


def by_rows(network: nn.Module, x: Tensor, members: int) -> Tensor:
    """The outputs of a network whose rows are folded, member-major. [m b c h w] → [m b k]"""
    check_members(x, members)
    rows = x.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    outputs: Tensor = network(rows).unflatten(0, (members, -1))
    return outputs


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A module in eval mode for a while, then as it was."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():  # one by one: some part may be frozen
            part.training = mode
