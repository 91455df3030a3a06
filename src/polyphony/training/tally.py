"""Collects what the steps of an epoch report: means over images, and losses that are not finite."""

from __future__ import annotations

import torch
from torch import Tensor

from polyphony.compute.parallel import Group


class DivergedError(RuntimeError):
    """The loss is not a finite number."""


class Tally:
    """Reports of the steps of an epoch. They stay on the device; `look` synchronises."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rows: list[int] = []  # rows of every step's batch
        self.recent: list[Tensor] = []  # reports of the steps since the last look
        self.seen: list[Tensor] = []  # earlier reports, on the CPU

    @property
    def steps(self) -> int:
        return len(self.rows)

    def add(self, means: dict[str, Tensor]) -> None:
        """Add a step's means over this process's rows."""
        self.names = list(means)
        self.recent.append(torch.stack([value.detach() for value in means.values()]) * self.group.weight)
        self.rows.append(self.group.total)

    def look(self, epoch: int, steps: int) -> dict[str, float]:
        """Means over all images so far; a DivergedError that names the step if a loss is not finite."""
        recent = self.group.sum(torch.stack(self.recent)).cpu().double()
        losses = recent[:, self.names.index("loss")]
        if not bool(losses.isfinite().all()):
            bad = int((~losses.isfinite()).nonzero()[0])
            raise DivergedError(
                f"the loss is {float(losses[bad])} at step {self.steps - len(losses) + bad + 1} of {steps}"
                f" in epoch {epoch + 1}; {last_good(epoch)}"
            )
        self.seen, self.recent = [*self.seen, recent], []
        weights = torch.tensor(self.rows, dtype=torch.float64) / sum(self.rows)
        return dict(zip(self.names, (weights @ torch.cat(self.seen)).tolist(), strict=True))


def last_good(epoch: int) -> str:
    """What is left after an epoch failed, and what to do."""
    kept = (
        f"the last good checkpoint is that of epoch {epoch}" if epoch else "there is no good checkpoint yet"
    )
    return f"{kept}: lower the learning rate or the step size"
