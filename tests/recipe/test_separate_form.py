from __future__ import annotations

import pytest
import torch

from polyphony.ensembles import BatchEnsemble, Separate
from polyphony.nn.counting import Counting
from polyphony.recipe import Blueprint
from polyphony.recipe.forms import SeparateForm
from polyphony.recipe.networks import ResNetTable, TimmNetwork, WideResNetTable

MEMBERS = 4
RESNET = ResNetTable(kind="resnet", depth=8, width=12)
WIDE = WideResNetTable(kind="wide_resnet", depth=10, widen=4)


def blueprint(table) -> Blueprint:
    return Blueprint(table, 10, (3, 16, 16))


def parameters(model) -> int:
    return sum(weight.numel() for weight in model.parameters())


def multiply_adds(student) -> float:
    x, counting = torch.rand(2, 3, 16, 16), Counting()
    student.eval().ask_all(x)
    return counting.of(lambda: student.ask_all(x)).flops


@pytest.mark.parametrize("table", [RESNET, WIDE], ids=["resnet", "wide_resnet"])
@pytest.mark.parametrize(
    ("form", "cost", "branch"),
    [
        ({"match_cost": "parameters"}, parameters, None),
        ({"match_cost": "multiply-adds"}, multiply_adds, None),
        ({"match_cost": "multiply-adds", "match_branch": "stages.2"}, multiply_adds, "stages.2"),
    ],
    ids=["parameters", "multiply-adds", "branch"],
)
def test_no_other_width_is_nearer_to_the_cost_of_the_batch_ensemble(table, form, cost, branch):
    given, key = blueprint(table), table.width_key
    goal = cost(BatchEnsemble(given.network(), MEMBERS, branch=branch))
    found = SeparateForm(kind="separate", **form).student(given, MEMBERS, None)

    def apart(student) -> float:
        return abs(torch.tensor(cost(student) / goal).log())

    others = [
        SeparateForm(kind="separate", width=width).student(given, MEMBERS, None)
        for width in range(1, getattr(table, key) + 1)
    ]
    assert apart(found) == min(map(apart, others))


def test_networks_are_drawn_in_order_and_have_the_requested_size():
    student = SeparateForm(kind="separate", width=3).student(blueprint(RESNET), 2, torch.Generator())
    one, other = student.networks
    assert isinstance(student, Separate)
    assert one.stem.out_channels == 3
    assert not torch.equal(one.stem.weight, other.stem.weight)
    own = SeparateForm(kind="separate", network=WIDE).student(blueprint(RESNET), 2, None)
    assert parameters(own) == 2 * parameters(blueprint(WIDE).network())


def test_a_network_without_a_width_is_rejected():
    table = TimmNetwork(kind="timm", name="vit_tiny_patch16_224")
    for form in ({"width": 3}, {"match_cost": "parameters"}):
        with pytest.raises(
            ValueError, match=r"'vit_tiny_patch16_224' has no width to change: give form.network"
        ):
            SeparateForm(kind="separate", **form).network_table(blueprint(table), 2)


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"width": 3, "match_cost": "parameters"}, "exclude each other"),
        ({"width": 3, "match_branch": 0.5}, "match_branch needs match_cost"),
        ({"width": 0}, "width must be greater than 0"),
        ({"branch": 0.5}, "has no setting 'branch'"),
    ],
)
def test_settings_that_contradict_each_other_are_one_sentence(form, sentence):
    with pytest.raises(ValueError, match=sentence):
        SeparateForm(kind="separate", **form)
