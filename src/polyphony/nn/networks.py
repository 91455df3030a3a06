"""ResNet and WideResNet for small images: take pixels in [0, 1], normalise them, return logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from polyphony._util.settings import Count, check
from polyphony._util.text import SettingError


class Normalize(nn.Module):
    """(x − mean) / std per channel, saved with the weights, so that a network takes pixels in [0, 1].

    Starts as the identity; call `set` with the statistics, for example `Split.statistics`.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        check(Count, channels=channels)
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))

    def set(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Set mean and standard deviation: one number for each channel, or one for all."""
        self.mean.copy_(torch.tensor(mean).view(-1, 1, 1))
        self.std.copy_(torch.tensor(std).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        check_channels(x, self.mean)
        return (x - self.mean) / self.std


@fx.wrap
def check_channels(x: Tensor, mean: Tensor) -> None:
    """Raise a SettingError for a wrong number of channels; one channel would be broadcast silently."""
    if len(mean) not in (1, x.shape[-3]):
        raise SettingError(f"the images have {x.shape[-3]} channels, the network takes {len(mean)}")


def initialise(network: nn.Module, rng: torch.Generator | None) -> None:
    """Draw the weights: Kaiming normal by fan-out for Conv2d and the classifier, whose bias is zero."""
    for module in network.modules():
        if not isinstance(module, nn.Conv2d | nn.Linear) or module.weight.is_meta:
            continue  # nothing to draw on the meta device, and PyTorch would take seconds
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=rng)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


def stages(block: Callable[[int, int, int], nn.Module], widths: Sequence[int], blocks: int) -> nn.Sequential:
    """A stage of `blocks` blocks for each width after the first; all but the first halve the resolution."""
    return nn.Sequential(
        *(
            nn.Sequential(
                block(inputs, outputs, 1 if k == 0 else 2),
                *(block(outputs, outputs, 1) for _ in range(blocks - 1)),
            )
            for k, (inputs, outputs) in enumerate(pairwise(widths))
        )
    )


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
        """The input itself; if the shape changes, every second pixel with zero channels appended."""
        if self.stride == 1 and self.missing == 0:
            return x
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.missing))


class ResNet(nn.Module):
    """ResNet (He et al. 2016): post-activation blocks, shortcuts without parameters.

    Stem, three stages of `depth // 6` blocks of 1, 2, 4 × `width` channels, mean pool, classifier. With a
    stem of `stride` 2, all stages have half the resolution, and an answer costs about a quarter.
    """

    def __init__(self, depth: int, classes: int, channels: int = 3, width: int = 16, stride: int = 1) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"a ResNet has depth 6n + 2 (8, 14, 20, 32, …), not {depth}")
        check(Count, width=width, classes=classes, stride=stride)
        self.normalize = Normalize(channels)
        self.stem = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.stages = stages(BasicBlock, [width, width, 2 * width, 4 * width], depth // 6)
        self.classifier = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn(self.stem(self.normalize(x))), inplace=True)
        return self.classifier(self.stages(y).mean((2, 3)))  # type: ignore[no-any-return]


def resnet(
    depth: int,
    classes: int,
    channels: int = 3,
    width: int = 16,
    rng: torch.Generator | None = None,
    stride: int = 1,
) -> ResNet:
    """A ResNet with fresh weights: pixels [b c h w] in [0, 1] → logits [b k].

    Args:
        depth: 6n + 2: 8, 14, 20, 32, …; depth 32 with three channels and ten classes has 464,154 weights.
        classes: Number of classes.
        channels: 1 for grey images, 3 for colour.
        width: Channels of the first stage.
        rng: Source of the weights.
        stride: Stride of the first convolution.

    Examples:
        >>> sum(weight.numel() for weight in resnet(32, classes=10).parameters())
        464154
    """
    network = ResNet(depth, classes, channels, width, stride)
    initialise(network, rng)
    return network


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
    """WideResNet (Zagoruyko & Komodakis 2016): pre-activation, projections of the raw input, no dropout.

    Stem, three stages of `(depth − 4) / 6` blocks of 16, 32, 64 × `widen` channels, pool, classifier.
    """

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
