from __future__ import annotations

import copy
import math

import by_hand
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polyphony.nn import (
    InTurn,
    RankOneConv2d,
    RankOneLinear,
    add_members,
    factors,
    merge_member,
    resnet,
    wide_resnet,
)

DOUBLE = torch.float64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows_of(members: int, batch: int, *shape: int) -> Tensor:
    return torch.randn(members * batch, *shape, generator=seeded(1), dtype=DOUBLE)


def with_members(layer: nn.Module, members: int) -> nn.Module:
    """A converted copy in which every parameter, each member's bias too, is a random number."""
    converted = add_members(layer.to(DOUBLE), members, rng=seeded(2))
    for parameter in converted.parameters():
        parameter.data += 0.5 * torch.randn(parameter.shape, generator=seeded(3), dtype=DOUBLE)
    return converted


def merged_by_hand(layer: RankOneConv2d | RankOneLinear, j: int) -> tuple[Tensor, Tensor | None]:
    """W ∘ s_j r_jᵀ, entry by entry, as leaves that collect gradients."""
    weight = layer.shared.weight.detach().clone()
    groups = getattr(layer.shared, "groups", 1)
    outputs, inputs = weight.shape[:2]
    for o in range(outputs):
        for i in range(inputs):
            group = o // (outputs // groups)
            weight[o, i] *= layer.s[j, o].item() * layer.r[j, group * inputs + i].item()
    bias = None if layer.bias is None else layer.bias[j].detach().clone().requires_grad_()
    return weight.requires_grad_(), bias


CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "stride": {"kernel_size": 3, "stride": 2, "padding": 1},
    "uneven": {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0)},
    "dilation": {"kernel_size": 3, "dilation": 2, "padding": 2},
    "groups": {"kernel_size": 3, "groups": 2, "padding": 1},
    "depthwise": {"kernel_size": 3, "groups": 4, "padding": 1},
    "groups, stride, dilation": {"kernel_size": 3, "groups": 2, "stride": 2, "dilation": 2, "padding": 1},
    "no bias": {"kernel_size": 1, "bias": False},
    "same": {"kernel_size": 3, "padding": "same", "dilation": 2},
    "reflect": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    "circular": {"kernel_size": 3, "padding": (2, 1), "padding_mode": "circular"},
    "replicate": {"kernel_size": 5, "padding": 2, "padding_mode": "replicate", "stride": 2},
}


