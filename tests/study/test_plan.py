"""The plan of a study: which jobs there are, what they need, and what their keys depend on."""

from __future__ import annotations

import builtins
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from polyphony.data import Split
from polyphony.distill.match import MATCH_IMAGES
from polyphony.recipe import read_recipe
from polyphony.runs.store import spec_key
from polyphony.study.evaluation import PredictShifted, unknown
from polyphony.study.fingerprints import Fingerprints, fingerprints
from polyphony.study.plan import Upto, jobs_upto, plan
from polyphony.study.study import Study

PRINTS = Fingerprints({"train": "a", "valid": "b", "test": "c"})
THREE = "methods={scratch={}, kd={perturb='clean'}, far={perturb='ods', source='extra'}}"


def test_a_student_needs_its_own_teachers_and_a_prediction_its_model(tiny_recipe, tmp_path):
    jobs = plan(Study(tiny_recipe(THREE, "seeds=[0]"), tmp_path), PRINTS)
    members, everyone = ("teacher 0", "teacher 1"), ("teacher 0", "teacher 1", "teacher 2")
    assert {job.name: job.needs for job in jobs} == {
        **dict.fromkeys(everyone, ()),
        "scratch, seed 0": (),
        "kd, seed 0": members,
        "far, seed 0": everyone,
        "predict teachers on train": members,
        "predict teachers on train+far": (*members, "far, seed 0"),
        "predict teachers on valid": everyone,
        "predict teachers on test": everyone,
        **{
            f"predict {name}, seed 0, on {split}": (f"{name}, seed 0",)
            for name in ("scratch", "kd", "far")
            for split in ("train", "valid", "test")
        },
    }
    assert [job.name for job in jobs_upto(jobs, Upto.TEACH)] == list(everyone)
    assert len(jobs_upto(jobs, Upto.DISTILL)) == 3 + 3


def test_all_keys_are_known_without_any_file(tiny_recipe, tmp_path, monkeypatch):
    study = Study(tiny_recipe(THREE), tmp_path / "nowhere", tmp_path / "no data")

    def no_file(*_: object, **__: object) -> None:
        raise AssertionError("a plan opened a file")

    for owner, name in ((builtins, "open"), (Path, "open"), (Path, "read_bytes"), (Path, "stat")):
        monkeypatch.setattr(owner, name, no_file)
    keys = [job.key for job in plan(study, PRINTS)]
    assert len(set(keys)) == len(keys)
    assert keys == [job.key for job in plan(study, PRINTS)]


def test_a_key_is_the_hash_of_settings_fingerprints_needs_and_format(tiny_recipe, tmp_path):
    jobs = {job.name: job for job in plan(Study(tiny_recipe(THREE), tmp_path), PRINTS)}
    kd = jobs["kd, seed 1"].result.spec
    assert jobs["kd, seed 1"].key == spec_key(kd)
    assert kd["teachers"] == [jobs["teacher 0"].key, jobs["teacher 1"].key]
    assert (kd["kind"], kd["seed"], kd["format"], kd["train"], kd["valid"]) == ("student", 1, 3, "a", "b")
    assert jobs["far, seed 0"].result.spec["source"] == jobs["teacher 2"].key
    assert "teachers" not in jobs["scratch, seed 0"].result.spec


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("name=other", set()),
        ("threads=3", set()),
        ("teachers.epochs=7", {"teacher", "kd", "far", "predict teachers", "predict kd", "predict far"}),
        ("student.epochs=7", {"scratch", "kd", "far", "predict"}),
        ("methods.kd.alpha=0.5", {"kd", "predict kd"}),
        ("student.step_size=0.3", {"far", "predict far", "predict teachers on train+far"}),
    ],
)
def test_what_depends_on_a_setting_has_another_key_and_nothing_else_has(
    tiny_recipe, tmp_path, override, changed
):
    before, after = (
        {job.name: job.key for job in plan(Study(tiny_recipe(*overrides), tmp_path), PRINTS)}
        for overrides in ((THREE,), (THREE, override))
    )
    differ = {name for name in before if before[name] != after[name]}
    unaffected = {"predict teachers on train", "predict teachers on valid", "predict teachers on test"}
    expected = {name for name in before if name.startswith(tuple(changed))}
    if not any(name.startswith("teacher") for name in differ):
        expected -= unaffected
    assert differ == expected


