from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from polyphony.ensembles import (
    BatchEnsemble,
    DeepEnsemble,
    Hydra,
    LatentBE,
    LoRAEnsemble,
    SameRows,
    Single,
)
from polyphony.nn import MemberBatchNorm, resnet


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(seed: int = 0) -> nn.Module:
    return resnet(8, 5, channels=2, width=4, rng=seeded(seed))


def images(*shape: int) -> Tensor:
    return torch.rand(*shape, 2, 6, 6, generator=seeded(7))


def trained(student: BatchEnsemble, steps: int = 5) -> BatchEnsemble:
    """Trains a few steps, so that BatchNorm's statistics, biases and factors are not at their defaults."""
    optimiser = torch.optim.SGD(student.parameters(), 0.1, momentum=0.9)
    for step in range(steps):
        x = torch.rand(student.members, 8, 2, 6, 6, generator=seeded(step))
        optimiser.zero_grad()
        student(x).square().mean().backward()
        optimiser.step()
    return student


@pytest.mark.parametrize("members", [1, 3])
def test_teacher_j_answers_for_row_block_j(members):
    networks = [small(j).eval() for j in range(members)]
    teachers = DeepEnsemble(networks)
    x = images(members, 4)
    out = teachers(x)
    for j in range(members):
        torch.testing.assert_close(out[j], networks[j](x[j]))


def test_teachers_are_frozen_and_stay_in_eval_mode_inside_a_training_module():
    teachers = DeepEnsemble([small(0), small(1)])
    nn.ModuleList([teachers]).train()
    assert not any(module.training for module in teachers.modules())
    x = images(2, 3).requires_grad_()
    before = {name: value.clone() for name, value in teachers.state_dict().items()}
    teachers(x).sum().backward()
    assert x.grad.abs().sum() > 0
    assert all(p.grad is None and not p.requires_grad for p in teachers.parameters())
    assert all(torch.equal(value, before[name]) for name, value in teachers.state_dict().items())


def test_an_ensemble_of_nobody_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        DeepEnsemble([])


@pytest.mark.parametrize(
    "ensemble", [DeepEnsemble([small(), small(1)]), BatchEnsemble(small(), 2)], ids=["deep", "batch"]
)
@pytest.mark.parametrize("leading", [1, 3, 4])
def test_inputs_for_another_number_of_members_are_refused(ensemble, leading):
    with pytest.raises(ValueError, match=rf"inputs must be \[2 b …\], .* not \[{leading}, 2, "):
        ensemble(images(leading, 2))


def test_single_is_its_network_as_one_member():
    network = small().eval()
    x = images(1, 3)
    torch.testing.assert_close(Single(network)(x), network(x[0])[None])
    with pytest.raises(ValueError, match=r"inputs must be \[1 b …\]"):
        Single(network)(images(2, 3))


@pytest.mark.parametrize("member_norm", [False, True])
@pytest.mark.parametrize("keep", [(), ("stem", "classifier")], ids=["all", "kept"])
def test_each_member_of_a_trained_student_is_a_plain_network(member_norm, keep):
    student = trained(BatchEnsemble(small(), 3, rng=seeded(), keep=keep, member_norm=member_norm)).eval()
    x = images(3, 4)
    out = student(x)
    assert not torch.allclose(student(x[:1].expand_as(x))[0], student(x[:1].expand_as(x))[1])
    for j in range(3):
        plain = student.member(j).eval()
        torch.testing.assert_close(out[j], plain(x[j]), rtol=1e-4, atol=1e-5)
        kinds = {type(module) for module in plain.modules()}
        assert not kinds & {MemberBatchNorm}
        assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in small().parameters())


@pytest.mark.parametrize("j", [-1, 3])
def test_a_member_that_is_not_there_is_refused(j):
    with pytest.raises(IndexError, match=f"there is no member {j}: members are 0 to 2"):
        BatchEnsemble(small(), 3).member(j)


def test_in_training_the_shared_norm_sees_the_rows_of_all_members():
    student = BatchEnsemble(small(), 2, rng=seeded())
    stem_inputs = images(2, 4)
    student(stem_inputs)
    stem = student.network.stem
    rows = torch.cat([stem.merge(j)(stem_inputs[j]) for j in range(2)])
    torch.testing.assert_close(student.network.bn.running_mean, 0.1 * rows.mean((0, 2, 3)))


def test_the_network_given_is_left_as_it_was():
    network = small()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    trained(BatchEnsemble(network, 2))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_every_member_sees_every_example_in_the_same_order():
    assert Single(small()).assign(4, seeded()) == SameRows(1)
    assert BatchEnsemble(small(), 3).assign(4, seeded()) == SameRows(3)


@pytest.mark.parametrize("copied", [lambda network: network, copy.deepcopy])
@pytest.mark.parametrize("form", [BatchEnsemble, Hydra, LatentBE, LoRAEnsemble])
def test_a_student_from_a_teacher_trains_although_the_teacher_is_frozen(form, copied):
    network = small()
    DeepEnsemble([network])  # freezes it
    student = form(copied(network), 2)
    assert all(weight.requires_grad for weight in student.parameters())
    assert not any(weight.requires_grad for weight in network.parameters())


@pytest.mark.parametrize("teaches", [False, True])
def test_a_student_keeps_what_the_user_has_frozen(teaches):
    network = small()
    frozen = next(network.parameters()).requires_grad_(False)
    if teaches:
        DeepEnsemble([network])
    student = BatchEnsemble(network, 2)
    still = [weight for weight in student.parameters() if not weight.requires_grad]
    assert [weight.shape for weight in still] == [frozen.shape]


def test_a_network_that_the_user_has_frozen_trains_its_factors_alone():
    student = BatchEnsemble(small().requires_grad_(False), 2)
    shared = [weight for name, weight in student.named_parameters() if name.endswith(".weight")]
    assert not any(weight.requires_grad for weight in shared)
    assert any(weight.requires_grad for weight in student.parameters())
