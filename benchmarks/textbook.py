"""The method as a textbook writes it, as a baseline for ours: same functions, same parameters, same names.

BatchEnsemble layers multiply activations by r before and by s after the shared layer, with the factors
repeated for every row (Wen et al. 2019). Tensors are NCHW. BatchNorm of the teachers is not folded. The ODS
direction is computed as in the code published with ODS (Tashiro et al. 2020): backward() through w·softmax,
then x.grad. The teacher's parameters require gradients there, so unused gradients are computed, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Plain(nn.Module):
    """A convolution or linear layer of a teacher, the same for every row."""

    def __init__(self, shared: nn.Conv2d | nn.Linear, members: int) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        return self.shared(x)


class RankOne(nn.Module):
    """x ↦ s_j ∘ W (r_j ∘ x) + b_j for the rows of member j; rows are ordered by member."""

    def __init__(self, shared: nn.Conv2d | nn.Linear, members: int) -> None:
        super().__init__()
        self.shared = shared
        inputs = shared.in_channels if isinstance(shared, nn.Conv2d) else shared.in_features
        self.r = nn.Parameter(torch.ones(members, inputs))
        self.s = nn.Parameter(torch.ones(members, len(shared.weight)))
        self.bias = None
        if shared.bias is not None:
            self.bias = nn.Parameter(torch.zeros(members, len(shared.weight)))
            shared.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(x * for_rows(self.r, x)) * for_rows(self.s, x)
        return x if self.bias is None else x + for_rows(self.bias, x)


def for_rows(factor: Tensor, x: Tensor) -> Tensor:
    """Each member's factor, repeated for each of its rows. [m c] → [(m b) c …]"""
    rows = factor.repeat_interleave(len(x) // len(factor), dim=0)
    return rows.view(*rows.shape, *(1 for _ in x.shape[2:]))


class Block(nn.Module):
    """relu(shortcut(x) + bn(conv(relu(bn(conv(x))))))."""

    def __init__(self, inputs: int, outputs: int, stride: int, layer: type, members: int) -> None:
        super().__init__()
        self.stride, self.missing = stride, outputs - inputs
        self.conv1 = layer(nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), members)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = layer(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), members)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.missing:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.missing))
        return F.relu(x + y)


class ResNet(nn.Module):
    """The ResNet of `polyphony.nn` with layers of the type `layer`. [(m b) c h w] → [(m b) k]"""

    def __init__(self, depth: int, classes: int, layer: type = Plain, members: int = 1) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, 1, 1))
        self.register_buffer("std", torch.ones(3, 1, 1))
        self.stem = layer(nn.Conv2d(3, 16, 3, padding=1, bias=False), members)
        self.bn = nn.BatchNorm2d(16)
        stages = []
        for inputs, outputs, stride in [(16, 16, 1), (16, 32, 2), (32, 64, 2)]:
            shapes = [(inputs, outputs, stride), *(depth // 6 - 1) * [(outputs, outputs, 1)]]
            stages.append(nn.Sequential(*(Block(*shape, layer, members) for shape in shapes)))
        self.stages = nn.Sequential(*stages)
        self.classifier = layer(nn.Linear(64, classes), members)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn(self.stem((x - self.mean) / self.std)))
        y = self.stages(y)
        return self.classifier(F.adaptive_avg_pool2d(y, 1).flatten(1))


def load(network: ResNet, ours: nn.Module) -> ResNet:
    """Copy the weights of our network, plain or with members, into the textbook's."""
    weights = {name.removeprefix("normalize."): value for name, value in ours.state_dict().items()}
    for name in network.state_dict():
        if name not in weights:  # our plain layers are not wrapped
            weights[name] = weights.pop(name.replace(".shared.", "."))
    network.load_state_dict(weights)
    return network


@dataclass(frozen=True)
class Distill:
    """The loss of Algorithm 1 with ConfODS. The caller draws the teacher's index and the guides [b k]."""

    teachers: Sequence[ResNet]
    alpha: float = 0.9
    temperature: float = 4.0
    step_size: float = 1 / 255

    def __call__(self, student: ResNet, x: Tensor, y: Tensor, source: int, guide: Tensor) -> Tensor:
        members = len(self.teachers)
        x_tilde = self.perturb(x, self.teachers[source], guide)
        with torch.no_grad():
            targets = torch.cat([teacher(x_tilde) for teacher in self.teachers])
        clean = student(x.repeat(members, 1, 1, 1))
        perturbed = student(x_tilde.repeat(members, 1, 1, 1))
        ce = F.cross_entropy(clean, y.repeat(members))
        log_q = F.log_softmax(perturbed / self.temperature, -1)
        kd = F.kl_div(log_q, F.softmax(targets / self.temperature, -1), reduction="batchmean")
        return (1 - self.alpha) * ce + self.alpha * self.temperature**2 * kd

    def perturb(self, x: Tensor, teacher: ResNet, guide: Tensor) -> Tensor:
        """clamp(x + η · confidence · g), where g = ∇ₓ wᵀ softmax(T(x)/τ) at unit RMS per pixel."""
        x = x.detach().requires_grad_()
        probs = F.softmax(teacher(x) / self.temperature, -1)
        (guide * probs).sum().backward()
        g = x.grad
        g = g * g[0].numel() ** 0.5 / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        confidence = probs.detach().amax(-1).view(-1, 1, 1, 1)
        return (x.detach() + self.step_size * confidence * g).clamp(0, 1)
