"""Folding BatchNorm changes no output and no gradient; networks that cannot be traced stay unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from polyphony.ensembles import DeepEnsemble
from polyphony.nn import adapt, resnet, wide_resnet
from polyphony.nn.folding import fold_norms


def trained(network: nn.Module) -> nn.Module:
    """The network in float64 and eval mode, with random statistics in its norms."""
    rng = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3, generator=rng)
            module.running_var.uniform_(0.5, 2, generator=rng)
            nn.init.normal_(module.weight, 1, 0.3, generator=rng)
            nn.init.normal_(module.bias, 0, 0.3, generator=rng)
    return network.double().eval()


def norms(network: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())


def pixels(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    ("make", "left"),
    [(lambda rng: resnet(14, 10, rng=rng), 0), (lambda rng: wide_resnet(10, 2, 10, rng=rng), 4)],
    ids=["resnet", "wide_resnet"],
)
def test_outputs_and_input_gradients_stay(make: Callable[[torch.Generator], nn.Module], left: int) -> None:
    network = trained(make(torch.Generator().manual_seed(2)))
    folded = fold_norms(network)
    assert norms(folded) == left  # a pre-activation block's first norm follows a sum, not a convolution
    x = pixels(3, 3, 12, 12).requires_grad_()
    expected, outputs = network(x), folded(x)
    torch.testing.assert_close(outputs, expected)
    seed = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, seed)[0] for y in (outputs, expected)))


def test_folded_teachers_are_the_teachers() -> None:
    teachers = DeepEnsemble([trained(resnet(8, 10)) for _ in range(2)])
    before = {name: value.clone() for name, value in teachers.state_dict().items()}
    folded = teachers.folded()
    folded.train()
    x = pixels(2, 3, 3, 8, 8)
    torch.testing.assert_close(folded(x), teachers(x))
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert norms(folded) == 0
    torch.testing.assert_close(teachers.state_dict(), before, rtol=0, atol=0)


class TwoNorms(nn.Module):
    """One convolution before two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.first, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.conv(self.first(self.conv(x))))


class RawToo(nn.Module):
    """A convolution whose output is used before its norm as well."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y + self.norm(y)


@pytest.mark.parametrize("make", [TwoNorms, RawToo])
def test_a_convolution_with_other_uses_keeps_its_norm(make: Callable[[], nn.Module]) -> None:
    network = trained(make())
    folded = fold_norms(network)
    assert norms(folded) == norms(network)
    torch.testing.assert_close(folded(pixels(2, 3, 5, 5)), network(pixels(2, 3, 5, 5)))


class Branching(nn.Module):
    """What it computes depends on its input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) if x.sum() > 0 else x


def hooked() -> nn.Module:
    network = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    network[0].register_forward_hook(lambda module, x, y: 2 * y)
    return network


@pytest.mark.parametrize("make", [Branching, hooked])
def test_a_network_that_cannot_be_followed_stays_as_it_is(make: Callable[[], nn.Module]) -> None:
    network = trained(make())
    assert fold_norms(network) is network


class AsksWhatItIsGiven(nn.Module):
    """Takes another path while it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return (self.norm(y) + y if isinstance(x, Tensor) else self.norm(y)).mean((2, 3))


def test_norms_are_folded_behind_what_a_network_expects_of_pixels() -> None:
    network = adapt(trained(resnet(8, 10)), mean=(0.4,), std=(0.3,), size=9)
    network.normalize.double()
    network.shape = (3, 8, 8)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    folded = fold_norms(network)
    assert norms(folded) == 0
    torch.testing.assert_close(folded(pixels(2, 3, 8, 8)), network(pixels(2, 3, 8, 8)))
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("wrap", [lambda network: network, adapt], ids=["as it is", "adapted"])
def test_a_network_that_goes_another_way_when_traced_stays_as_it_is(wrap: Callable) -> None:
    network = wrap(trained(AsksWhatItIsGiven())).double()
    assert fold_norms(network) is network


def test_a_folded_network_keeps_the_names_of_its_modules() -> None:
    network = trained(resnet(8, 10))
    names = [name for name, _ in network.named_modules()]
    assert [name for name, _ in fold_norms(network).named_modules()] == names
