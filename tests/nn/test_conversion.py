from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from polyphony.nn import (
    ConversionError,
    RankOneConv2d,
    RankOneLinear,
    add_members,
    merge_member,
    resnet,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Nested(nn.Module):
    """A network of a user's own: a module used twice, tied weights, a list, a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])
        self.heads = nn.ModuleDict({"up": nn.Linear(4, 6), "down": nn.Linear(6, 4), "tied": nn.Linear(4, 6)})
        self.again = self.twice
        self.heads["tied"].weight = self.heads["up"].weight

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.twice(self.stem(x))))
        y = self.norms[1](self.again(y)).mean((2, 3))
        return self.heads["tied"](self.heads["down"](self.heads["up"](y)))


def images(rows: int, channels: int = 1) -> Tensor:
    return torch.rand(rows, channels, 5, 5, generator=seeded(9))


def fixed(network: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(network.state_dict())


def same(before: dict[str, Tensor], network: nn.Module) -> bool:
    after = network.state_dict()
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_with_factors_of_one_every_member_is_the_trained_network():
    network = Nested().eval()
    converted = add_members(network, 3)
    for module in converted.modules():
        if isinstance(module, RankOneConv2d | RankOneLinear):
            module.r.data.fill_(1)
            module.s.data.fill_(1)
    x = images(2)
    expected = network(x).repeat(3, 1)
    torch.testing.assert_close(converted.eval()(x.repeat(3, 1, 1, 1)), expected)


def test_every_convolution_and_linear_layer_gets_members_wherever_it_stands():
    converted = add_members(Nested(), 2)
    plain = [m for m in converted.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    inside = [m.shared for m in converted.modules() if isinstance(m, RankOneConv2d | RankOneLinear)]
    assert len(plain) == len(inside) == 5
    assert all(any(p is i for i in inside) for p in plain)


def test_a_copy_leaves_the_network_as_it_was_and_inplace_changes_it():
    network = Nested()
    before = fixed(network)
    copied = add_members(network, 2, rng=seeded())
    assert same(before, network)
    assert copied is not network
    ours = {id(p) for p in network.parameters()}
    assert not any(id(p) in ours for p in copied.parameters())

    weight = network.stem.weight
    changed = add_members(network, 2, rng=seeded(), inplace=True)
    assert changed is network
    assert network.stem.shared.weight is weight
    assert same(fixed(copied), network)


def test_a_single_layer_is_converted_in_place_by_returning_another():
    layer = nn.Linear(2, 3)
    assert add_members(layer, 2, inplace=True).shared is layer


def test_a_module_used_twice_stays_one_module():
    converted = add_members(Nested(), 2)
    assert converted.twice is converted.again
    assert isinstance(converted.twice, RankOneConv2d)
    merged = merge_member(converted, 1)
    assert merged.twice is merged.again


def test_tied_weights_stay_tied_with_factors_of_their_own():
    heads = add_members(Nested(), 2, rng=seeded()).heads
    assert heads["up"].shared.weight is heads["tied"].shared.weight
    assert heads["up"].r is not heads["tied"].r
    assert not torch.equal(heads["up"].r, heads["tied"].r)


def test_kept_layers_and_all_below_them_are_shared_unchanged():
    network = Nested()
    converted = add_members(network, 2, keep=("stem", "heads"))
    assert type(converted.stem) is nn.Conv2d
    assert all(type(head) is nn.Linear for head in converted.heads.values())
    assert isinstance(converted.twice, RankOneConv2d)
    torch.testing.assert_close(converted.heads["up"].bias, network.heads["up"].bias)


def test_keep_names_whole_layers_not_beginnings_of_names():
    network = nn.Sequential(OrderedDict({"fc": nn.Linear(2, 2), "fc2": nn.Linear(2, 2)}))
    converted = add_members(network, 2, keep=("fc",))
    assert type(converted.fc) is nn.Linear
    assert isinstance(converted.fc2, RankOneLinear)


def test_a_module_kept_in_one_of_its_two_places_is_kept_whole():
    network = Nested().eval()
    converted = add_members(network, 2, keep=("again", "stem", "heads.up", "norms"), factor_std=0.0).eval()
    assert converted.twice is converted.again
    assert type(converted.twice) is nn.Conv2d
    x = images(4)
    torch.testing.assert_close(converted(x), network(x))


def test_keep_that_names_no_layer_is_refused():
    with pytest.raises(ValueError, match=r"no layer 'haeds'"):
        add_members(Nested(), 2, keep=("haeds",))


def test_member_norm_takes_statistics_over_its_own_rows_alone():
    members, batch = 3, 4
    network = add_members(nn.Sequential(nn.Identity(), nn.BatchNorm2d(2)), members, member_norm=True)
    x = 3 * torch.randn(members * batch, 2, 5, 5, generator=seeded()) + torch.arange(12.0).view(-1, 1, 1, 1)
    out = network.train()(x)
    for j, rows in enumerate(x.chunk(members)):
        mean, var = rows.mean((0, 2, 3)), rows.var((0, 2, 3), unbiased=False)
        expected = (rows - mean.view(1, 2, 1, 1)) / (var + 1e-5).sqrt().view(1, 2, 1, 1)
        torch.testing.assert_close(out.chunk(members)[j], expected, rtol=1e-4, atol=1e-5)
        norm = merge_member(network, j)[1]
        torch.testing.assert_close(norm.running_mean, 0.1 * mean)
        torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * rows.var((0, 2, 3)), rtol=1e-4, atol=1e-5)


def test_member_norms_start_from_the_trained_one_and_are_their_own():
    network = nn.Sequential(nn.BatchNorm2d(2))
    network(images(8, 2))
    network[0].weight.data.uniform_(generator=seeded())
    norms = add_members(network, 3, member_norm=True)[0].norms
    for norm in norms:
        assert same(fixed(network[0]), norm)
    norms[0].weight.data.zero_()
    assert norms[1].weight.any()


def test_shared_norm_takes_statistics_over_all_rows():
    plain = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    network = add_members(plain, 4, factor_std=0.0)
    x = images(8, 2)
    torch.testing.assert_close(network.train()(x), plain(x))


def test_frozen_weights_and_training_modes_survive_conversion():
    network = Nested()
    network.stem.weight.requires_grad_(False)
    network.norms[0].eval()
    converted = add_members(network, 2)
    assert not converted.stem.shared.weight.requires_grad
    assert not converted.norms[0].training
    assert converted.norms[1].training


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_members_have_the_networks_own_precision(dtype):
    converted = add_members(Nested().to(dtype), 2, rng=seeded())
    assert {p.dtype for p in converted.parameters()} == {dtype}


class Packed(nn.Linear):
    """A linear layer that keeps its weight in another shape."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.weight = nn.Parameter(self.weight.flatten())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.view(3, 3), self.bias)


class Inhabited(nn.Linear):
    """A linear layer with another inside."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.low = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.low(x)


def hooked(kind: str) -> nn.Module:
    layer = nn.Linear(3, 3)
    if kind == "after":
        layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    elif kind == "before":
        layer.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))
    else:
        layer.register_full_backward_hook(lambda module, grads, outputs: (2 * grads[0],))
    return layer


CANNOT = {
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    "lstm": lambda: nn.LSTM(3, 3),
    "gru cell": lambda: nn.GRUCell(3, 3),
    "transposed": lambda: nn.ConvTranspose2d(3, 3, 2),
    "one dimension": lambda: nn.Conv1d(3, 3, 2),
    "bilinear": lambda: nn.Bilinear(2, 2, 2),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(3, 3)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Conv2d(3, 3, 1)),
    "another shape": Packed,
    "layer in a layer": Inhabited,
    "lazy": lambda: nn.LazyLinear(3),
    "hook after": lambda: hooked("after"),
    "hook before": lambda: hooked("before"),
    "hook backward": lambda: hooked("backward"),
    "converted": lambda: add_members(nn.Linear(3, 3), 2),
    "member norm": lambda: add_members(nn.Sequential(nn.BatchNorm2d(3)), 2, member_norm=True),
}


@pytest.mark.parametrize("bad", CANNOT.values(), ids=CANNOT)
def test_what_cannot_be_converted_is_refused_by_name_and_nothing_is_touched(bad):
    network = nn.Sequential(nn.Linear(3, 3), nn.ModuleDict({"odd": bad()}), nn.Linear(3, 3))
    modules = list(network.modules())
    bias = network[0].bias
    with pytest.raises(ConversionError, match=r"'1\.odd"):
        add_members(network, 2, inplace=True)
    assert list(network.modules()) == modules
    assert network[0].bias is bias


def test_what_cannot_be_converted_can_be_kept():
    network = nn.Sequential(nn.Linear(3, 3), Inhabited(), Packed())
    converted = add_members(network, 2, keep=("1", "2"))
    assert [type(layer) for layer in converted] == [RankOneLinear, Inhabited, Packed]


def test_all_that_cannot_be_converted_is_named_at_once_by_where_it_is_from():
    network = nn.Sequential(nn.Linear(3, 3), Packed(), nn.LSTM(3, 3), hooked("after"))
    with pytest.raises(ConversionError) as refusal:
        add_members(network, 2)
    message = str(refusal.value)
    assert f"'1' ({__name__}.Packed has no weight of its own" in message
    assert "'2' (torch.nn.modules.rnn.LSTM has no rank-one form)" in message
    assert "'3' (its hooks would be lost)" in message
    assert message.endswith("keep=('1', '2', '3')")


@pytest.mark.parametrize("keep", [(), ("0",)], ids=["none there", "all kept"])
def test_a_network_with_nothing_to_convert_is_refused(keep):
    network = nn.Sequential(*(nn.Linear(3, 3) for _ in keep), nn.LayerNorm(3))
    with pytest.raises(ConversionError, match="no Conv2d or Linear layer"):
        add_members(network, 2, keep=keep)


@pytest.mark.parametrize("members", [0, -1])
def test_a_network_without_members_is_refused(members):
    with pytest.raises(ValueError, match="members must be greater than 0"):
        add_members(resnet(8, 3), members)
