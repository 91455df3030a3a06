"""Factored members compute what the members compute, and store no weight twice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from polyphony import BatchEnsemble, resnet, wide_resnet
from polyphony.nn.folding import Factored

M = 3


def norm(channels: int) -> nn.BatchNorm2d:
    """A BatchNorm with random weights and statistics, far from the identity."""
    layer = nn.BatchNorm2d(channels)
    for values in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
        nn.init.uniform_(values, 0.5, 1.5)
    return layer


class Standardised(nn.Conv2d):
    """A convolution that prepares its weight, so that a scale of it has no effect."""

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight - self.weight.mean((1, 2, 3), keepdim=True)) / self.weight.std(
            (1, 2, 3), keepdim=True
        )
        return self._conv_forward(x, weight, self.bias)


class ReadsWeight(nn.Module):
    """A network that reads a layer's weight and does not call the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.classifier = nn.Linear(3 * 36, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(nn.functional.linear(x.flatten(1), self.layer.weight, self.layer.bias).relu())


def grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        norm(6),
        nn.Conv2d(6, 6, 3, groups=6),
        norm(6),
        nn.Conv2d(6, 4, 1, groups=2, bias=False),
        norm(4),
        nn.Flatten(),
        nn.Linear(64, 4),
    )


NETWORKS = {
    "resnet": (lambda: resnet(8, 4, width=4), {}),
    "own norms": (lambda: resnet(8, 4, width=4), {"member_norm": True}),
    "pre-activation": (lambda: wide_resnet(10, 1, 4), {}),
    "kept front": (lambda: resnet(8, 4, width=4), {"keep": ("stem", "stages.0")}),
    "groups": (grouped, {}),
    "weights prepared": (
        lambda: nn.Sequential(Standardised(3, 4, 3), norm(4), nn.Flatten(), nn.Linear(64, 4)),
        {},
    ),
    "in turn": (ReadsWeight, {}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_each_is_the_member_and_weights_are_shared(name: str) -> None:
    torch.manual_seed(0)
    make, options = NETWORKS[name]
    network = make()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.load_state_dict(norm(module.num_features).state_dict())
    student = BatchEnsemble(network, M, size=(3, 6, 6), **options).double().eval()
    folded, x = student.folded(), torch.rand(5, 3, 6, 6, dtype=torch.float64)
    expected = torch.stack([student.member(j).eval()(x) for j in range(M)])
    torch.testing.assert_close(folded.ask_all(x), expected)
    torch.testing.assert_close(folded(x.expand(M, *x.shape)), expected)
    matrices = {weight for weight in folded.parameters() if weight.dim() > 1}
    assert len(matrices) == sum(weight.dim() > 1 for weight in network.parameters())
    assert any(isinstance(module, Factored) for module in folded.modules())


def test_norms_that_follow_convolutions_are_gone() -> None:
    student = BatchEnsemble(resnet(8, 4, width=4), M, member_norm=True).eval()
    assert not any("BatchNorm" in type(module).__name__ for module in student.folded().modules())
