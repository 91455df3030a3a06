from __future__ import annotations

import csv
import hashlib
import itertools
import json
import math
import shutil
import sys
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy as np
import pytest
import safetensors.torch
import torch
from scipy.special import logsumexp

from polyphony.compute.seeds import generator
from polyphony.data import pixels
from polyphony.distill import CrossEntropy
from polyphony.ensembles import Single
from polyphony.execute.board import Board
from polyphony.execute.job import Graph, Job
from polyphony.execute.processes import Processes
from polyphony.execute.runner import Here, run_job
from polyphony.recipe import RecipeError, read_recipe
from polyphony.report.verdict import verdict
from polyphony.runs.run import Run
from polyphony.runs.scores import BEST_TEACHER
from polyphony.runs.stage import Stage
from polyphony.runs.store import ChangedError, StoreError
from polyphony.study.cost import costs
from polyphony.study.fingerprints import fingerprints
from polyphony.study.plan import Upto
from polyphony.study.provenance import open_study, versions, write_provenance
from polyphony.study.run import run_study
from polyphony.study.study import Study, load_splits
from polyphony.training.fit import fit

COLUMNS = "model,seed,split,calibration,acc,nll,bs,ece,dee,kld,params,rank_correlation,distance,voice,"
COLUMNS += "adaptive_ece,class_wise_ece,aurc,excess_aurc,error_80,error_90,coverage_5,error_auroc"
METHODS = ("scratch", "kd", "kd-gaussian", "kd-ods", "kd-confods")
TWO = "methods={scratch={}, kd={perturb='clean'}}"  # of them, where more would be the same again


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "scores.csv").open() as file:
        return list(csv.DictReader(file))


def weights(folder: Path) -> dict[str, str]:
    """The hash of every model's weights."""
    return {
        str(path.parent.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("weights.safetensors"))
    }


def stamps(folder: Path) -> dict[Path, int]:
    """When every result was written."""
    files = (path for part in ("teachers", "students", "predictions") for path in (folder / part).rglob("*"))
    return {path: path.stat().st_mtime_ns for path in files if path.is_file()}


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    """The finished study's folder, to be spoilt."""
    return shutil.copytree(finished[0].folder, tmp_path / "run")


# What comes out


def test_the_run_folder_is_laid_out_as_promised(finished):
    folder = finished[0].folder
    paths = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {".lock"}
    stages = [f"teachers/{j}" for j in range(3)]
    stages += [f"students/{m}/{s}" for m, s in itertools.product(METHODS, (0, 1))]
    files = ("weights.safetensors", "log.jsonl", "done.json")
    expected = {f"{stage}/{file}" for stage in stages for file in files}
    splits = ["train", "valid", "test", *(f"train+{m}" for m in METHODS if m not in ("scratch", "kd"))]
    expected |= {f"predictions/teachers/{split}.safetensors" for split in splits}
    expected |= {
        f"predictions/{m}/{s}/{split}.safetensors"
        for m, s, split in itertools.product(METHODS, (0, 1), ("train", "valid", "test"))
    }
    behind = {
        f"analysis/{name}.csv"
        for name in ("dee", "temperatures", "selective", "sets", "thresholds", "groups")
    }
    assert paths == expected | behind | {"recipe.json", "samples.safetensors", "scores.csv"}


def test_the_scores_have_exactly_the_columns_promised_and_a_row_for_everything(finished):
    folder = finished[0].folder
    assert (folder / "scores.csv").read_text().splitlines()[0] == COLUMNS
    rows = [(r["model"], r["seed"], r["split"], r["calibration"]) for r in rows_of(folder)]
    splits = ["train", "train+kd-gaussian", "train+kd-ods", "train+kd-confods", "valid", "test"]
    kinds = ("standard", "calibrated")
    expected = [("teachers", "", split, kind) for split in splits for kind in kinds]
    expected += itertools.product(METHODS, ("0", "1"), ("train", "valid", "test"), kinds)
    (best,) = {row[1] for row in rows if row[0] == BEST_TEACHER}
    expected += itertools.product([BEST_TEACHER], [best], ("valid", "test"), kinds)
    assert sorted(rows) == sorted(expected)


