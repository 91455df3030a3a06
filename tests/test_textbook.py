"""The textbook implementation that the benchmarks measure ours against computes the same thing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from polyphony.distill import Distill
from polyphony.distill.perturb import ODS
from polyphony.ensembles import BatchEnsemble, DeepEnsemble
from polyphony.nn import resnet


@pytest.fixture(scope="module")
def textbook() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "textbook.py"
    spec = importlib.util.spec_from_file_location("textbook", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["textbook"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def network(seed: int) -> nn.Module:
    """A ResNet-8 in float64, its normalisation and running statistics not at their defaults."""
    rng = torch.Generator().manual_seed(seed)
    net = resnet(8, 10, rng=rng)
    net.normalize.set([0.5, 0.4, 0.3], [0.2, 0.25, 0.3])
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3, generator=rng)
            module.running_var.uniform_(0.5, 2, generator=rng)
            nn.init.normal_(module.weight, 1, 0.2, generator=rng)
            nn.init.normal_(module.bias, 0, 0.2, generator=rng)
    return net.double()


def batch(size: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(5)
    x = torch.rand(size, 3, 8, 8, generator=rng, dtype=torch.float64)
    return x, torch.randint(10, (size,), generator=rng)


def both(textbook: ModuleType) -> tuple[BatchEnsemble, nn.Module]:
    ours = BatchEnsemble(network(0), 3, rng=torch.Generator().manual_seed(1))
    theirs = textbook.load(textbook.ResNet(8, 10, textbook.RankOne, 3), ours.network).double()
    nn.init.normal_(ours.network.classifier.bias, generator=torch.Generator().manual_seed(2))
    theirs.classifier.bias.data.copy_(ours.network.classifier.bias)
    return ours, theirs


def assert_gradients_agree(ours: BatchEnsemble, theirs: nn.Module) -> None:
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    found = {name: parameter.grad for name, parameter in ours.network.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name], gradient, msg=lambda m, n=name: f"{n}: {m}", check_stride=False
        )


def test_students_give_the_same_logits_gradients_and_statistics(textbook: ModuleType) -> None:
    ours, theirs = both(textbook)
    x = torch.stack([batch(4)[0] * scale for scale in (1.0, 0.7, 0.4)])
    found, expected = ours(x).flatten(0, 1), theirs(x.flatten(0, 1))
    torch.testing.assert_close(found, expected)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    assert_gradients_agree(ours, theirs)
    torch.testing.assert_close(ours.network.bn.running_var, theirs.bn.running_var)


def test_the_step_gives_the_same_loss_and_gradients(textbook: ModuleType) -> None:
    ours, theirs = both(textbook)
    teachers = [network(10 + j) for j in range(3)]
    old = [textbook.load(textbook.ResNet(8, 10), teacher).double().eval() for teacher in teachers]
    x, y = batch(6)
    rng = torch.Generator().manual_seed(7)
    source = int(torch.randint(3, (), generator=rng))
    guide = 2 * torch.rand(6, 10, generator=rng).double() - 1
    expected = textbook.Distill(old, step_size=0.1)(theirs, x, y, source, guide)

    perturb = ODS(step_size=0.1, scale_by_confidence=True)
    step = Distill(DeepEnsemble(teachers), perturb=perturb)
    found = step(ours, x, y, torch.Generator().manual_seed(7))["loss"]
    found.backward()
    expected.backward()
    # our direction is float32 whatever the network is
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for name, parameter in theirs.named_parameters():
        gradient = ours.network.get_parameter(name).grad
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-5, check_stride=False)
