"""`step_size = "search"`: short trainings choose the step, once for all seeds of a method."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from scipy.optimize import minimize_scalar

from polyphony.compute.seeds import generator
from polyphony.distill import Distill
from polyphony.distill.perturb import ODS
from polyphony.distill.search import SEARCH_STEPS, search_epochs, short_schedule
from polyphony.recipe import RecipeError
from polyphony.recipe.points import plan_sweep
from polyphony.report.verdict import verdict
from polyphony.runs.run import Run
from polyphony.runs.stage import Stage
from polyphony.study.cost import costs
from polyphony.study.plan import trainings
from polyphony.study.status import run_status
from polyphony.study.study import Study
from polyphony.study.trainings import SearchStep
from polyphony.sweep.search import check_search
from polyphony.training.fit import Plan, Unwatched, fit
from polyphony.training.optimise import Schedule
from polyphony.training.predict import predict
from polyphony.training.tally import DivergedError

SEARCHED = (
    "methods={kd = {perturb = 'clean'}, ods = {perturb = 'ods', temperature = 1}}",
    "student.step_size='search'",
    "student.passes='one'",
    "student.epochs=6",
)


@pytest.fixture(scope="module")
def searched(run, tmp_path_factory):
    """A finished study with a search, which nobody may change."""
    return run(tmp_path_factory.mktemp("searched") / "run", *SEARCHED)


@pytest.fixture
def untrained(searched, tmp_path) -> Study:
    """The same study with its teachers and nothing else."""
    study, *_ = searched
    other = Study(study.recipe, tmp_path / "run")
    for j in range(study.teacher_count):
        shutil.copytree(study.teacher(j).folder, other.teacher(j).folder)
    return other


def record(study: Study) -> dict:
    return study.step_search("ods").record()


def calibrated_nll(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The lowest NLL over temperatures of the mean prediction, by scipy."""
    mean = logits.double().softmax(-1).mean(0).log()

    def nll(log_temperature: float) -> float:
        log_probs = (mean / math.exp(log_temperature)).log_softmax(-1)
        return -float(log_probs[torch.arange(len(labels)), labels].mean())

    return minimize_scalar(nll, bounds=(-3, 9), method="bounded", options={"xatol": 1e-9}).fun