def read_logits(folder: Path, row: dict[str, str], split: str) -> tuple[np.ndarray, np.ndarray]:
    best = row["model"] == BEST_TEACHER
    who = ["teachers"] if best else [row["model"], row["seed"]]
    saved = safetensors.torch.load(folder.joinpath("predictions", *who, f"{split}.safetensors").read_bytes())
    logits = saved["logits"].double().numpy()
    members = [int(row["seed"])] if best else [0, 1]  # the first two teachers are the members
    return logits[members], saved["labels"].numpy()


def test_the_standard_scores_follow_from_the_saved_logits(finished):
    folder = finished[0].folder
    for row in (row for row in rows_of(folder) if row["calibration"] == "standard"):
        logits, labels = read_logits(folder, row, row["split"])
        log_p = logits - logsumexp(logits, -1, keepdims=True)
        mean = logsumexp(log_p, axis=0) - math.log(len(logits))
        everyone = np.arange(len(labels))
        assert float(row["acc"]) == pytest.approx((mean.argmax(-1) == labels).mean())
        assert float(row["nll"]) == pytest.approx(-mean[everyone, labels].mean(), rel=1e-5)
        wanted = np.eye(10)[labels]
        assert float(row["bs"]) == pytest.approx(((np.exp(mean) - wanted) ** 2).sum(-1).mean(), rel=1e-5)


def test_calibration_keeps_the_accuracy_and_never_hurts_on_validation(finished):
    rows = {(r["model"], r["seed"], r["split"], r["calibration"]): r for r in rows_of(finished[0].folder)}
    for (model, seed, split, kind), row in rows.items():
        if kind == "calibrated":
            plain = rows[model, seed, split, "standard"]
            assert row["acc"] == plain["acc"]
            assert row["kld"] == plain["kld"]
            assert split != "valid" or float(row["nll"]) <= float(plain["nll"]) + 1e-6


def test_dee_is_there_on_held_out_images_alone(finished):
    for row in rows_of(finished[0].folder):
        assert (row["dee"] == "") == row["split"].startswith("train")
        if row["model"] == "teachers" and row["dee"] and row["calibration"] == "standard":
            assert float(row["dee"]) > 0


def test_parameters_are_those_of_the_models_that_predict(finished):
    study = finished[0]
    one = safetensors.torch.load_file(study.folder / "teachers" / "0" / "weights.safetensors")
    buffers = ("running_mean", "running_var", "num_batches_tracked", "normalize.mean", "normalize.std")
    single = sum(value.numel() for name, value in one.items() if not name.endswith(buffers))
    student = safetensors.torch.load_file(study.folder / "students" / "kd" / "0" / "weights.safetensors")
    compact = sum(value.numel() for name, value in student.items() if not name.endswith(buffers))
    for row in rows_of(study.folder):
        expected = {"teachers": 2 * single, "best teacher": single}.get(row["model"], compact)
        assert int(row["params"]) == expected


def test_the_verdict_names_teachers_and_students(finished):
    result = verdict(Run.open(finished[0].folder))
    assert "Your best single network has " in result.sentence
    assert "all 2 teachers together have " in result.sentence
    assert set(result.students) == set(finished[0].recipe.methods)


def test_provenance_tells_recipe_data_versions_and_machine(finished):
    study = finished[0]
    record = json.loads((study.folder / "recipe.json").read_text())
    assert record["recipe"]["data"]["per_class"] == 5
    assert record["data"]["train"] == study.data().train.fingerprint
    assert record["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert record["machine"]["device"] == "cpu"


def test_provenance_tells_versions_of_libraries_that_a_recipe_or_its_code_uses(
    tiny_recipe, tmp_path, monkeypatch
):
    def recorded(network: str) -> dict[str, str]:
        study = Study(tiny_recipe(f"teachers.network={network}"), tmp_path)
        write_provenance(study, fingerprints(study))
        return json.loads((tmp_path / "recipe.json").read_text())["versions"]

    installed = {d.name: d.version for name in ("timm", "transformers") for d in distributions(name=name)}
    for name in ("timm", "transformers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    plain = recorded("{kind='resnet', depth=8}")
    assert plain.keys() == {"python", "polyphony", "torch", "numpy", "scipy"}
    assert recorded("{kind='timm', name='x'}").get("timm") == installed.get("timm")
    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))  # by code of one's own
    assert versions() == plain | {name: v for name, v in installed.items() if name == "transformers"}


