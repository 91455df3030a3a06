"""Members W + B_j A_j compared with weights computed by hand, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from families import TIMM
from test_families import MEMBERS, images, made
from torch import nn

from polyphony.ensembles import DeepEnsemble, LoRAEnsemble
from polyphony.nn import ConversionError, resnet
from polyphony.nn.conversion import unwrap
from polyphony.nn.low_rank import LowRank, OwnWeights

RANK = 2
TRANSFORMERS_OF_ATTENTION = ["ViT", "DeiT", "Swin", "Beit", "CLIP", "Dinov2"]
TIMM_OF_ATTENTION = [name for name in TIMM if name.startswith(("vit", "deit", "swin"))]
WITHOUT_ATTENTION = ["ConvNext", "ResNet", "Patches"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def moved(student: LoRAEnsemble) -> LoRAEnsemble:
    """Moves every parameter of the members from its initial value."""
    rng = seeded(5)
    for layer in student.modules():
        if isinstance(layer, LowRank | OwnWeights):
            for value in layer.parameters(recurse=False):
                value.data += 0.05 * torch.randn(value.shape, generator=rng, dtype=value.dtype)
    return student


def by_hand(network: nn.Module, student: LoRAEnsemble, j: int) -> nn.Module:
    """The original network with weights W + B_j A_j, row by row, and member j's classifier."""
    alone = copy.deepcopy(network).double()
    for name, layer in unwrap(student.network).named_modules():
        if not isinstance(layer, LowRank | OwnWeights):
            continue
        plain = alone.get_submodule(name)
        if isinstance(layer, OwnWeights):
            plain.weight.data.copy_(layer.weights[j])
        else:
            rows = len(plain.weight) // layer.up.shape[1]
            for row in range(len(plain.weight)):
                part, within = divmod(row, rows)
                for k in range(layer.up.shape[-1]):
                    change = layer.up[j, part, within, k] * layer.down[j, part, k]
                    plain.weight.data[row] += change.detach().view(plain.weight[row].shape)
        if plain.bias is not None:
            plain.bias.data.copy_(layer.bias[j])
    return alone


@pytest.mark.parametrize("name", TRANSFORMERS_OF_ATTENTION + TIMM_OF_ATTENTION + WITHOUT_ATTENTION)
def test_members_of_foreign_networks_are_exact(name: str):
    network, side = made(name)
    size = (3, side, side) if name in TIMM else None
    student = moved(LoRAEnsemble(network, MEMBERS, rank=RANK, rng=seeded(), size=size).double()).eval()
    x = images(side)
    adapted = {name: layer for name, layer in student.named_modules() if isinstance(layer, LowRank)}
    assert adapted
    attends = any("att" in each for each in adapted)
    assert attends == (name not in WITHOUT_ATTENTION)
    assert all(isinstance(layer.shared, nn.Linear) for layer in adapted.values()) or not attends
    with torch.no_grad():
        outputs, folded = student(x), student.folded()
        assert isinstance(folded, DeepEnsemble)
        for j in range(MEMBERS):
            expected = by_hand(network, student, j)(x[j])
            torch.testing.assert_close(outputs[j], expected, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(student.member(j)(x[j]), expected, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(folded(x)[j], expected, rtol=1e-6, atol=1e-6)
        assert not torch.allclose(outputs[0], student.member(1)(x[0]), rtol=1e-2)


@pytest.mark.parametrize("name", TIMM_OF_ATTENTION)
def test_a_fused_layer_has_a_matrix_for_queries_keys_and_values_each(name: str):
    network, side = made(name)
    student = LoRAEnsemble(network, MEMBERS, rank=RANK, size=(3, side, side))
    fused = {n: m for n, m in student.named_modules() if isinstance(m, LowRank) and n.endswith("qkv")}
    assert fused
    for layer in fused.values():
        outputs, inputs = layer.shared.weight.shape
        assert layer.down.shape == (MEMBERS, 3, RANK, inputs)
        assert layer.up.shape == (MEMBERS, 3, outputs // 3, RANK)


def test_it_starts_as_the_network_with_published_draws():
    network = resnet(8, classes=10, width=4, rng=seeded()).double().eval()
    student = LoRAEnsemble(network, MEMBERS, rank=RANK, factor_std=0.0, rng=seeded(1)).eval()
    x = torch.rand(MEMBERS, 3, 3, 8, 8, generator=seeded(2), dtype=torch.float64)
    torch.testing.assert_close(student(x), torch.stack([network(rows) for rows in x]))
    wide = LoRAEnsemble(
        nn.Sequential(nn.Flatten(), nn.Linear(300, 200), nn.Linear(200, 5)), 2, rank=100, size=(3, 10, 10)
    )
    down = next(layer for layer in wide.modules() if isinstance(layer, LowRank)).down.detach()
    drawn = nn.init.xavier_uniform_(torch.empty(100, 300), gain=10, generator=seeded(3))  # PyTorch's own
    assert abs(float(down.std() / drawn.std()) - 1) < 0.02
    assert float(down.abs().max()) <= 10 * (6 / 400) ** 0.5
    fresh = LoRAEnsemble(network, MEMBERS, rng=seeded(1))
    heads = next(layer for layer in fresh.modules() if isinstance(layer, OwnWeights))
    assert not torch.equal(heads.weights[0], heads.weights[1])
    assert torch.count_nonzero(heads.bias) == 0


def learns(student: LoRAEnsemble) -> set[str]:
    student.train()(torch.rand(2, 4, 3, 8, 8)).square().sum().backward()
    return {name.rpartition(".")[2] for name, value in student.named_parameters() if value.grad is not None}


def test_a_frozen_student_trains_its_matrices_and_classifiers_alone():
    network = resnet(8, classes=10, width=4, rng=seeded())
    assert learns(LoRAEnsemble(network, 2, freeze=True)) == {"down", "up", "weights", "bias"}
    assert learns(LoRAEnsemble(network, 2)) == {"down", "up", "weights", "bias", "weight"}
    frozen = LoRAEnsemble(network, 2, freeze=True)
    assert not any(v.requires_grad for n, v in frozen.named_parameters() if ".bn" in n)


def test_layers_are_those_named_and_what_they_match():
    network = resnet(14, classes=10, width=4)

    def adapted(*layers: str) -> set[str]:
        student = LoRAEnsemble(network, 2, layers=layers)
        return {name for name, layer in student.network.named_modules() if isinstance(layer, LowRank)}

    assert adapted("stem") == {"stem"}
    assert adapted("stages.2") == {f"stages.2.{block}.conv{k}" for block in (0, 1) for k in (1, 2)}
    assert adapted("stages.*.0.conv1") == {f"stages.{stage}.0.conv1" for stage in range(3)}
    assert len(adapted()) == 1 + 3 * 2 * 2
    with pytest.raises(
        ConversionError, match=r"no Conv2d or Linear layer in 'stagess.0': did you mean 'stages.0'"
    ):
        adapted("stem", "stagess.0")


def test_what_it_cannot_do_is_one_sentence():
    with pytest.raises(ValueError, match="rank must be greater than 0"):
        LoRAEnsemble(resnet(8, 10), 2, rank=0)
    with pytest.raises(ValueError, match=r"not a plain Linear: name the network's classifier as `head`"):
        LoRAEnsemble(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), 2)
