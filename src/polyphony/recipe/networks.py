"""The networks a recipe can name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt, field_validator
from torch import nn

from polyphony.nn import Normalize, ResNet, WideResNet, resnet, wide_resnet
from polyphony.recipe.python import PythonTable, seeded
from polyphony.recipe.table import RecipeError, Table


class NetworkTable(Table):
    """A network by its kind. It takes pixels in [0, 1], and normalises them itself."""

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> nn.Module:
        """The network with fresh weights."""
        raise NotImplementedError

    def normalize(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        """Let a network that was built normalise by these statistics of the data."""
        network.normalize.set(mean, std)  # type: ignore[operator, union-attr]


class ResNetTable(NetworkTable):
    """ResNet of depth 6n + 2."""

    kind: Literal["resnet"]
    depth: int
    width: PositiveInt = 16

    @field_validator("depth")
    @classmethod
    def _has_whole_stages(cls, depth: int) -> int:
        if depth < 8 or (depth - 2) % 6:
            raise ValueError("must be 6n + 2 (8, 14, 20, 32, …) for a ResNet")
        return depth

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> ResNet:
        return resnet(self.depth, classes, channels, self.width, rng)


class WideResNetTable(NetworkTable):
    """WideResNet of depth 6n + 4."""

    kind: Literal["wide_resnet"]
    depth: int
    widen: PositiveInt

    @field_validator("depth")
    @classmethod
    def _has_whole_stages(cls, depth: int) -> int:
        if depth < 10 or (depth - 4) % 6:
            raise ValueError("must be 6n + 4 (10, 16, 22, 28, …) for a WideResNet")
        return depth

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> WideResNet:
        return wide_resnet(self.depth, self.widen, classes, channels, rng)


class PythonNetwork(PythonTable, NetworkTable):
    """One of the user's own: what is named is called with `classes`, `channels` and its `args`."""

    kind: Literal["python"]

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> nn.Module:
        with seeded(rng):
            network = self.make(classes=classes, channels=channels)
        if not isinstance(network, nn.Module):
            raise RecipeError(f"'{self.name}' makes a {type(network).__name__}, not a torch.nn.Module")
        return network

    def normalize(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        """It normalises as it likes; one with a `Normalize` of ours in front is told the statistics."""
        if isinstance(getattr(network, "normalize", None), Normalize):
            super().normalize(network, mean, std)


Network = Annotated[ResNetTable | WideResNetTable | PythonNetwork, Field(discriminator="kind")]
