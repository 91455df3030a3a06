"""The trial before a conversion: what it must not change, what it finds, and how members then run."""

from __future__ import annotations

import copy
import re

import by_hand
import pytest
import torch
from torch import Tensor, nn

from polyphony.ensembles import BatchEnsemble, LoRAEnsemble
from polyphony.nn import (
    ConversionError,
    InTurn,
    RankOneConv2d,
    RankOneLinear,
    add_members,
    member_share,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def layers(network: nn.Module) -> list[RankOneConv2d | RankOneLinear]:
    return [m for m in network.modules() if isinstance(m, RankOneConv2d | RankOneLinear)]


class Network(nn.Module):
    """A convolution, norms that differ in mode, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, 3)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norms[1](self.norms[0](self.stem(x)).relu()).mean((2, 3)))


def test_a_trial_draws_nothing_and_changes_nothing():
    network = Network().train()
    network.norms[0].eval()
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    modes = [module.training for module in network.modules()]
    rng, by_us = seeded(), seeded()
    converted = add_members(network, 2, rng=rng)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in network.modules()] == modes
    for layer in layers(converted):
        for factor in (layer.r, layer.s):
            assert torch.equal(factor, torch.empty(factor.shape).normal_(1, 0.5, generator=by_us))
    assert torch.equal(torch.rand(3, generator=rng), torch.rand(3, generator=by_us))


def test_a_trial_runs_no_hook_of_a_users():
    network, calls = Network(), []
    network.norms[0].register_forward_hook(lambda module, inputs, output: calls.append(1))
    add_members(network, 2)
    assert not calls


def test_weights_that_hide_an_order_do_not_hide_it_in_the_trial():
    """A classifier of zeros gives the same logits for all rows."""
    network = by_hand.TimeMajor()
    nn.init.zeros_(network.head.weight)
    assert isinstance(add_members(network, 2), InTurn)


@pytest.mark.parametrize("kind", [by_hand.Patches, by_hand.PositionTable, by_hand.TokensFirst, Network])
def test_on_the_meta_device_layers_get_the_members_that_they_get_elsewhere(kind):
    real = add_members(kind(), 2)
    with torch.device("meta"):
        meta = add_members(kind(), 2)
    shapes = [{name: value.shape for name, value in network.state_dict().items()} for network in (real, meta)]
    assert shapes[0] == shapes[1]
    assert [layer.dim for layer in layers(real)] == [layer.dim for layer in layers(meta)]


def test_a_network_that_runs_on_no_images_asks_for_their_size():
    network = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(98 * 68, 5))
    with pytest.raises(ConversionError, match="give their `size`"):
        add_members(network, 2)
    assert len(layers(add_members(network, 2, size=(1, 100, 70)))) == 2


# Order that is followed


def test_tokens_first_are_followed():
    converted = add_members(by_hand.TokensFirst(), 2)
    assert [layer.dim for layer in layers(converted)] == [0, 1, 1, 0]


def test_what_sees_no_image_is_shared_and_the_share_of_weights_says_so():
    network = by_hand.PositionTable()
    converted = add_members(network, 2)
    assert [type(layer) for layer in converted.place] == [nn.Linear, nn.ReLU, nn.Linear]
    shared = sum(p.numel() for p in network.place.parameters())
    everything = sum(p.numel() for p in network.parameters())
    assert member_share(converted) == pytest.approx(1 - shared / everything)


def test_of_members_norms_the_share_knows_too():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.LayerNorm(6))
    weights, norm, rest = 3 * 4 * 9 + 4, 8, 12
    own = weights / (weights + norm + rest)
    assert member_share(add_members(network, 2)) == pytest.approx(own)
    with_norm = add_members(network, 2, member_norm=True)
    assert member_share(with_norm) == pytest.approx((weights + norm) / (weights + norm + rest))
    assert member_share(network) == 0


def test_a_layer_called_when_it_is_nobodys_turn_is_an_error():
    converted = add_members(by_hand.TimeMajor(), 2)
    with pytest.raises(RuntimeError, match=r"outside `InTurn\.forward`"):
        converted.network(torch.rand(4, 3, 8, 8))


def test_a_network_of_single_precision_that_fails_says_why_and_not_that_double_does_not_fit():
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> object:
            return [self.out(x.float().flatten(1)).tolist()]

    with pytest.raises(ConversionError, match="the network returns list without logits"):
        add_members(Single(), 2, size=(1, 2, 2))


# What a few rows do not show


def exact(student: BatchEnsemble, rows: int) -> bool:
    """Whether each member computes on its rows what its plain network computes."""
    x = torch.rand(student.members, rows, 3, 8, 8, generator=seeded(1), dtype=torch.float64)
    with torch.no_grad():
        alone = torch.stack([student.member(j)(each) for j, each in enumerate(x)])
        return torch.allclose(student(x), alone, rtol=1e-9, atol=1e-9)


def test_rows_that_depend_on_each_other_in_large_batches_alone_are_noticed():
    student = BatchEnsemble(by_hand.CoupledInLargeBatches(), 3, rng=seeded()).double().eval()
    assert isinstance(student.network, InTurn)
    assert all(exact(student, rows) for rows in (2, 4, 12))
    network = nn.Sequential(nn.BatchNorm2d(3), by_hand.CoupledInLargeBatches())
    with pytest.raises(
        ConversionError, match="rows of a larger batch depend on each other; set `member_norm`"
    ):
        BatchEnsemble(network, 3)


def test_advice_has_only_options_that_a_student_of_low_rank_has():
    network = nn.Sequential(nn.BatchNorm2d(3), by_hand.CoupledInLargeBatches())
    with pytest.raises(ConversionError, match="rows of a larger batch depend on each other") as error:
        LoRAEnsemble(network, 3)
    assert not any(option in str(error.value) for option in ("member_norm", "keep"))


@pytest.mark.parametrize("kind", [by_hand.Prepared, by_hand.PreparedForever])
@pytest.mark.parametrize("used", [False, True])
def test_a_layer_that_keeps_a_prepared_weight_is_refused_whether_it_was_used_or_not(kind, used: bool):
    network = by_hand.PreparesWeights(kind).eval()
    if used:
        with torch.no_grad():
            network(torch.rand(2, 3, 8, 8))
    with pytest.raises(ConversionError, match=re.escape("a weight that it prepared, but each member has")):
        BatchEnsemble(network, 3)
    shared = by_hand.PreparesWeights(kind)
    assert exact(BatchEnsemble(shared, 3, keep=("up",)).double().eval(), 4)


def test_a_network_that_cannot_be_copied_says_so():
    network = by_hand.PreparesWeights(by_hand.PreparedForever).eval()
    network(torch.rand(2, 3, 8, 8))  # keeps a tensor with gradients
    with pytest.raises(
        ConversionError, match=re.escape("the network cannot be copied (Only Tensors created")
    ):
        BatchEnsemble(network, 3)


def test_a_weight_that_is_read_once_and_kept_is_refused():
    with pytest.raises(ConversionError, match=re.escape("keep=('up',)")):
        BatchEnsemble(by_hand.ReadsOnce().eval(), 3)


@pytest.mark.parametrize("chunk", [4, 8])
@pytest.mark.parametrize("branch", [None, "head"])
def test_a_network_that_works_in_chunks_of_rows_has_exact_members(chunk: int, branch: str | None):
    student = BatchEnsemble(by_hand.InChunks(chunk), 3, rng=seeded(), branch=branch).double().eval()
    assert exact(student, 8)
