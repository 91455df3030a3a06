"""Networks of many families: members are exact, or an error says what to do; none is silently wrong."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import by_hand
import pytest
import torch
from families import BY_HAND, FAMILIES, IN_TURN, TIMM, TRANSFORMERS
from torch import Tensor, nn

from polyphony.ensembles import BatchEnsemble, Hydra, LatentBE
from polyphony.nn import AtOnce, ConversionError, InTurn, adapt, member_share
from polyphony.nn.branch import boundaries
from polyphony.nn.conversion import unwrap
from polyphony.nn.probe import on_random_images
from polyphony.nn.rank_one import RankOne

MEMBERS, ROWS = 3, 2
PAGE = (Path(__file__).parents[2] / "docs" / "own-networks.md").read_text(encoding="utf-8")


def made(name: str) -> tuple[nn.Module, int]:
    """A network with all weights moved from their initial values, and the side of its images."""
    torch.manual_seed(0)
    network = FAMILIES[name](name)
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    declared = getattr(getattr(network, "config", None), "image_size", TIMM.get(name, {}).get("img_size", 32))
    side = 8 if name in BY_HAND else declared
    return adapt(network).eval(), side if isinstance(side, int) else side[0]


def images(side: int) -> Tensor:
    rng = torch.Generator().manual_seed(1)
    return torch.rand(MEMBERS, ROWS, 3, side, side, generator=rng, dtype=torch.float64)


def merged_by_hand(network: nn.Module, student: BatchEnsemble, j: int) -> nn.Module:
    """The original network, with W ∘ s_j r_jᵀ in place of every weight that has factors, group by group."""
    alone = copy.deepcopy(network).double()
    converted = unwrap(student.network)
    for name, layer in converted.named_modules():
        if not isinstance(layer, RankOne):
            continue
        plain = alone.get_submodule(name)
        groups = getattr(plain, "groups", 1)
        blocks = [
            torch.outer(s, r) for s, r in zip(layer.s[j].chunk(groups), layer.r[j].chunk(groups), strict=True)
        ]
        scale = torch.cat(blocks)
        plain.weight.data *= scale.view(*scale.shape, *(1 for _ in plain.weight.shape[2:]))
        if plain.bias is not None:
            plain.bias.data.copy_(layer.bias[j])
    return alone


@pytest.mark.parametrize("name", FAMILIES)
def test_members_of_a_foreign_network_are_exact(name: str):
    network, side = made(name)
    size = (
        (3, side, side) if name in TIMM else None
    )  # others take the size that they declare, or that they run on
    student = BatchEnsemble(network, MEMBERS, rng=torch.Generator().manual_seed(0), size=size).double().eval()
    for layer in student.modules():  # biases of one's own, as after training
        if isinstance(layer, RankOne) and layer.bias is not None:
            layer.bias.data += 0.1 * torch.randn(layer.bias.shape)
    x = images(side)
    with torch.no_grad():
        outputs = student(x)
        for j in range(MEMBERS):
            expected = merged_by_hand(network, student, j)(x[j])
            torch.testing.assert_close(outputs[j], expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(student.member(j)(x[j]), expected, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(student.member(0)(x[0]), student.member(1)(x[0]), rtol=1e-2)
    assert isinstance(student.network, InTurn) == (name in IN_TURN)
    assert member_share(student.network) > 0.4


@pytest.mark.parametrize(
    "name", ["ViT", "Swinv2", "Levit", "TokensFirst", "BareWeight", "Viewed", "Shortcut"]
)
def test_with_factors_of_one_members_are_the_network_and_they_learn(name: str):
    network, side = made(name)
    student = BatchEnsemble(network, MEMBERS, factor_std=0.0).double().eval()
    x = images(side)
    with torch.no_grad():
        for rows, out in zip(x, student(x), strict=True):
            torch.testing.assert_close(out, network.double()(rows), rtol=1e-5, atol=1e-5)
    student.train()(x).square().sum().backward()
    learns = [layer.r.grad is not None for layer in student.modules() if isinstance(layer, RankOne)]
    assert learns
    assert all(learns)


@pytest.mark.parametrize("name", ["ViT", "Swin", "ConvNext", "PoolFormer", "ResNet", "CLIP", "Patches"])
def test_other_forms_take_foreign_networks_too(name: str):
    network, side = made(name)
    x = images(side)
    hydra = Hydra(network, MEMBERS).double().eval()
    latent = LatentBE(network, MEMBERS).double().eval()
    with torch.no_grad():
        for j, (rows, out) in enumerate(zip(x, hydra(x), strict=True)):
            torch.testing.assert_close(out, hydra.member(j)(rows), rtol=1e-5, atol=1e-5)
        plain = network.double()
        torch.testing.assert_close(latent.merge()(x[0]), plain(x[0]), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(latent(x)[1], plain(x[1]), rtol=1e-5, atol=1e-5)


# A branch in the middle: norms of the tail need all rows at once, where members could only run in turn.
MIDDLE_REFUSED = {
    "SwiftFormer",
    "fastvit_t8",
    "maxvit_rmlp_pico_rw_256",
    "mobilenetv3_small_050",
    "xcit_nano_12_p8_224",
}


def middle(network: nn.Module, size: tuple[int, ...]) -> str:
    """The block, of two layers or more if there is one, that begins nearest to half of the operations."""
    fronts = on_random_images(network, ROWS, size, lambda plain, x: boundaries(plain, x, 0.5))
    names = [front.branch for _, front in fronts]

    def layers(name: str) -> int:
        return sum(isinstance(part, nn.Conv2d | nn.Linear) for part in network.get_submodule(name).modules())

    return next((name for name in names if layers(name) > 1), names[0])


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "BareWeight"])
def test_members_that_branch_in_the_middle_are_exact_or_refused(name: str):
    network, side = made(name)
    size = (3, side, side)
    settings = {"rng": torch.Generator().manual_seed(0), "size": size, "branch": middle(network, size)}
    if name in MIDDLE_REFUSED:
        with pytest.raises(ConversionError, match=r"set `member_norm`, so that .*, or branch elsewhere"):
            BatchEnsemble(network, MEMBERS, **settings)
        settings["member_norm"] = True
    student = BatchEnsemble(network, MEMBERS, **settings).double().eval()
    assert isinstance(student.network, AtOnce | InTurn)
    assert any(
        True for front in student.network.front.modules for _ in network.get_submodule(front).parameters()
    )
    own = images(side)
    with torch.no_grad():
        for x in (own, own[:1].expand_as(own)):
            outputs = student(x)
            for j in (0, MEMBERS - 1):
                expected = merged_by_hand(network, student, j)(x[j])
                torch.testing.assert_close(outputs[j], expected, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(outputs[0], outputs[-1], rtol=1e-2)


def test_a_weight_that_is_read_before_the_branch_has_no_members_or_is_refused():
    network = by_hand.BareWeight()
    with pytest.raises(ConversionError, match=re.escape("keep=('up',), or branch elsewhere than at 'head'")):
        BatchEnsemble(network, MEMBERS, branch="head")
    student = BatchEnsemble(network, MEMBERS, branch="head", keep=("up",)).double().eval()
    x = images(8)[:1].expand(MEMBERS, -1, -1, -1, -1)
    with torch.no_grad():
        for j, out in enumerate(student(x)):
            torch.testing.assert_close(out, student.member(j)(x[j]), rtol=1e-5, atol=1e-5)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "attention": (by_hand.Attention, "'attention' (torch.nn.modules.activation.MultiheadAttention"),
    "recurrent": (by_hand.Recurrent, "'lstm' (torch.nn.modules.rnn.LSTM"),
    "one dimension": (by_hand.Recurrent, "'line' (torch.nn.modules.conv.Conv1d"),
    "norm, time-major": (by_hand.Normed, "rows come to layer 'up'"),
    "norm, bare weight": (by_hand.BareWeightNormed, "layer 'up' is not called"),
}


@pytest.mark.parametrize(("make", "names"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_names_the_layers_and_what_to_do_which_works(make: Callable[[], nn.Module], names: str):
    network = make()
    with pytest.raises(ConversionError, match=re.escape(names)) as refusal:
        BatchEnsemble(network, 2)
    advised = re.search(r"keep=(\(.*?\))", str(refusal.value))
    assert advised is not None
    names = ast.literal_eval(advised[1])
    student = BatchEnsemble(network, MEMBERS, keep=names).double().eval()
    assert not any(isinstance(student.network.get_submodule(name), RankOne) for name in names)
    x = images(8)
    with torch.no_grad():
        for j, (rows, out) in enumerate(zip(x, student(x), strict=True)):
            torch.testing.assert_close(out, student.member(j)(rows), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [by_hand.Normed, by_hand.BareWeightNormed])
def test_norms_of_their_own_let_members_run_in_turn(make: Callable[[], nn.Module]):
    with pytest.raises(ConversionError, match="member_norm"):
        BatchEnsemble(make(), 2)
    student = BatchEnsemble(make(), MEMBERS, member_norm=True).double()
    x = images(8)
    student.train()(x)  # statistics of one's own
    with torch.no_grad():
        for j, (rows, out) in enumerate(zip(x, student.eval()(x), strict=True)):
            torch.testing.assert_close(out, student.member(j)(rows), rtol=1e-5, atol=1e-5)
    assert isinstance(student.network, InTurn)


def test_a_random_network_is_refused():
    with pytest.raises(ConversionError, match="mixes the rows of a batch, or is random"):
        BatchEnsemble(by_hand.Random(), 2)


def test_an_order_that_only_larger_images_show_is_noticed_at_their_first_use():
    """At the size of the trial there is only one window, so that rows seem to be in order."""
    network = by_hand.WindowsFirst()
    student = BatchEnsemble(network, MEMBERS, size=(3, 4, 4))
    student(images(4).float())
    with pytest.raises(ConversionError, match=re.escape("(3, 8, 8)")):
        student(images(8).float())
    assert isinstance(BatchEnsemble(network, MEMBERS, size=(3, 8, 8)).network, InTurn)


def test_a_trunk_that_mixes_rows_is_noticed_by_heads():
    with pytest.raises(ConversionError, match="does not compute what it computes alone"):
        Hydra(by_hand.BatchMean(), 2)(images(8)[:2].float())


# What docs/own-networks.md says


@pytest.mark.parametrize(("library", "names"), [("transformers", TRANSFORMERS), ("timm", TIMM)])
def test_the_page_lists_what_is_tried_here(library: str, names: dict[str, Any]):
    row = re.search(rf"^\| {library} \| (.*) \| (.*)\|$", PAGE, re.MULTILINE)
    assert row is not None
    together, turns = ({name.strip() for name in cell.split(",")} - {""} for cell in row.groups())
    assert turns == IN_TURN & set(names)
    assert together == set(names) - turns


def test_the_pages_program_prints_what_it_says(capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("transformers", reason="transformers is not installed")
    example = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    exec(example[1], {})
    assert capsys.readouterr().out == example[2]
