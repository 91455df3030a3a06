"""Unusual networks: each does something that may make a conversion to members wrong. [b 3 8 8] → [b 5]"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, CLASSES = 12, 5


class Patches(nn.Module):
    """4 × 4 patches as tokens, two layers in the order of `mix`, their mean, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, WIDTH, 2, stride=2)
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def mix(self, tokens: Tensor) -> Tensor:
        return self.down(self.up(tokens).relu())

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).mT  # [b t c]
        return self.head((tokens + self.mix(tokens)).mean(1))


class TokensFirst(Patches):
    """[t b c], the default order of nn.MultiheadAttention."""

    def mix(self, tokens: Tensor) -> Tensor:
        return super().mix(tokens.transpose(0, 1)).transpose(0, 1)


class TimeMajor(Patches):
    """[(t b) c]: every patch of all images, then the next patch of all images."""

    def mix(self, tokens: Tensor) -> Tensor:
        b, t, _ = tokens.shape
        return super().mix(tokens.transpose(0, 1).flatten(0, 1)).unflatten(0, (t, b)).transpose(0, 1)


class WindowsFirst(Patches):
    """[(w b) t c]: window after window, each of all images; with one window this order cannot be noticed."""

    def mix(self, tokens: Tensor) -> Tensor:
        b, t, _ = tokens.shape
        windows = tokens.unflatten(1, (max(1, t // 8), -1)).transpose(0, 1)
        return super().mix(windows.flatten(0, 1)).unflatten(0, (-1, b)).transpose(0, 1).flatten(1, 2)


class WindowsLast(Patches):
    """[(b w) t c], as in Swin: an image's windows stay together."""

    def mix(self, tokens: Tensor) -> Tensor:
        windows = tokens.unflatten(1, (2, -1))
        return super().mix(windows.flatten(0, 1)).view_as(windows).flatten(1, 2)


class PositionTable(Patches):
    """Adds to tokens the output of an MLP on a table, like the position bias of Swin V2."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, WIDTH))
        self.register_buffer("table", torch.stack(torch.meshgrid(2 * [torch.arange(4.0)], indexing="ij"), -1))

    def mix(self, tokens: Tensor) -> Tensor:
        return super().mix(tokens + self.place(self.table).flatten(0, 1))


class BatchMean(Patches):
    """Subtracts the mean over the batch: an image's logits depend on the other images."""

    def mix(self, tokens: Tensor) -> Tensor:
        return super().mix(tokens - tokens.mean(0))


class FirstRow(Patches):
    """Subtracts the features of the first image of the batch."""

    def mix(self, tokens: Tensor) -> Tensor:
        return super().mix(tokens - tokens[:1])


class Reversed(Patches):
    """Reverses the order of the rows, and restores it later."""

    def mix(self, tokens: Tensor) -> Tensor:
        return super().mix(tokens.flip(0)).flip(0)


class BareWeight(Patches):
    """Reads a layer's weight and bias without calling it, like the qkv of BEiT and Swin V2 in timm."""

    def mix(self, tokens: Tensor) -> Tensor:
        return self.down(F.linear(tokens, self.up.weight, self.up.bias).relu())


class Curious(Patches):
    """Reads attributes of its layers before it calls them, like ViT in transformers."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.embed.stride == self.embed.kernel_size
        assert (self.up.in_features, self.head.out_features) == (WIDTH, CLASSES)
        assert self.up.bias is not None
        return super().forward(x.to(self.embed.weight.dtype))


class ByBatchSize(Patches):
    """Calls other layers for a large batch than for a small one."""

    def mix(self, tokens: Tensor) -> Tensor:
        return super().mix(tokens) if len(tokens) > 2 else self.up(self.down(tokens).relu())


class SameLayerTwice(Patches):
    """Calls one layer twice: with tokens first, and with images first."""

    def mix(self, tokens: Tensor) -> Tensor:
        return self.up(self.up(tokens.transpose(0, 1)).transpose(0, 1).relu())


class Random(Patches):
    """Adds noise at test time too."""

    def mix(self, tokens: Tensor) -> Tensor:
        return super().mix(tokens + torch.randn_like(tokens))


class Normed(TimeMajor):
    """Time-major, with BatchNorm over all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def mix(self, tokens: Tensor) -> Tensor:
        return super().mix(self.norm(tokens.mT).mT)


class BareWeightNormed(BareWeight):
    """Reads a layer's weight without calling it, with BatchNorm over all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


class Viewed(nn.Module):
    """`view(b, -1)` after a convolution, which channels_last does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)
        self.out = nn.Linear(4 * 36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.norm(x)).relu()
        return self.out(y.view(len(y), -1))


class Shortcut(nn.Module):
    """A strided 1 × 1 convolution of the image, as in RepVGG and MobileOne."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.slim = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(3, 8, 1, stride=2)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((self.wide(x) + self.slim(x)).relu().mean((2, 3)))


class Standardised(nn.Conv2d):
    """A convolution that standardises its weight before use."""

    def forward(self, x: Tensor) -> Tensor:
        mean, std = self.weight.mean((1, 2, 3), keepdim=True), self.weight.std((1, 2, 3), keepdim=True)
        return self._conv_forward(x, (self.weight - mean) / std, self.bias)


class SamePadding(nn.Conv2d):
    """A convolution that pads as TensorFlow does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 1, 0, 1)))


