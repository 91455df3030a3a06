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
    ("optimiser", "tolerance"), [(SGD(), 1e-11), (AdamW(eps=1e-10), 1e-6)], ids=["sgd", "adamw"]
)
def test_each_network_learns_as_it_would_alone_from_its_teacher(optimiser, tolerance):
    plan = Plan(epochs=3, batch=8, learning_rate=0.02, warm_up=1, weight_decay=1e-2, optimizer=optimiser)
    plan = plan.replace(augment=Augmentation(0, False))
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