def test_logs_have_a_row_an_epoch(finished):
    for stage, epochs in (("teachers/2", 3), ("students/kd-ods/1", 2)):
        lines = (finished[0].folder / stage / "log.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == list(range(epochs))


# Where the numbers come from


def test_a_teacher_is_what_fit_makes_of_the_same_generators(finished):
    study = finished[0]
    network = study.network(study.recipe.teachers.network, generator("teacher weights", 1))
    model = Single(network)
    plan = study.training_plan(study.recipe.teachers)
    splits = study.data()
    fit(model, CrossEntropy(), splits.train, splits.valid, plan, generator("teacher", 1))
    saved = study.teacher(1).weights()
    assert all(torch.equal(value, saved[name]) for name, value in network.state_dict().items())


def test_all_methods_of_a_seed_start_from_the_same_weights_and_seeds_differ(finished):
    study = finished[0]
    one, same, other = (
        study.fresh_student(method, generator("student weights", seed)).state_dict()
        for method, seed in (("kd", 0), ("kd-ods", 0), ("kd", 1))
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["network.stem.r"], other["network.stem.r"])


def test_models_of_a_study_are_all_different(finished):
    hashes = weights(finished[0].folder)
    assert len(set(hashes.values())) == len(hashes) == 3 + 2 * 5


def test_streams_of_randomness_are_told_apart_by_kind_and_seed():
    draws = [
        torch.rand(4, generator=generator(kind, seed)).tolist()
        for kind in ("teacher", "student", "teacher weights")
        for seed in (0, 1, 11)
    ]
    assert len({tuple(draw) for draw in draws}) == len(draws)
    assert torch.rand(4, generator=generator("teacher", 0)).tolist() == draws[0]


def test_normalisation_is_the_training_pixels(finished):
    x = pixels(finished[0].data().train.images).double()
    mean, std = finished[0].data().train.statistics
    assert mean == pytest.approx(x.mean((0, 2, 3)).tolist())
    assert std == pytest.approx(x.std((0, 2, 3), correction=0).tolist())
    saved = finished[0].teacher(0).weights()
    assert saved["normalize.mean"].flatten().tolist() == pytest.approx(mean)


# A second call


def test_a_second_call_does_nothing(finished, run, copied):
    before = stamps(copied)
    _, outcome, jobs = run(copied)
    assert jobs == []
    assert outcome.ran == 0
    assert outcome.skipped == 3 + 10 + 6 + 30
    assert stamps(copied) == before
    assert outcome.scores == finished[1].scores


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("teachers.epochs=4", "schedule.epochs (3, now 4)"),
        ("teachers.network.width=3", "network.width (2, now 3)"),
        ("student.alpha=0.5", "method.alpha (0.9, now 0.5)"),
        ("student.learning_rate=0.2", "schedule.learning_rate (0.1, now 0.2)"),
        ("data.augment.flip=true", "augment.flip (False, now its default)"),
        ("data.seed=1", "train ("),
    ],
)
def test_a_changed_recipe_is_refused_and_nothing_is_touched(run, copied, override, named):
    before = stamps(copied) | {copied / "recipe.json": (copied / "recipe.json").read_bytes()}
    with pytest.raises(StoreError) as caught:
        run(copied, override)
    text = str(caught.value)
    assert named in text
    assert "\n" not in text
    assert stamps(copied) | {copied / "recipe.json": (copied / "recipe.json").read_bytes()} == before


def test_redo_does_again_what_depends_on_the_change_and_nothing_else(run, copied):
    before = weights(copied)
    stale = copied / "analysis" / "ood.csv"  # was measured on students that are about to go
    stale.write_text("model,auroc\n")
    _, _, jobs = run(copied, "methods.kd-ods.alpha=0.5", redo=True)
    assert not stale.exists()
    after = weights(copied)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"students/kd-ods/0", "students/kd-ods/1"}
    assert {job for job in jobs if not job.startswith("predict")} == {"kd-ods, seed 0", "kd-ods, seed 1"}
    again = run(copied, "methods.kd-ods.alpha=0.5")
    assert again[2] == []


