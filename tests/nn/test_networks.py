from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyphony.nn import Normalize, add_members, resnet, wide_resnet
from polyphony.nn.networks import BasicBlock, ResNet, WideResNet


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("build", "members", "expected"),
    [
        (lambda: resnet(32, 10), None, 464_154),
        (lambda: resnet(32, 10), 8, 482_504),
        (lambda: wide_resnet(28, 10, 100), None, 36_536_884),
        (lambda: wide_resnet(28, 2, 100), 4, 1_495_740),
    ],
    ids=["R32", "BE-8 R32", "WRN28x10", "BE-4 28x2"],
)
def test_parameter_counts_are_the_papers(build, members, expected):
    """Some of them; `tests/recipe/test_shipped_recipes.py` counts every recipe's."""
    with torch.device("meta"):
        network = build()
        if members:
            network = add_members(network, members)
    assert count(network) == expected


def plain_normalize(network: nn.Module, x: Tensor) -> Tensor:
    return (x - network.normalize.mean) / network.normalize.std


def plain_norm(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """BatchNorm in eval mode, from its definition."""
    shape = (1, -1, 1, 1)
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return (x - norm.running_mean.view(shape)) * scale.view(shape) + norm.bias.view(shape)


def plain_resnet(network: ResNet, x: Tensor) -> Tensor:
    """He et al. for CIFAR, option A, with our weights, up to the features. [b c h w] → [b f]"""
    x = F.conv2d(plain_normalize(network, x), network.stem.weight, padding=1)
    x = plain_norm(network.bn, x).clamp(min=0)
    for stage, blocks in enumerate(network.stages):
        for number, block in enumerate(blocks):
            stride = 2 if stage > 0 and number == 0 else 1
            y = plain_norm(block.bn1, F.conv2d(x, block.conv1.weight, stride=stride, padding=1)).clamp(min=0)
            y = plain_norm(block.bn2, F.conv2d(y, block.conv2.weight, padding=1))
            shortcut = torch.zeros_like(y)
            shortcut[:, : x.shape[1]] = x[:, :, ::stride, ::stride]
            x = (y + shortcut).clamp(min=0)
    return x.mean(3).mean(2)


def plain_wide_resnet(network: WideResNet, x: Tensor) -> Tensor:
    """Pre-activation, projections on the raw input, up to the features. [b c h w] → [b f]"""
    x = F.conv2d(plain_normalize(network, x), network.stem.weight, padding=1)
    for stage, blocks in enumerate(network.stages):
        for number, block in enumerate(blocks):
            stride = 2 if stage > 0 and number == 0 else 1
            y = F.conv2d(plain_norm(block.bn1, x).clamp(min=0), block.conv1.weight, stride=stride, padding=1)
            y = F.conv2d(plain_norm(block.bn2, y).clamp(min=0), block.conv2.weight, padding=1)
            x = y + (x if number else F.conv2d(x, block.shortcut.weight, stride=stride))
    x = plain_norm(network.bn, x).clamp(min=0)
    return x.mean(3).mean(2)


def unsettle(network: nn.Module, rng: torch.Generator) -> nn.Module:
    """Every parameter and buffer away from its initial value, in float64."""
    network = network.double().eval()
    for value in network.state_dict().values():
        if value.is_floating_point():
            value.add_(0.3 * torch.rand(value.shape, generator=rng, dtype=value.dtype))
    return network


def assert_is(network: nn.Module, features: Tensor, x: Tensor) -> None:
    """Checks that features are the expected ones, and logits the classifier's, in float64."""
    logits = features @ network.classifier.weight.T + network.classifier.bias
    torch.testing.assert_close(network(x), logits, rtol=1e-9, atol=1e-9)
    network.classifier = nn.Identity()
    torch.testing.assert_close(network(x), features, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("depth", "size"), [(32, (32, 32)), (14, (9, 5)), (8, (7, 7)), (8, (1, 1))], ids=str)
def test_resnet_is_the_papers_at_any_input_size(depth, size):
    rng = seeded()
    network = unsettle(resnet(depth, 5, channels=2, width=4, rng=rng), rng)
    x = torch.rand(3, 2, *size, generator=rng, dtype=torch.float64)
    assert_is(network, plain_resnet(network, x), x)


@pytest.mark.parametrize(
    ("depth", "widen", "size"), [(28, 2, (8, 8)), (16, 1, (7, 11)), (10, 3, (1, 1))], ids=str
)
def test_wide_resnet_is_the_papers_at_any_input_size(depth, widen, size):
    rng = seeded()
    network = unsettle(wide_resnet(depth, widen, 5, channels=1, rng=rng), rng)
    x = torch.rand(2, 1, *size, generator=rng, dtype=torch.float64)
    if widen == 1:  # 16 → 16 channels at stride 1: the first block needs no projection
        assert isinstance(network.stages[0][0].shortcut, nn.Identity)
        network.stages[0][0].shortcut = nn.Conv2d(16, 16, 1, bias=False, dtype=torch.float64)
        network.stages[0][0].shortcut.weight.data = torch.eye(16, dtype=torch.float64)[..., None, None]
    assert_is(network, plain_wide_resnet(network, x), x)


def test_resnet_shortcut_is_every_second_pixel_with_zeros_appended():
    x = torch.arange(2 * 3 * 5 * 5.0).view(2, 3, 5, 5)
    y = BasicBlock(3, 7, stride=2).shortcut(x)
    for row in range(3):
        for column in range(3):
            assert torch.equal(y[:, :3, row, column], x[:, :, 2 * row, 2 * column])
    assert y.shape[1:] == (7, 3, 3)
    assert not y[:, 3:].any()


def test_normalize_is_computed_per_channel_and_kept_with_the_weights():
    normalize = Normalize(3)
    mean, std = (0.1, 0.5, 0.9), (0.2, 0.4, 0.6)
    normalize.set(mean, std)
    x = torch.rand(4, 3, 2, 2, generator=seeded())
    again = Normalize(3)
    again.load_state_dict(normalize.state_dict())
    for c in range(3):
        expected = (x[:, c] - mean[c]) / std[c]
        torch.testing.assert_close(normalize(x)[:, c], expected)
        torch.testing.assert_close(again(x)[:, c], expected)
    assert not list(normalize.parameters())


def test_equal_generators_give_equal_weights_and_others_do_not():
    one, same, other = (resnet(8, 10, rng=seeded(seed)).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    drawn = [name for name in one if name.endswith(("conv1.weight", "classifier.weight", "stem.weight"))]
    assert drawn
    assert not any(torch.equal(one[name], other[name]) for name in drawn)


def test_nothing_is_drawn_from_the_global_generator_when_one_is_given():
    torch.manual_seed(0)
    first = resnet(8, 3, rng=seeded(3)).classifier.weight
    torch.manual_seed(1)
    assert torch.equal(first, resnet(8, 3, rng=seeded(3)).classifier.weight)


@pytest.mark.parametrize(
    "network",
    [resnet(8, 10, width=64, rng=seeded()), wide_resnet(10, 4, 10, rng=seeded())],
    ids=["resnet", "wide"],
)
def test_convolutions_and_the_classifier_start_kaiming_normal_by_fan_out(network):
    drawn = [m.weight.detach() for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert drawn[-1].shape == network.classifier.weight.shape
    for weight in drawn:
        fan_out, n = weight[:, 0].numel(), weight.numel()  # outputs times the kernel's pixels
        expected = math.sqrt(2 / fan_out)
        assert abs(float(weight.std()) - expected) < 5 * expected / math.sqrt(2 * n)
        assert abs(float(weight.mean())) < 5 * expected / math.sqrt(n)
        assert weight.abs().max() > 2.4 * expected  # uniform weights of that spread end at 1.73
    assert not network.classifier.bias.any()


@pytest.mark.parametrize("depth", [2, 7, 9, 10, 28, 0, -4])
def test_resnet_refuses_other_depths(depth):
    with pytest.raises(ValueError, match=rf"6n \+ 2 .*not {depth}"):
        resnet(depth, 10)


@pytest.mark.parametrize("depth", [4, 8, 27, 32, 0, -2])
def test_wide_resnet_refuses_other_depths(depth):
    with pytest.raises(ValueError, match=rf"6n \+ 4 .*not {depth}"):
        wide_resnet(depth, 2, 10)


def test_a_stem_with_a_stride_is_the_plain_stem_on_every_second_pixel():
    plain, strided = (resnet(8, 10, width=4, rng=seeded(0), stride=stride).eval() for stride in (1, 2))
    x = torch.rand(2, 3, 12, 12, generator=seeded(1))
    with torch.no_grad():
        y = torch.relu(plain.bn(plain.stem(plain.normalize(x))[:, :, ::2, ::2]))
        expected = plain.classifier(plain.stages(y).mean((2, 3)))
        torch.testing.assert_close(strided(x), expected)