@pytest.mark.parametrize("settings", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_each_member_of_a_convolution_is_the_plain_one_with_merged_weights(settings):
    members, batch = 3, 2
    layer = with_members(nn.Conv2d(4, 8, **settings), members)
    x = rows_of(members, batch, 4, 7, 8).requires_grad_()
    check_members(layer, lambda j: nn.Conv2d(4, 8, **settings).to(DOUBLE), x, members)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("extra", [(), (5,), (2, 3)], ids=str)
def test_each_member_of_a_linear_layer_is_the_plain_one_with_merged_weights(extra, bias):
    members, batch = 4, 3
    layer = with_members(nn.Linear(6, 5, bias=bias), members)
    x = rows_of(members, batch, *extra, 6).requires_grad_()
    check_members(layer, lambda j: nn.Linear(6, 5, bias=bias).to(DOUBLE), x, members)


def check_members(layer, plain_layer, x: Tensor, members: int) -> None:
    """Outputs, and gradients of input, weight, bias and factors, by M plain layers one after the other."""
    out = layer(x)
    pull = torch.randn(out.shape, generator=seeded(4), dtype=DOUBLE)
    (out * pull).sum().backward()

    shared = layer.shared.weight.detach()
    weight_grad, r_grad, s_grad = (torch.zeros_like(t) for t in (shared, layer.r, layer.s))
    blocks = zip(x.detach().chunk(members), out.chunk(members), pull.chunk(members), strict=True)
    for j, (rows, output, seed) in enumerate(blocks):
        rows = rows.clone().requires_grad_()
        plain = plain_layer(j)
        weight, bias = merged_by_hand(layer, j)
        values = {"weight": weight} | ({} if bias is None else {"bias": bias})
        expected = torch.func.functional_call(plain, values, (rows,))
        torch.testing.assert_close(output, expected)
        (expected * seed).sum().backward()
        torch.testing.assert_close(x.grad.chunk(members)[j], rows.grad)
        if bias is not None:
            torch.testing.assert_close(layer.bias.grad[j], bias.grad)
        add_chain_rule(layer, j, weight.grad, weight_grad, r_grad, s_grad)
    torch.testing.assert_close(layer.shared.weight.grad, weight_grad)
    torch.testing.assert_close(layer.r.grad, r_grad)
    torch.testing.assert_close(layer.s.grad, s_grad)


def add_chain_rule(layer, j: int, grad: Tensor, weight_grad: Tensor, r_grad: Tensor, s_grad: Tensor) -> None:
    """From ∂L/∂(W ∘ s rᵀ) of one member to ∂L/∂W, ∂L/∂r and ∂L/∂s, entry by entry."""
    weight, r, s = layer.shared.weight.detach(), layer.r.detach(), layer.s.detach()
    outputs, inputs = weight.shape[:2]
    groups = getattr(layer.shared, "groups", 1)
    for o in range(outputs):
        for i in range(inputs):
            column = o // (outputs // groups) * inputs + i
            weight_grad[o, i] += grad[o, i] * s[j, o] * r[j, column]
            r_grad[j, column] += (grad[o, i] * weight[o, i]).sum() * s[j, o]
            s_grad[j, o] += (grad[o, i] * weight[o, i]).sum() * r[j, column]


@given(
    members=st.integers(1, 4),
    batch=st.integers(1, 3),
    groups=st.integers(1, 3),
    per_group=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 2),
)
@settings(max_examples=60, derandomize=True)
def test_it_is_the_textbooks_activations_scaled_before_and_after(
    members, batch, groups, per_group, stride, dilation, padding
):
    inputs, outputs = (groups * n for n in per_group)
    plain = nn.Conv2d(
        inputs, outputs, 3, stride=stride, padding=padding, dilation=dilation, groups=groups, bias=True
    )
    layer = with_members(plain, members)
    x = rows_of(members, batch, inputs, 6, 7)
    r, s, b = (t.repeat_interleave(batch, 0)[..., None, None] for t in (layer.r, layer.s, layer.bias))
    expected = F.conv2d(x * r, layer.shared.weight, None, stride, padding, dilation, groups) * s + b
    torch.testing.assert_close(layer(x), expected)


def test_a_linear_layer_is_the_textbooks_too():
    members, batch = 3, 4
    layer = with_members(nn.Linear(6, 5), members)
    x = rows_of(members, batch, 6)
    r, s, b = (t.repeat_interleave(batch, 0) for t in (layer.r, layer.s, layer.bias))
    torch.testing.assert_close(layer(x), ((x * r) @ layer.shared.weight.T) * s + b)


def build(kind: str) -> nn.Module:
    if kind == "resnet":
        return resnet(8, 5, channels=2, width=4, rng=seeded())
    return wide_resnet(10, 1, 5, channels=2, rng=seeded())


@pytest.mark.parametrize("kind", ["resnet", "wide_resnet"])
@pytest.mark.parametrize("member_norm", [False, True])
def test_a_network_is_its_members_forward_and_backward(kind, member_norm):
    members, batch = 3, 2
    network = add_members(build(kind).to(DOUBLE), members, rng=seeded(), member_norm=member_norm)
    network(rows_of(members, 8, 2, 6, 6))  # running statistics of its own for every norm
    network.eval()
    x = rows_of(members, batch, 2, 6, 6).requires_grad_()
    out = network(x)
    out.square().sum().backward()
    stem_grad = torch.zeros_like(network.stem.shared.weight)
    for j in range(members):
        plain = merge_member(network, j)
        assert not list(factors(plain))
        rows = x.detach().chunk(members)[j].clone().requires_grad_()
        logits = plain(rows)
        torch.testing.assert_close(out.chunk(members)[j], logits)
        logits.square().sum().backward()
        torch.testing.assert_close(x.grad.chunk(members)[j], rows.grad)
        outer = network.stem.s[j][:, None, None, None] * network.stem.r[j][None, :, None, None]
        stem_grad += plain.stem.weight.grad * outer.detach()
    torch.testing.assert_close(network.stem.shared.weight.grad, stem_grad)


