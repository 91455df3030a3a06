"""The networks a recipe can name."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field

from polyphony.nn import ResNet, WideResNet, resnet, wide_resnet
from polyphony.recipe.foreign import NetworkTable, PythonNetwork
from polyphony.recipe.libraries import TimmNetwork, TransformersNetwork

DEEPEST = 2_000


def depths(least: int, words: str) -> AfterValidator:
    """A validator of depths: the smallest, or any multiple of six more."""

    def has_whole_stages(depth: int) -> int:
        if depth not in range(least, DEEPEST + 1, 6):
            raise ValueError(f"must be {words}")
        return depth

    return AfterValidator(has_whole_stages)


class ResNetTable(NetworkTable):
    """ResNet of depth 6n + 2."""

    width_key: ClassVar[str] = "width"
    kind: Literal["resnet"]
    depth: Annotated[int, depths(8, "6n + 2 (8, 14, 20, 32, …) for a ResNet")]
    """Number of layers, 6n + 2."""
    width: Annotated[int, Field(gt=0, le=4096)] = 16
    """Channels of the first stage."""

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> ResNet:
        return resnet(self.depth, classes, channels, self.width, rng)


class WideResNetTable(NetworkTable):
    """WideResNet of depth 6n + 4."""

    width_key: ClassVar[str] = "widen"
    kind: Literal["wide_resnet"]
    depth: Annotated[int, depths(10, "6n + 4 (10, 16, 22, 28, …) for a WideResNet")]
    """Number of layers, 6n + 4."""
    widen: Annotated[int, Field(gt=0, le=256)]
    """Widening factor."""

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> WideResNet:
        return wide_resnet(self.depth, self.widen, classes, channels, rng)


Network = Annotated[
    ResNetTable | WideResNetTable | PythonNetwork | TimmNetwork | TransformersNetwork,
    Field(discriminator="kind"),
]