class HalfLinear(nn.Linear):
    """A linear layer that scales its bias."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, None if self.bias is None else self.bias / 2)


def subclasses() -> nn.Module:
    """Subclasses of Conv2d and Linear that prepare a weight, padding or bias before the usual operation."""
    convs = Standardised(3, 8, 3, padding=1, groups=1), SamePadding(8, 8, 2, groups=2)
    return nn.Sequential(*convs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.ReLU(), HalfLinear(8, CLASSES))


class Attention(Patches):
    """PyTorch's own attention, tokens first."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2)

    def mix(self, tokens: Tensor) -> Tensor:
        tokens = tokens.transpose(0, 1)
        return super().mix(self.attention(tokens, tokens, tokens)[0]).transpose(0, 1)


class Recurrent(Patches):
    """An LSTM over patches."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.line = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.Conv1d(WIDTH, WIDTH, 1)

    def mix(self, tokens: Tensor) -> Tensor:
        return super().mix(self.line(self.lstm(tokens)[0].mT).mT)


class InADict(Patches):
    """Returns logits among other values."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"features": self.embed(x), "logits": super().forward(x)}


class CoupledInLargeBatches(Patches):
    """Rows depend on each other only in batches of more than eight."""

    def mix(self, tokens: Tensor) -> Tensor:
        return super().mix(tokens - tokens.mean(0) if len(tokens) > 8 else tokens)


class Prepared(nn.Linear):
    """Prepares its weight once in eval mode, and keeps it until it trains again."""

    kept: Tensor | None = None

    def train(self, mode: bool = True) -> Prepared:
        self.kept = None
        return super().train(mode)

    def prepared(self) -> Tensor:
        return self.weight / self.weight.norm()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return F.linear(x, self.prepared(), self.bias)
        self.kept = self.prepared() if self.kept is None else self.kept
        return F.linear(x, self.kept, self.bias)


class PreparedForever(Prepared):
    """The same, but keeps the weight even after training."""

    def train(self, mode: bool = True) -> Prepared:
        return nn.Linear.train(self, mode)


class PreparesWeights(Patches):
    """One of its layers keeps a prepared weight."""

    def __init__(self, kind: type[Prepared] = Prepared) -> None:
        super().__init__()
        self.up = kind(WIDTH, WIDTH)


class ReadsOnce(Patches):
    """Reads a layer's weight in its first run in eval mode, and keeps it."""

    kept: Tensor | None = None

    def mix(self, tokens: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = self.up.weight * 2
        return self.down(F.linear(tokens, self.kept).relu())


class InChunks(Patches):
    """Works in chunks of a fixed number of rows, and rejects other batch sizes."""

    def __init__(self, chunk: int = 4) -> None:
        super().__init__()
        self.chunk = chunk

    def mix(self, tokens: Tensor) -> Tensor:
        return super().mix(tokens.unflatten(0, (-1, self.chunk))).flatten(0, 1)
