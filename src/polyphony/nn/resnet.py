"""ResNet for small images (He et al. 2016): post-activation blocks, shortcuts without parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyphony._util.settings import Count, check
from polyphony.nn.common import Normalize, initialise, stages


class BasicBlock(nn.Module):
    """relu(shortcut(x) + bn(conv(relu(bn(conv(x))))))."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.missing = stride, outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)

    def shortcut(self, x: Tensor) -> Tensor:
        """The input itself; where the shape changes, every second pixel with zero channels appended."""
        if self.stride == 1 and self.missing == 0:
            return x
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.missing))


class ResNet(nn.Module):
    """Stem, three stages of `depth // 6` blocks of 1, 2, 4 × `width` channels, mean pool, classifier."""

    def __init__(self, depth: int, classes: int, channels: int = 3, width: int = 16) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"a ResNet has depth 6n + 2 (8, 14, 20, 32, …), not {depth}")
        check(Count, width=width, classes=classes)
        self.normalize = Normalize(channels)
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.stages = stages(BasicBlock, [width, width, 2 * width, 4 * width], depth // 6)
        self.classifier = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn(self.stem(self.normalize(x))), inplace=True)
        return self.classifier(self.stages(y).mean((2, 3)))  # type: ignore[no-any-return]


def resnet(
    depth: int, classes: int, channels: int = 3, width: int = 16, rng: torch.Generator | None = None
) -> ResNet:
    """A ResNet with fresh weights: pixels [b c h w] in [0, 1] → logits [b k].

    Args:
        depth: 6n + 2: 8, 14, 20, 32, …; depth 32 with three channels and ten classes has 464,154 weights.
        classes: Number of classes.
        channels: 1 for grey images, 3 for colour.
        width: Channels of the first stage.
        rng: Source of the weights.

    Examples:
        >>> sum(weight.numel() for weight in resnet(32, classes=10).parameters())
        464154
    """
    network = ResNet(depth, classes, channels, width)
    initialise(network, rng)
    return network