@pytest.mark.parametrize(
    ("split", "changed"), [("train", "teacher"), ("valid", "teacher"), ("test", "on test")]
)
def test_other_images_are_other_results(tiny_recipe, tmp_path, split, changed):
    study = Study(tiny_recipe(THREE), tmp_path)
    other = Fingerprints({**PRINTS.images, split: "other"})
    pairs = zip(plan(study, PRINTS), plan(study, other), strict=True)
    differ = [one.name for one, two in pairs if one.key != two.key]
    if split == "test":
        assert all(changed in name for name in differ)
        assert len(differ) == 1 + 3 * 2
    else:
        assert len(differ) == len(plan(study, PRINTS))


@pytest.mark.parametrize(
    ("method", "revised"),
    [
        ("{perturb='ods', form={kind='separate', width=8}}", ["clip of each network"]),
        ("{perturb='adversarial+ods', source='extra'}", ["source for ODS alone"]),
        ("{perturb='gaussian+ods', source='extra'}", None),  # noise asks no teachers
        ("{perturb='clean', form='dlf'}", ["centred draws"]),
        ("{perturb='adversarial+mixup+ods'}", None),
        ("{perturb='mixup+ods+adversarial'}", ["no labels after mixing"]),
        ("{perturb='ods', source='extra'}", None),
        ("{perturb='mixup+adversarial'}", ["no labels after mixing"]),
        ("{perturb='adversarial+mixup'}", None),
        ("{perturb='mixup+ods'}", None),
        ("{}", None),
    ],
)
def test_only_trainings_that_have_changed_have_another_key(tiny_recipe, tmp_path, method, revised):
    recipe = tiny_recipe("student.clip=1.0", "methods={a=" + method + "}")
    (spec,) = (job.result.spec for job in plan(Study(recipe, tmp_path), PRINTS) if job.name == "a, seed 0")
    assert spec.get("revised") == revised
    kept = plan(Study(tiny_recipe(f"methods={{a={method}}}"), tmp_path), PRINTS)
    (spec,) = (job.result.spec for job in kept if job.name == "a, seed 0")
    assert ("clip of each network" in spec.get("revised", [])) is False


def test_only_keys_that_depend_on_subsets_change_if_these_are_drawn(tiny_recipe, tmp_path):
    methods = "methods={a={perturb='ods', step_size='match'}, b={perturb='ods'}}"
    study = Study(tiny_recipe(methods), tmp_path)
    before, now = plan(study, PRINTS), plan(study, replace(PRINTS, drawn=True))
    differ = {one.name for one, two in zip(before, now, strict=True) if one.key != two.key}
    matched = {job.name for job in now if job.name.startswith("a, seed")}
    assert matched
    assert {job.name for job in now if job.in_ranks} & differ == matched
    kept = {job.name for job in now} - differ
    assert kept
    assert not any("train" in name for name in kept)


def test_images_in_which_classes_take_turns_are_noted(tiny_recipe, tmp_path, monkeypatch):
    study = Study(tiny_recipe("methods={a={perturb='ods'}}"), tmp_path)
    assert not fingerprints(study).drawn
    monkeypatch.setattr(Split, "needs_draw", lambda split, count: count == MATCH_IMAGES)
    assert fingerprints(study).drawn


def test_a_job_holds_the_recipe_and_not_the_data(tmp_path):
    study = Study(read_recipe("digits"), tmp_path)
    assert study.data().test.images.numel() > 50_000  # bytes
    jobs = plan(study, fingerprints(study))
    for job in [*jobs, PredictShifted(study, "kd", 0, unknown(study, "mnist"))]:
        sent = pickle.dumps(job)
        assert len(sent) < 10_000, job
        assert pickle.loads(sent) == job
