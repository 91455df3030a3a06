"""Means over the steps of an epoch, and the error for a loss that is not finite."""

from __future__ import annotations

import torch
from torch import Tensor

from polyphony.compute.parallel import Group


class DivergedError(RuntimeError):
    """The loss is not a finite number."""


class Tally:
    """Collects the loss's terms of an epoch's steps. They stay on the device until `read` synchronises."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rows: list[int] = []  # size of each step's batch, over all processes
        self.recent: list[Tensor] = []  # terms of the steps since the last `read`, on the device
        self.earlier: list[Tensor] = []  # terms of the steps before, on the CPU

    @property
    def steps(self) -> int:
        return len(self.rows)

    def add(self, terms: dict[str, Tensor]) -> None:
        """Add the terms of a step: means over this process's rows."""
        self.names = list(terms)
        self.recent.append(torch.stack([value.detach() for value in terms.values()]) * self.group.weight)
        self.rows.append(self.group.total)

    def read(self, epoch: int, steps: int) -> dict[str, float]:
        """Means over all images so far; raises a DivergedError if the loss of a step is not finite."""
        recent = self.group.sum(torch.stack(self.recent)).cpu().double()
        losses = recent[:, self.names.index("loss")]
        if not bool(losses.isfinite().all()):
            bad = int((~losses.isfinite()).nonzero()[0])
            raise DivergedError(
                f"the loss is {float(losses[bad])} at step {self.steps - len(losses) + bad + 1} of {steps}"
                f" in epoch {epoch + 1}; {advice(epoch)}"
            )
        self.earlier, self.recent = [*self.earlier, recent], []
        weights = torch.tensor(self.rows, dtype=torch.float64) / sum(self.rows)
        return dict(zip(self.names, (weights @ torch.cat(self.earlier)).tolist(), strict=True))


def advice(epoch: int) -> str:
    """The last good checkpoint before an epoch (counted from 0) that diverged, and what to change."""
    saved = (
        f"the last good checkpoint is that of epoch {epoch}" if epoch else "there is no good checkpoint yet"
    )
    return f"{saved}: lower the learning rate or the step size"
