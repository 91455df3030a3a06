from __future__ import annotations

import pytest
import torch
from torch import nn

from cases import MEMBERS, network, seeded, split, teachers
from polyphony.data import Augmentation
from polyphony.distill import Distill
from polyphony.distill.perturb import Clean
from polyphony.ensembles import DeepEnsemble, Separate, Single
from polyphony.training.fit import Plan, fit
from polyphony.training.optimise import SGD, AdamW

DOUBLE = torch.float64


@pytest.mark.parametrize(
    ("optimiser", "clip", "tolerance"),
    [(SGD(), None, 1e-11), (SGD(), 0.1, 1e-6), (AdamW(eps=1e-10), None, 1e-6)],
    ids=["sgd", "clipped", "adamw"],
)
def test_each_network_learns_as_it_would_alone_from_its_teacher(optimiser, clip, tolerance):
    plan = Plan(epochs=3, batch=8, learning_rate=0.02, warm_up=1, weight_decay=1e-2, optimizer=optimiser)
    plan = plan.replace(augment=Augmentation(0, False), clip=clip)
    train, valid = split(24, 1), split(9, 5)
    student = Separate([network(3 + j) for j in range(MEMBERS)]).double()
    fit(student, Distill(teachers(dtype=DOUBLE), perturb=Clean()), train, valid, plan, seeded(7))
    for j in range(MEMBERS):
        alone = Single(network(3 + j)).double()
        teacher = DeepEnsemble([teachers(dtype=DOUBLE).networks[j]])
        fit(alone, Distill(teacher, perturb=Clean()), train, valid, plan, seeded(7))
        for mine, its in zip(student.networks[j].parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine, its, rtol=0, atol=tolerance)


def test_members_are_its_networks_and_copies_of_them():
    student = Separate([network(3 + j) for j in range(MEMBERS)]).eval()
    x = torch.rand(MEMBERS, 4, 1, 5, 5, generator=seeded())
    for j in range(MEMBERS):
        alone = student.member(j)
        torch.testing.assert_close(student(x)[j], alone(x[j]))
        torch.testing.assert_close(student.folded()(x)[j], alone(x[j]), rtol=1e-5, atol=1e-5)
        assert not {*alone.parameters()} & {*student.parameters()}
    assert torch.equal(student.ask_all(x[0]), student(x[:1].expand_as(x)))
    with pytest.raises(IndexError, match="there is no member 2: members are 0 to 1"):
        student.member(2)


def test_folding_leaves_it_trainable():
    student = Separate([network(3 + j) for j in range(MEMBERS)])
    student.folded()
    assert all(weight.requires_grad for weight in student.parameters())
    assert all(part.training for part in student.modules())
    assert isinstance(student.networks[0], nn.Sequential)


def test_grouped_convolutions_of_packed_ensembles_are_the_same_function():
    """Packed-Ensembles with γ = 1: all members in one network, with one group of channels each."""

    def member() -> nn.Sequential:
        first, second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3, stride=2)
        return nn.Sequential(first, nn.BatchNorm2d(4), nn.ReLU(), second, nn.Flatten(), nn.Linear(24, 5))

    student = Separate([member() for _ in range(3)]).double().train()
    x = torch.rand(3, 7, 1, 5, 5, generator=seeded(), dtype=DOUBLE)
    first, norm, _, second, _, out = zip(*student.networks, strict=True)

    def joined(layers: tuple[nn.Module, ...], name: str) -> torch.Tensor:
        return torch.cat([getattr(layer, name) for layer in layers])

    rows = x.transpose(0, 1).flatten(1, 2)  # [b (m c) h w]
    hidden = nn.functional.conv2d(rows, joined(first, "weight"), joined(first, "bias"), padding=1, groups=3)
    weight, bias = joined(norm, "weight"), joined(norm, "bias")
    hidden = nn.functional.batch_norm(hidden, None, None, weight, bias, training=True).relu()
    hidden = nn.functional.conv2d(
        hidden, joined(second, "weight"), joined(second, "bias"), stride=2, groups=3
    )
    weights = torch.stack([layer.weight for layer in out])
    packed = torch.einsum("bmf,mkf->mbk", hidden.reshape(7, 3, 24), weights)
    packed = packed + torch.stack([layer.bias for layer in out])[:, None]
    torch.testing.assert_close(packed, student(x), rtol=0, atol=1e-12)