def test_what_was_measured_on_a_model_goes_before_the_model(run, copied, monkeypatch):
    """A redo that is killed between the two is noticed by the next call, which still sees the change."""
    monkeypatch.setattr(Stage, "remove", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(copied, "methods.kd-ods.alpha=0.5", redo=True)
    assert not (copied / "scores.csv").exists()
    assert (copied / "students" / "kd-ods" / "0" / "done.json").exists()


def test_a_step_size_does_not_concern_distillation_on_clean_images(run, copied):
    _, _, jobs = run(copied, TWO, "methods.kd-ods.perturb=ods", "student.step_size=0.2", redo=True)
    trained = {job for job in jobs if not job.startswith("predict")}
    assert trained == {"kd-ods, seed 0", "kd-ods, seed 1"}


def test_teaching_with_other_students_in_mind_does_not_rewrite_the_record(run, copied):
    record = (copied / "recipe.json").read_bytes()
    with pytest.raises(StoreError, match="alpha"):
        run(copied, "student.alpha=0.5", upto=Upto.TEACH)
    assert (copied / "recipe.json").read_bytes() == record


def test_new_seeds_and_methods_are_added_to_what_is_there(run, copied):
    before = weights(copied)
    _, _, jobs = run(copied, TWO, "seeds=[0, 1, 2]", "methods.adversarial.perturb=adversarial")
    trained = {job for job in jobs if not job.startswith("predict")}
    assert trained == {f"{m}, seed 2" for m in ("scratch", "kd")} | {
        f"adversarial, seed {s}" for s in range(3)
    }
    after = weights(copied)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("gone", ["done.json", ""], ids=["record", "folder"])
def test_what_is_missing_is_made_again_to_the_bit(run, copied, gone):
    before = weights(copied)
    stage = copied / "students" / "kd-ods" / "1"
    (stage / gone).unlink() if gone else shutil.rmtree(stage)
    _, _, jobs = run(copied)
    assert jobs == ["kd-ods, seed 1"]
    assert weights(copied) == before


def test_missing_predictions_are_made_again_from_the_same_weights(finished, run, copied):
    (copied / "predictions" / "kd" / "0" / "test.safetensors").unlink()
    _, outcome, jobs = run(copied)
    assert jobs == ["predict kd, seed 0, on test"]
    assert outcome.scores == finished[1].scores


def test_weights_that_are_gone_are_named(run, copied):
    (copied / "students" / "kd-ods" / "1" / "weights.safetensors").unlink()
    shutil.rmtree(copied / "predictions")
    with pytest.raises(StoreError, match="students/kd-ods/1/weights"):
        run(copied)


def test_two_processes_at_a_time_make_the_same_models(finished, run, tmp_path):
    run(tmp_path / "run", upto=Upto.TEACH, runner=Processes(2, 1))
    expected = weights(finished[0].folder)
    assert weights(tmp_path / "run") == {f"teachers/{j}": expected[f"teachers/{j}"] for j in range(3)}


class LastFirst(Here):
    """A runner that starts whatever can be started, and ends the last of them first."""

    def run(self, graph: Graph, board: Board) -> None:
        started: list[Job] = []
        while graph.left():
            while (job := graph.next()) is not None:
                started.append(job)
            run_job(started[-1], board)
            graph.finish(started.pop().name)


def test_the_order_in_which_jobs_end_changes_nothing(finished, run, files, tmp_path):
    _, outcome, jobs = run(tmp_path / "run", "seeds=[0]", runner=LastFirst(1))
    assert jobs.index("predict scratch, seed 0, on test") < jobs.index("teacher 0")
    assert sorted(jobs) == sorted(job for job in finished[2] if "seed 1" not in job)
    tables = [
        f"analysis/{name}.csv" for name in ("temperatures", "selective", "sets", "thresholds", "groups")
    ]
    expected, of_all = files(finished[0].folder), ("recipe.json", "scores.csv", *tables)
    expected = {
        name: content for name, content in expected.items() if "/1/" not in name or "teachers" in name
    }
    result = files(tmp_path / "run")
    assert result.keys() == expected.keys()
    assert [name for name in result if result[name] != expected[name]] == sorted(of_all)
    others = [score for score in finished[1].scores if score.seed != 1 or score.model == BEST_TEACHER]
    assert outcome.scores == others


def test_a_student_of_other_settings_is_refused_before_its_missing_teachers_are_trained(
    finished, tiny_recipe, here, board, tmp_path
):
    shutil.copytree(finished[0].folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "teachers")
    with pytest.raises(ChangedError, match=r"another schedule.epochs \(2, now 3\)"):
        run_study(Study(tiny_recipe("student.epochs=3"), tmp_path / "run"), here, board)
    assert board.jobs == []


def test_predictions_made_before_a_changed_student_is_found_are_kept(run, copied):
    _, outcome, jobs = run(copied, TWO, "teachers.epochs=2", redo=True, runner=LastFirst(1))
    assert [job for job in jobs if "scratch" in job] == []  # learns from no teacher
    assert outcome.ran == 3 + 4 + 3 + 12 - 2 - 6  # all but the students from scratch and what they predict
    assert run(copied, TWO, "teachers.epochs=2")[2] == []


def test_parts_stop_where_they_are_told_to(run, tmp_path):
    folder = tmp_path / "run"
    _, outcome, jobs = run(folder, upto=Upto.TEACH)
    assert jobs == ["teacher 0", "teacher 1", "teacher 2"]
    assert outcome.scores == []
    assert not (folder / "students").exists()
    assert not (folder / "scores.csv").exists()


def test_a_folder_alone_is_enough_to_open_its_study(finished, tmp_path):
    study = open_study(finished[0].folder, None, "cpu")
    assert study.recipe == finished[0].recipe
    with pytest.raises(StoreError, match=r"recipe\.json is not there"):
        open_study(tmp_path, None, "cpu")


# Before anything starts


@pytest.mark.parametrize("who", ["teachers", "student"])
def test_a_batch_larger_than_the_data_is_refused_before_a_folder_is_made(run, tmp_path, who):
    with pytest.raises(RecipeError, match="a batch of 51 is larger than the data's 50 training images"):
        run(tmp_path / "run", f"{who}.batch=51")
    assert list(tmp_path.iterdir()) == []


def test_a_matched_step_size_is_recorded_and_the_same_for_every_seed(run, tmp_path):
    study, _, _ = run(
        tmp_path / "run",
        "methods={kd-ods={perturb='ods', step_size='match'}}",
        "student.match_share=0.5",
        upto=Upto.DISTILL,
    )
    sizes = [study.student("kd-ods", seed).record()["step_size"] for seed in (0, 1)]
    assert sizes[0] == sizes[1]
    assert 1e-4 <= sizes[0] <= 0.5


def test_costs_count_every_training_and_follow_the_recipe(finished, tmp_path):
    study = finished[0]
    by_name = {cost.name: cost for cost in costs(study)}
    assert {name: cost.runs for name, cost in by_name.items()} == {"teacher": 3} | dict.fromkeys(METHODS, 2)
    assert all(cost.flops > 0 and cost.seconds > 0 for cost in by_name.values())
    assert (
        by_name["scratch"].flops
        < by_name["kd"].flops
        < by_name["kd-gaussian"].flops
        < by_name["kd-ods"].flops
    )
    longer = study.recipe.model_copy(
        update={"teachers": study.recipe.teachers.model_copy(update={"epochs": 30})}
    )
    teacher = next(iter(costs(Study(longer, tmp_path))))
    assert teacher.flops == pytest.approx(10 * by_name["teacher"].flops)


def test_how_many_classes_there_are_is_part_of_a_training_where_labels_do_not_say_it(stripes, jobs_of):
    study = Study(read_recipe("digits", ["data={name='stripes.npz', valid=12, test=12}"]), stripes / "run")
    before = jobs_of(study)["teacher 0"].result.spec
    arrays = dict(np.load("stripes.npz"))
    count = 1 + int(arrays["labels"].max())
    np.savez("stripes.npz", classes=list(map(str, range(count + 1))), **arrays)
    load_splits.cache_clear()
    assert jobs_of(study)["teacher 0"].result.spec == before | {"classes": count + 1}


def test_a_folder_without_a_recipe_is_refused_with_what_makes_one(tmp_path):
    with pytest.raises(StoreError, match=r"recipe.json is not there"):
        open_study(tmp_path, None, "cpu")
