"""A training that another run beside this one has done is taken over, not done again."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save

from polyphony._util.files import share_file
from polyphony.runs.store import StoreError, sha256, write_atomically
from polyphony.study.plan import Upto

WEIGHTS = "weights.safetensors"


@pytest.fixture(scope="session")
def original(run, tmp_path_factory):
    """A run with teachers and two students, which nobody may change."""
    folder = tmp_path_factory.mktemp("original") / "run"
    study, _, _ = run(folder, "methods={scratch = {}, kd = {perturb = 'clean'}}")
    return study


@pytest.fixture
def first(original, tmp_path):
    """A copy of it, beside which others may run."""
    shutil.copytree(original.folder, tmp_path / "first")
    return replace(original, folder=tmp_path / "first")


def test_teachers_and_students_are_taken_over_by_another_study(run, first, tmp_path):
    study, outcome, jobs = run(
        tmp_path / "second", "methods={renamed = {perturb = 'clean'}, kd-ods = {perturb = 'ods'}}"
    )
    trained = [job for job in jobs if not job.startswith("predict")]
    assert trained == ["kd-ods, seed 0", "kd-ods, seed 1"]
    assert outcome.adopted == study.teacher_count + 2
    for seed in (0, 1):
        mine, other = study.student("renamed", seed), first.student("kd", seed)
        assert mine.folder.joinpath(WEIGHTS).read_bytes() == other.folder.joinpath(WEIGHTS).read_bytes()
        assert (
            mine.folder.joinpath("log.jsonl").read_bytes() == other.folder.joinpath("log.jsonl").read_bytes()
        )
        assert mine.record()["adopted"] == str(other.folder)


def test_what_was_taken_over_outlives_the_run_it_came_from(run, first, tmp_path):
    study, _, _ = run(tmp_path / "second", "methods={kd = {perturb = 'clean'}}")
    shutil.rmtree(first.folder)
    assert study.load_teachers(study.recipe.members).members == study.recipe.members
    _, again, jobs = run(tmp_path / "second", "methods={kd = {perturb = 'clean'}}")
    assert (again.ran, jobs) == (0, [])


def test_another_schedule_is_trained_anew(run, first, tmp_path):
    _, outcome, _ = run(tmp_path / "second", "teachers.epochs=2", "methods={scratch = {}}")
    assert outcome.adopted == 2  # scratch needs no teachers, so that its two seeds are the same


@pytest.mark.parametrize("harm", [WEIGHTS, "log.jsonl", "done.json"])
def test_a_damaged_training_is_not_taken_over(run, first, tmp_path, harm):
    path = first.teacher(0).folder / harm
    path.write_bytes(b"{}") if harm != "log.jsonl" else path.unlink()
    study, _, jobs = run(tmp_path / "second", "methods={scratch = {}}")
    assert [job for job in jobs if job.startswith("teacher")] == ["teacher 0"]
    assert json.loads(study.teacher(0).folder.joinpath("done.json").read_text())["key"]


def test_an_interrupted_training_is_completed_from_another_run(run, first, jobs_of, tmp_path):
    folder = tmp_path / "second" / "teachers" / "0"
    study, _, _ = run(tmp_path / "second", "methods={scratch = {}}")
    folder.joinpath("done.json").unlink()
    folder.joinpath(WEIGHTS).unlink()
    jobs_of(study)["teacher 0"].result.start()
    _, outcome, jobs = run(tmp_path / "second", "methods={scratch = {}}")
    assert outcome.adopted == 1
    assert not [job for job in jobs if job.startswith("teacher")]
    assert not folder.joinpath("started.json").exists()


def test_a_training_by_other_code_is_not_taken_over(run, first, tmp_path, monkeypatch):
    monkeypatch.setattr("polyphony.study.plan.FORMAT", 99)
    _, outcome, _ = run(tmp_path / "second", "methods={scratch = {}}", upto=Upto.TEACH)
    assert outcome.adopted == 0


def test_a_student_is_taken_over_only_with_the_teachers_that_it_learnt_from(run, first, tmp_path):
    retrain(first.teacher(0).folder)  # on a machine that rounds otherwise, say
    _, outcome, jobs = run(tmp_path / "second", "methods={kd = {perturb = 'clean'}}", upto=Upto.DISTILL)
    assert outcome.adopted == 3
    assert jobs == ["kd, seed 0", "kd, seed 1"]


def test_a_student_whose_teacher_was_trained_again_is_refused(run, first):
    retrain(first.teacher(1).folder)
    with pytest.raises(StoreError, match=r"students/kd/0 learnt from another teachers/1.*delete .*kd/0"):
        first.load_student("kd", 0)
    assert first.load_student("scratch", 0).members == first.recipe.members
    shutil.rmtree(first.teacher(1).folder)  # a student alone can be used
    assert first.load_student("kd", 0).members == first.recipe.members


def retrain(folder: Path) -> None:
    """Let a teacher have other weights under the same key."""
    weights = load_file(folder / WEIGHTS)
    data = save({name: value + value.new_tensor(1e-3).to(value.dtype) for name, value in weights.items()})
    record = json.loads((folder / "done.json").read_text()) | {"weights": sha256(data)}
    for name in (WEIGHTS, "done.json"):
        (folder / name).unlink()  # files are shared between runs
    (folder / WEIGHTS).write_bytes(data)
    (folder / "done.json").write_text(json.dumps(record))


def test_a_link_left_by_a_killed_process_does_not_reach_another_runs_files(tmp_path):
    original, target = tmp_path / "one" / "file", tmp_path / "two" / "file"
    write_atomically(original, b"kept")
    target.parent.mkdir()
    left = target.with_name(f".file.{os.getpid()}.part")
    os.link(original, left)
    write_atomically(target, b"other")
    assert (original.read_bytes(), target.read_bytes()) == (b"kept", b"other")
    share_file(original, target)
    share_file(original, target)
    assert original.samefile(target)
    assert sorted(target.parent.iterdir()) == [left, target]  # it goes when the run is locked next
