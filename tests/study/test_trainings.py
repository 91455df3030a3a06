"""What the jobs of a study depend on. Stages are given fresh weights where training has no part in it."""

from __future__ import annotations

import pytest
import torch

from polyphony.recipe import read_recipe
from polyphony.runs import store
from polyphony.runs.stage import Stage
from polyphony.study import analyses, trainings
from polyphony.study.analyses import jacobians_job, snr_job, transfer_job
from polyphony.study.evaluation import PredictShifted, unknown
from polyphony.study.study import Study
from polyphony.study.trainings import TrainStudent
from polyphony.training.fit import Unwatched

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
MATCHED = "methods={ods = {perturb = 'ods', source = 'extra', step_size = 'match'}}"


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def finish_teachers(study: Study) -> None:
    for j in range(study.teacher_count):
        weights = study.network(study.recipe.teachers.network, seeded(j)).state_dict()
        Stage(study.teacher(j).folder, {}).finish(weights, {})


def finish_student(study: Study, method: str, seed: int) -> None:
    weights = study.fresh_student(method, seeded(seed)).state_dict()
    Stage(study.student(method, seed).folder, {}).finish(weights, {"step_size": 0.01})


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_step_is_matched_with_the_kernels_of_its_training(tmp_path, monkeypatch, deterministic):
    settings = [*SETTINGS[:-1], MATCHED, f"deterministic={str(deterministic).lower()}"]
    study = Study(read_recipe("digits", settings), tmp_path)
    monkeypatch.setattr(trainings, "match_step_size", lambda *_: torch.are_deterministic_algorithms_enabled())
    job = TrainStudent(study, "ods", 0)
    assert job.step_size(study.recipe.distillation("ods"), None, None) == deterministic


def test_a_step_is_matched_with_an_extra_teacher_that_is_loaded_once(tmp_path, monkeypatch):
    study = Study(read_recipe("digits", [*SETTINGS[:-1], MATCHED]), tmp_path)
    finish_teachers(study)
    loaded, load = [], Study.load_teachers

    def load_and_tell(study, count, first=0):
        loaded.append((count, first))
        return load(study, count, first)

    monkeypatch.setattr(Study, "load_teachers", load_and_tell)
    loss, step_size = TrainStudent(study, "ods", 0).loss()
    assert sorted(loaded) == [(1, 2), (2, 0)]
    assert loss.perturb.perturb.step_size == step_size
    source, third = loss.perturb.source.networks[0], load(study, 1, 2).folded().networks[0]
    x = torch.rand(3, 1, 8, 8, generator=seeded(5))
    torch.testing.assert_close(source.eval()(x), third.eval()(x))


@pytest.mark.parametrize(
    "look",
    [
        lambda study: PredictShifted(study, "teachers", None, unknown(study, "mnist")).job({"x": ""}),
        lambda study: PredictShifted(study, "ods", 0, unknown(study, "mnist")).job({"x": ""}),
        lambda study: jacobians_job(study, ("ods", 0), 5),
        lambda study: snr_job(study, ("ods", 0), "ods", 1.0),
        transfer_job,
    ],
    ids=["shifted teachers", "shifted student", "jacobians", "snr", "transfer"],
)
def test_what_a_job_reads_does_not_grow_with_the_number_of_students(tmp_path, monkeypatch, look):
    counts, read = [], store.read_bytes
    for seeds in ([0], [0, 1, 2]):
        study = Study(read_recipe("digits", [*SETTINGS, f"seeds={seeds}"]), tmp_path / str(len(seeds)))
        finish_teachers(study)
        for method, seed in study.students:
            finish_student(study, method, seed)
        paths = []
        monkeypatch.setattr(
            store, "read_bytes", lambda path, paths=paths: (paths.append(path), read(path))[1]
        )
        look(study)
        counts.append(len(paths))
    assert counts[0] == counts[1] > 0


def test_teachers_on_images_of_an_extra_one_are_predicted_again_in_a_new_format(tmp_path, monkeypatch):
    study = Study(read_recipe("digits", SETTINGS), tmp_path)
    finish_teachers(study)
    finish_student(study, "ods", 0)
    key = transfer_job(study).key
    monkeypatch.setattr(analyses, "ANALYSIS_FORMAT", analyses.ANALYSIS_FORMAT + 1)
    assert transfer_job(study).key != key


def test_another_seed_gives_other_teachers_that_no_set_shares(tmp_path, jobs_of):
    recipes = [
        read_recipe("digits", [*SETTINGS, "teachers.epochs=1", "teachers.batch=10", f"teachers.seed={seed}"])
        for seed in (0, 1)
    ]
    studies = [Study(recipe, tmp_path / str(seed)) for seed, recipe in enumerate(recipes)]
    keys = {jobs_of(study)[f"teacher {j}"].key for study in studies for j in range(3)}
    assert len(keys) == 6
    seeds = [[study.recipe.teachers.number(j) for j in (0, 2047)] for study in studies]
    assert seeds == [[0, 2047], [2048, 4095]]
    weights = []
    for study in studies:
        jobs_of(study)["teacher 0"].run(Unwatched())
        weights.append(study.teacher(0).weights())
    assert not all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