def test_merging_is_a_copy_with_as_many_parameters_as_a_plain_network():
    network = add_members(build("resnet"), 2, rng=seeded())
    before = copy.deepcopy(network.state_dict())
    plain = merge_member(network, 1)
    assert {n: p.shape for n, p in plain.named_parameters()} == {
        n: p.shape for n, p in build("resnet").named_parameters()
    }
    for parameter in plain.parameters():
        parameter.data.zero_()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Conv2d(2, 3, 1), (2, 4, 4)), (nn.Linear(2, 3), (2,))], ids=["conv", "linear"]
)
@pytest.mark.parametrize("rows", [1, 5, 7, 11])
def test_rows_that_do_not_divide_among_the_members_are_refused(layer, shape, rows):
    with pytest.raises(ValueError, match=f"{rows} rows do not divide among 4 members"):
        add_members(layer, 4)(torch.zeros(rows, *shape))


def test_factors_are_drawn_from_a_normal_with_mean_1_and_deviation_a_half():
    n = 400_000
    wide, tall = nn.Linear(n // 4, 1), nn.Conv2d(1, n // 4, 1)
    for drawn in (add_members(wide, 4, rng=seeded()).r, add_members(tall, 4, rng=seeded()).s):
        z = (drawn.detach().double().flatten() - 1) / 0.5
        assert abs(z.mean()) < 5 / math.sqrt(n)
        assert abs(z.std() - 1) < 5 / math.sqrt(2 * n)
        assert abs(z.pow(4).mean() - 3) < 5 * math.sqrt(96 / n)  # a normal's fourth moment


def test_equal_generators_give_equal_factors_and_members_differ():
    one, same, other = (
        list(factors(add_members(build("resnet"), 2, rng=seeded(seed)))) for seed in (1, 1, 2)
    )
    for a, b, c in zip(one, same, other, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
        assert not torch.equal(a[0], a[1])


def test_a_layer_with_members_has_the_attributes_it_had():
    conv = with_members(nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2), 3)
    assert (conv.stride, conv.padding, conv.groups, conv.kernel_size) == ((2, 2), (1, 1), 2, (3, 3))
    assert (conv.in_channels, conv.out_channels, conv.padding_mode) == (4, 8, "zeros")
    assert conv.weight is conv.shared.weight
    linear = with_members(nn.Linear(6, 5, bias=False), 3)
    assert (linear.in_features, linear.out_features, linear.bias) == (6, 5, None)
    with pytest.raises(AttributeError, match="stride"):
        linear.stride  # noqa: B018


def test_in_its_turn_a_member_has_its_own_weight_and_bias():
    layer = with_members(nn.Linear(6, 5), 3)
    turns = InTurn(layer, 3)
    for j in range(3):
        turns.give_turn(j)
        mine = layer.weight, layer.bias
        layer.turn = None
        for actual, expected in zip(mine, merged_by_hand(layer, j), strict=True):
            torch.testing.assert_close(actual, expected)
    x = rows_of(3, 2, 6)
    turned = turns(x)
    layer.turn = None
    torch.testing.assert_close(turned, layer(x))


@pytest.mark.parametrize("kind", [by_hand.Standardised, by_hand.SamePadding])
def test_members_of_a_subclass_are_the_subclass_with_merged_weights(kind):
    members, settings = 3, {"kernel_size": 3, "groups": 2}
    layer = with_members(kind(4, 8, **settings), members)
    x = rows_of(members, 2, 4, 7, 8).requires_grad_()
    check_members(layer, lambda j: kind(4, 8, **settings).to(DOUBLE), x, members)


def test_members_of_a_linear_subclass_are_the_subclass_with_merged_weights():
    layer = with_members(by_hand.HalfLinear(6, 5), 3)
    x = rows_of(3, 2, 4, 6).requires_grad_()
    check_members(layer, lambda j: by_hand.HalfLinear(6, 5).to(DOUBLE), x, 3)


def test_members_in_another_dimension_are_those_in_the_first():
    layer = with_members(nn.Linear(6, 5), 3)
    x = rows_of(3, 2, 4, 6)
    expected = layer(x)
    layer.dim = 1
    torch.testing.assert_close(layer(x.transpose(0, 1)), expected.transpose(0, 1))
