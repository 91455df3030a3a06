"""The networks a recipe can name."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, field_validator

from polyphony.nn import ResNet, WideResNet, resnet, wide_resnet
from polyphony.recipe.foreign import NetworkTable, PythonNetwork
from polyphony.recipe.libraries import TimmNetwork, TransformersNetwork

DEEPEST = 2_000


class ResNetTable(NetworkTable):
    """ResNet of depth 6n + 2."""

    kind: Literal["resnet"]
    depth: int
    width: Annotated[int, Field(gt=0, le=4096)] = 16

    @field_validator("depth")
    @classmethod
    def _has_whole_stages(cls, depth: int) -> int:
        if not 8 <= depth <= DEEPEST or (depth - 2) % 6:
            raise ValueError("must be 6n + 2 (8, 14, 20, 32, …) for a ResNet")
        return depth

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> ResNet:
        return resnet(self.depth, classes, channels, self.width, rng)


class WideResNetTable(NetworkTable):
    """WideResNet of depth 6n + 4."""

    kind: Literal["wide_resnet"]
    depth: int
    widen: Annotated[int, Field(gt=0, le=256)]

    @field_validator("depth")
    @classmethod
    def _has_whole_stages(cls, depth: int) -> int:
        if not 10 <= depth <= DEEPEST or (depth - 4) % 6:
            raise ValueError("must be 6n + 4 (10, 16, 22, 28, …) for a WideResNet")
        return depth

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> WideResNet:
        return wide_resnet(self.depth, self.widen, classes, channels, rng)


Network = Annotated[
    ResNetTable | WideResNetTable | PythonNetwork | TimmNetwork | TransformersNetwork,
    Field(discriminator="kind"),
]
