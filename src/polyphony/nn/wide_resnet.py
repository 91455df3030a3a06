"""WideResNet (Zagoruyko & Komodakis 2016): pre-activation, projections on the raw input, no dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyphony._util.settings import Count, check
from polyphony.nn.common import Normalize, initialise, stages


class WideBlock(nn.Module):
    """shortcut(x) + conv(relu(bn(conv(relu(bn(x))))))."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        keeps_shape = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if keeps_shape else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.bn1(x), inplace=True))
        y = self.conv2(F.relu(self.bn2(y), inplace=True))
        y += self.shortcut(x)
        return y  # type: ignore[no-any-return]


class WideResNet(nn.Module):
    """Stem, three stages of `(depth − 4) / 6` blocks of 16, 32, 64 × `widen` channels, pool, classifier."""

    def __init__(self, depth: int, widen: int, classes: int, channels: int = 3) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"a WideResNet has depth 6n + 4 (10, 16, 22, 28, …), not {depth}")
        check(Count, widen=widen, classes=classes)
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.normalize = Normalize(channels)
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.stages = stages(WideBlock, widths, (depth - 4) // 6)
        self.bn = nn.BatchNorm2d(widths[3])
        self.classifier = nn.Linear(widths[3], classes)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn(self.stages(self.stem(self.normalize(x)))), inplace=True)
        return self.classifier(y.mean((2, 3)))  # type: ignore[no-any-return]


def wide_resnet(
    depth: int, widen: int, classes: int, channels: int = 3, rng: torch.Generator | None = None
) -> WideResNet:
    """A WideResNet with fresh weights: pixels [b c h w] in [0, 1] → logits [b k].

    Args:
        depth: 6n + 4: 10, 16, 22, 28, ….
        widen: Widening factor.
        classes: Number of classes.
        channels: 1 for grey images, 3 for colour.
        rng: Source of the weights.

    Examples:
        >>> wide_resnet(10, widen=1, classes=10)(torch.rand(2, 3, 16, 16)).shape
        torch.Size([2, 10])
    """
    network = WideResNet(depth, widen, classes, channels)
    initialise(network, rng)
    return network
