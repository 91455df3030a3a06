"""Every shipped recipe: its parameters are the paper's, and all its students train."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from polyphony.data import Split, Splits, outline
from polyphony.ensembles import DeepEnsemble
from polyphony.recipe import Data, read_recipe, shipped
from polyphony.study.cost import loss_for_counting, sketch_models
from polyphony.study.fingerprints import fingerprints
from polyphony.study.plan import plan
from polyphony.study.study import Study
from polyphony.training.fit import Plan, fit
from polyphony.training.predict import predict

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


@cache
def tiny_splits(data: Data, count: int) -> Splits:
    """Random images: so many to train on, one to validate and one to test with."""
    whole = outline(data.name, data)
    shape, rng = whole.train.images.shape[1:], torch.Generator().manual_seed(0)

    def some(count: int) -> Split:
        images = torch.randint(256, (count, *shape), generator=rng, dtype=torch.uint8)
        return Split(images, torch.randint(len(whole.classes), (count,), generator=rng))

    return Splits(whole.name, whole.classes, some(count), some(1), some(1))


def tiny(name: str) -> Study:
    """A study on as many random images of the right shape and classes as two steps need."""
    recipe = read_recipe(name)
    small = {"batch": 2, "epochs": 1, "warm_up": 0}
    recipe = recipe.model_copy(update={"student": recipe.student.model_copy(update=small)})
    splits = tiny_splits(recipe.data, 2 * recipe.student.batch)
    return Study(recipe, Path("nowhere"), splits_override=splits)


SMALLEST = {"resnet": {"depth": 8, "width": 4}, "wide_resnet": {"depth": 10, "widen": 1}}


def shrunk(study: Study) -> Study:
    """A study with the smallest networks of their kinds, from fresh weights: the real ones are counted."""
    parts = {name: getattr(study.recipe, name) for name in ("teachers", "student")}
    for name, part in parts.items():
        if part.network:
            small = part.network.model_copy(update=SMALLEST[part.network.kind])
            parts[name] = part.model_copy(update={"network": small})
    parts["student"] = parts["student"].model_copy(update={"start": "fresh"})
    methods = study.recipe.methods.items()
    parts["methods"] = {name: method.model_copy(update={"start": None}) for name, method in methods}
    return replace(study, recipe=study.recipe.model_copy(update=parts))


def trainings() -> Iterator[tuple[str, str]]:
    """Every kind of training once, by form and perturbation, and one of every recipe.

    The digits, whose size is not known without them, are run whole elsewhere.
    """
    seen = set()
    for name in shipped():
        recipe = read_recipe(name)
        if recipe.data.name == "digits":
            continue
        for method in recipe.methods:
            settings = recipe.distillation(method)
            kind = str((recipe.form(method), settings and (settings.perturb, bool(settings.source))))
            if not seen.issuperset({kind, name}):
                seen |= {kind, name}
                yield name, method


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_papers(name):
    study, (teachers, student) = tiny(name), PARAMETERS[name]
    counts = sketch_models(study).parameter_counts
    assert counts["teachers"] == teachers
    assert {counts[method] for method in study.recipe.methods} == {student}


@pytest.mark.parametrize(("name", "members"), END2.items())
def test_a_dirichlet_student_is_as_large_as_one_teacher(name, members):
    counts = sketch_models(tiny(name)).parameter_counts
    assert counts["teachers"] == members * 464_154
    assert counts["end2"] == counts["end2-proxy"] == 464_154


def test_recipes_of_the_paper_and_of_small_studies_are_shipped():
    evidence = {f"evidence-{data}" for data in ("digits", "fashion", "cifar10", "cifar100")}
    assert set(shipped()) == PARAMETERS.keys() | END2.keys() | evidence | {
        "digits",
        "demo",
        *(f"evidence-2-{study}" for study in ("choose", "cifar10", "fresh", "full", "cifar100")),
        *(f"evidence-3-{study}" for study in ("choose-cifar100", "cifar10", "cifar100", "fashion", "price")),
        *(f"evidence-4-{study}" for study in ("full", "small", "20000", "cifar100-fresh", "price")),
        "evidence-5-cifar10",
        "evidence-5-cifar100",
        "evidence-branch",
        "students-cifar10",
        "students-fashion",
        "unlabelled-fashion",
    }


@pytest.mark.parametrize(("name", "method"), list(trainings()))
def test_two_steps_change_every_weight_and_leave_predictions(name, method):
    study = shrunk(tiny(name))
    recipe, splits = study.recipe, study.data()
    student = study.fresh_student(method, torch.Generator().manual_seed(1))
    before = {key: value.clone() for key, value in student.named_parameters()}
    teacher = study.network(recipe.teachers.network, torch.Generator().manual_seed(2))
    loss = loss_for_counting(study, method, DeepEnsemble(recipe.members * [teacher]))
    plan = Plan(epochs=1, batch=recipe.student.batch, learning_rate=1e-4, warm_up=0)
    log = fit(student, loss, splits.train, splits.valid, plan, torch.Generator().manual_seed(3))
    assert all(math.isfinite(value) for value in log[0].values())
    unchanged = [key for key, value in student.named_parameters() if torch.equal(value, before[key])]
    assert unchanged == []
    trained = recipe.form(method).trained(student)
    predictions = predict(trained, splits.test)
    assert predictions.logits.shape == (study.predicting_members(method), 1, len(splits.classes))
    assert predictions.logits.isfinite().all()


def test_studies_of_the_same_networks_share_their_teachers():
    def teachers(name: str, count: int) -> list[str]:
        study = tiny(name)
        return [job.key for job in plan(study, fingerprints(study))[:count]]

    for one, other, count in (
        ("cifar10-resnet32-be4", "cifar10-resnet32-be8", 8),
        ("cifar10-resnet32-be4", "cifar10-resnet32-end2-32", 8),
        ("cifar10-resnet32-end2-16", "cifar10-resnet32-end2-32", 16),
        ("cifar10-resnet32-be4", "cifar10-resnet32-adversarial", 4),
        ("cifar100-wrn28x10-be4", "cifar100-wrn28x10-mimo3", 3),
        ("cifar100-wrn28x10-be4", "cifar100-wrn28x2-be4", 4),
        ("cifar100-wrn28x10-be4", "cifar100-wrn28x5-be4", 4),
    ):
        assert teachers(one, count) == teachers(other, count), (one, other)
