"""What the jobs of a study depend on. Nothing is trained: stages are given fresh weights."""

from __future__ import annotations

import pytest
import torch

from polyphony.recipe import read_recipe
from polyphony.study import Study
from polyphony.study.jobs import Predict

SETTINGS = (
    "members=2",
    "seeds=[0]",
    "data.per_class=2",
    "data.valid=30",
    "data.test=30",
    "teachers.network.width=2",
    "teachers.extra=1",
    "student.batch=10",
    "methods={ods = {perturb = 'ods'}, diversify = {perturb = 'mixup+diversify'}}",
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def finish_teachers(study: Study) -> None:
    for j in range(study.teachers):
        weights = study.network(study.recipe.teachers.network, seeded(j)).state_dict()
        study.teacher_stage(j).finish(weights, {})


def finish_student(study: Study, method: str, seed: int) -> None:
    weights = study.fresh_student(method, seeded(seed)).state_dict()
    study.student_stage(method, 0).finish(weights, {"step_size": 0.01})


@pytest.mark.parametrize("method", ["ods", "diversify"])
def test_images_perturbed_through_a_student_are_keyed_by_its_weights(tmp_path, method):
    study = Study(read_recipe("digits", SETTINGS), tmp_path)
    finish_teachers(study)
    keys = []
    for seed in (0, 1):
        finish_student(study, method, seed)
        keys.append(Predict(study, "teachers", None, f"train+{method}").key)
    assert (keys[0] != keys[1]) == (method == "diversify")
