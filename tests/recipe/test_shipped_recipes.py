"""Every shipped recipe: its parameters are the paper's, and all its students train."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from polyphony.data import Split, Splits, outline
from polyphony.ensembles import DeepEnsemble
from polyphony.predictions import predict
from polyphony.recipe import Recipe, read_recipe, shipped
from polyphony.study import OutlinedStudy, Study, parameter_counts
from polyphony.study.cost import probing_loss
from polyphony.train import Plan, fit

PARAMETERS = {  # teachers and student, from the paper's tables and exact counts of its networks
    "cifar10-resnet32-be4": (4 * 464_154, 473_324),
    "cifar10-resnet32-be8": (8 * 464_154, 482_504),
    "cifar10-resnet32-adversarial": (4 * 464_154, 473_324),
    "cifar100-wrn28x10-be4": (4 * 36_536_884, 36_615_868),
    "cifar100-wrn28x10-mimo3": (3 * 36_536_884, 36_665_948),
    "cifar100-wrn28x2-be4": (4 * 36_536_884, 1_495_740),
    "cifar100-wrn28x5-be4": (4 * 36_536_884, 9_201_468),
    "tinyimagenet-wrn28x5-be4": (4 * 36_600_984, 9_234_268),  # 146.40 million: 100 more classes of 641
}
END2 = {f"cifar10-resnet32-end2-{members}": members for members in (4, 8, 16, 32)}


@dataclass(frozen=True)
class TinyStudy(Study):
    """A study on as many random images of the right shape and classes as two steps need."""

    @property
    def splits(self) -> Splits:
        whole = outline(self.recipe.data.name, self.recipe.data.options())
        shape, rng = whole.train.images.shape[1:], torch.Generator().manual_seed(0)

        def some(count: int) -> Split:
            images = torch.randint(256, (count, *shape), generator=rng, dtype=torch.uint8)
            return Split(images, torch.randint(len(whole.classes), (count,), generator=rng))

        train, valid, test = (some(count) for count in (2 * self.recipe.student.batch, 1, 1))
        return Splits(whole.name, whole.classes, train, valid, test)


def tiny(name: str) -> TinyStudy:
    recipe = read_recipe(name)
    wide = recipe.teachers.network.kind == "wide_resnet"
    small = {"batch": 1 if wide else 2, "epochs": 1, "warm_up": 0}
    recipe = recipe.model_copy(update={"student": recipe.student.model_copy(update=small)})
    return TinyStudy(recipe, Path("nowhere"))


def methods_to_run(recipe: Recipe) -> list[str]:
    """All, but of WideResNets, which take seconds a step, only the one that takes every part of a step."""
    return ["kd-ods"] if recipe.teachers.network.kind == "wide_resnet" else list(recipe.methods)


TRAININGS = [
    (name, method)
    for name in shipped()
    if name != "digits"  # run whole elsewhere
    for method in methods_to_run(read_recipe(name))
]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_papers(name):
    study = OutlinedStudy(read_recipe(name), Path("nowhere"))
    counts = parameter_counts(study)
    teachers, student = PARAMETERS[name]
    assert counts["teachers"] == teachers
    assert {counts[method] for method in study.recipe.methods} == {student}


@pytest.mark.parametrize(("name", "members"), END2.items())
def test_a_dirichlet_student_is_as_large_as_one_teacher(name, members):
    counts = parameter_counts(OutlinedStudy(read_recipe(name), Path("nowhere")))
    assert counts["teachers"] == members * 464_154
    assert counts["end2"] == counts["end2-proxy"] == 464_154


def test_every_recipe_of_the_paper_is_shipped_and_nothing_else_but_desk_studies():
    desk = {"cifar10-desk", "cifar10-desk-long", "cifar100-desk", "cifar100-desk-small", "students-desk"}
    assert set(shipped()) == PARAMETERS.keys() | END2.keys() | desk | {
        "digits",
        "evidence-digits",
        "evidence-fashion",
    }


@pytest.mark.parametrize(("name", "method"), TRAININGS)
def test_two_steps_change_every_weight_and_leave_predictions(name, method):
    study = tiny(name)
    recipe, splits = study.recipe, study.splits
    student = study.fresh_student(method, torch.Generator().manual_seed(1))
    before = {key: value.clone() for key, value in student.named_parameters()}
    teacher = study.network(recipe.teachers.network, torch.Generator().manual_seed(2))
    loss = probing_loss(study, method, DeepEnsemble(recipe.members * [teacher]), student)
    plan = Plan(epochs=1, batch=recipe.student.batch, learning_rate=1e-4, warm_up=0)
    log = fit(student, loss, splits.train, splits.valid, plan, torch.Generator().manual_seed(3))
    assert all(math.isfinite(value) for value in log[0].values())
    unchanged = [key for key, value in student.named_parameters() if torch.equal(value, before[key])]
    assert unchanged == []
    trained = recipe.form(method).trained(student)
    predictions = predict(trained, splits.test)
    assert predictions.logits.shape == (study.members(method), 1, len(splits.classes))
    assert predictions.logits.isfinite().all()


def test_studies_of_the_same_networks_share_their_teachers():
    def teachers(name: str, count: int) -> list[str]:
        study = tiny(name)
        return [study.teacher_stage(j).key for j in range(count)]

    for one, other, count in (
        ("cifar10-resnet32-be4", "cifar10-resnet32-be8", 8),
        ("cifar10-resnet32-be4", "cifar10-resnet32-end2-32", 8),
        ("cifar10-resnet32-end2-16", "cifar10-resnet32-end2-32", 16),
        ("cifar10-resnet32-be4", "cifar10-resnet32-adversarial", 4),
        ("cifar100-wrn28x10-be4", "cifar100-wrn28x10-mimo3", 3),
        ("cifar100-wrn28x10-be4", "cifar100-wrn28x2-be4", 4),
        ("cifar100-wrn28x10-be4", "cifar100-wrn28x5-be4", 4),
        ("cifar100-desk", "cifar100-desk-small", 4),
        ("cifar10-desk", "students-desk", 4),
        ("cifar10-desk", "cifar10-desk-long", 8),
    ):
        assert teachers(one, count) == teachers(other, count), (one, other)