@pytest.mark.parametrize(("epochs", "short", "total"), [(10, 2, 8), (6, 2, 8), (1, 1, 4), (200, 40, 160)])
def test_a_short_training_has_a_fifth_of_the_epochs(epochs, short, total):
    schedule = Schedule(epochs=epochs, batch=8, learning_rate=0.1, warm_up=epochs // 2)
    assert short_schedule(schedule).epochs == short
    assert search_epochs(schedule) == total


@pytest.mark.parametrize(
    ("epochs", "warm_up", "short"),
    [(200, 50, 10), (200, 5, 2), (20, 5, 2), (20, 1, 1), (20, 0, 0), (10, 5, 1), (5, 5, 0)],
)
def test_the_warm_up_of_a_short_training_is_two_epochs_but_at_most_half(epochs, warm_up, short):
    schedule = Schedule(epochs=epochs, batch=8, learning_rate=0.1, warm_up=warm_up)
    assert short_schedule(schedule).warm_up == short


def test_the_step_is_the_best_of_trainings_made_by_hand(searched):
    study, *_ = searched
    teachers = study.load_teachers(study.recipe.members).folded()
    schedule = short_schedule(study.recipe.student)
    nlls = []
    for step_size in SEARCH_STEPS:
        student = study.fresh_student("ods", generator("search weights", 0))
        perturb = ODS(step_size=step_size)
        loss = Distill(teachers, study.recipe.student.alpha, 1.0, perturb, passes="one")
        plan = Plan.of(schedule, augment=study.recipe.data.augment)
        fit(student, loss, study.data().train, study.data().valid, plan, generator("search", 0))
        answers = predict(student, study.data().valid)
        nlls.append(calibrated_nll(answers.logits, answers.labels))
    assert list(record(study)["nll"].values()) == pytest.approx(nlls, abs=1e-6)
    assert record(study)["step_size"] == 2 * SEARCH_STEPS[nlls.index(min(nlls))]
    assert float(study.step_search("ods").weights()["step_size"]) == record(study)["step_size"]
    assert len(set(nlls)) == len(SEARCH_STEPS)


def test_every_seed_has_the_step_and_only_methods_that_take_one_are_searched(searched):
    study, _, jobs = searched
    steps = {study.student("ods", seed).record()["step_size"] for seed in study.recipe.seeds}
    assert steps == {record(study)["step_size"]}
    assert [name for name in jobs if "step size" in name] == ["ods, step size"]
    assert jobs.index("ods, step size") < min(
        i for i, name in enumerate(jobs) if name.startswith("ods, seed")
    )


def test_a_report_names_the_step_and_counts_the_search_as_no_student(searched):
    study, *_ = searched
    run = Run.open(study.folder)
    assert len(run.seconds("ods")) == len(run.logs("ods")) == len(study.recipe.seeds)
    words = verdict(run).students
    assert f"step size {255 * record(study)['step_size']:g}/255, chosen by short trainings" in words["ods"]
    assert "step size" not in words["kd"]


def test_a_second_call_does_nothing_and_the_status_counts_the_search(searched, run):
    study, *_ = searched
    assert run(study.folder, *SEARCHED)[2] == []
    states = {each.name: (each.state, each.of) for each in run_status(study.folder).trainings}
    assert states["ods, step size"] == ("done", 8)


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_a_killed_search_ends_the_same_bit_for_bit(searched, untrained, jobs_of, monkeypatch, epochs):
    study, other = searched[0], untrained
    job, saves, save = jobs_of(other)["ods, step size"], [], Stage.save

    def save_and_die(stage, state):
        save(stage, state)
        saves.append(len(state["log"]))
        if len(state["log"]) == epochs:
            raise KeyboardInterrupt

    monkeypatch.setattr(Stage, "save", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        job.run(Unwatched())
    monkeypatch.setattr(
        Stage, "save", lambda stage, state: saves.append(len(state["log"])) or save(stage, state)
    )
    job.run(Unwatched())
    assert record(other)["nll"] == record(study)["nll"]
    assert saves == sorted(saves), "no finished epoch is repeated"
    assert len(saves) == 8 + len(SEARCH_STEPS)  # every epoch, and the end of every training
    log = (other.step_search("ods").folder / "log.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in log] == list(range(8))


def test_another_search_makes_other_students(searched, jobs_of, tiny_recipe, tmp_path):
    study, *_ = searched
    keys = {name: job.key for name, job in jobs_of(study).items()}
    fixed = Study(tiny_recipe(*SEARCHED, "student.step_size='6/255'"), tmp_path)
    fixed_keys = {name: job.key for name, job in jobs_of(fixed).items()}
    assert keys["kd, seed 0"] == fixed_keys["kd, seed 0"]
    assert keys["ods, seed 0"] != fixed_keys["ods, seed 0"]
    spec = jobs_of(study)["ods, seed 0"].result.spec
    assert spec["search"] == keys["ods, step size"]
    assert not any(isinstance(work, SearchStep) for work in trainings(fixed))


def test_a_step_that_diverges_is_not_chosen(searched, untrained, jobs_of, monkeypatch):
    study, other = searched[0], untrained
    best, train = record(study)["step_size"] / 2, SearchStep.fit
    diverging = {best}

    def fit_or_diverge(self, checkpoint, model, loss, *others):
        if loss.perturb.step_size in diverging:
            raise DivergedError("the loss is not a number")
        return train(self, checkpoint, model, loss, *others)

    monkeypatch.setattr(SearchStep, "fit", fit_or_diverge)
    job = jobs_of(other)["ods, step size"]
    job.run(Unwatched())
    assert record(other)["nll"][f"{255 * best:g}/255"] is None
    rest = [nll for nll in record(study)["nll"].values() if nll != min(record(study)["nll"].values())]
    assert record(other)["nll"][f"{255 * record(other)['step_size'] / 2:g}/255"] == min(rest)
    json.loads((other.step_search("ods").folder / "done.json").read_text(), parse_constant=pytest.fail)
    diverging.update(SEARCH_STEPS)
    job.result.remove()
    with pytest.raises(DivergedError, match="'ods' diverged with every step size"):
        job.run(Unwatched())


def test_the_cost_of_a_search_is_that_of_its_epochs(searched):
    study, *_ = searched
    by_name = {cost.name: cost for cost in costs(study)}
    assert by_name["ods, step size"].runs == 1
    assert by_name["ods, step size"].flops == pytest.approx(8 / 6 * by_name["ods"].flops)
    assert "kd, step size" not in by_name


def test_a_sweep_between_words_is_rejected(searched):
    study, *_ = searched
    plan = plan_sweep(study.recipe, "ods", {"step_size": "search,1/255"})
    with pytest.raises(RecipeError, match="'search' for step_size is not a number"):
        check_search(plan)
