"""One-network students through a whole study: a distribution is scored by closed forms, a plain one as 0."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special
from sklearn.metrics import roc_auc_score

from polyphony.data import load_unknown, pixels
from polyphony.metrics import Predictions
from polyphony.recipe import check
from polyphony.report.verdict import verdict
from polyphony.runs.run import Run
from polyphony.study.analyses import analyse
from polyphony.study.evaluation import evaluate_unknown
from polyphony.study.run import run_study
from polyphony.study.study import Study

SHORT = {"epochs": 2, "batch": 25, "learning_rate": 0.1, "warm_up": 1}
RECIPE = {
    "name": "tiny",
    "members": 2,
    "data": {"name": "digits", "per_class": 5, "valid": 50, "test": 40, "augment": {"pad": 0, "flip": False}},
    "teachers": {"network": {"kind": "resnet", "depth": 8, "width": 2}, **SHORT},
    "student": {"step_size": "20/255", **SHORT},
    "methods": {
        "mean-kd": {"form": "single", "perturb": "clean"},
        "end2": {"form": "dirichlet", "perturb": "clean"},
        "proxy": {"form": "proxy_dirichlet", "perturb": "ods"},
    },
}
DIRICHLET = {"end2": 0.0, "proxy": 1.0}  # and what is added to the concentrations


@pytest.fixture(scope="module")
def finished(here, quiet, tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    noise = np.random.default_rng(3).integers(0, 256, (30, 8, 8), dtype=np.uint8)
    np.savez(root / "noise.npz", images=noise, labels=np.arange(30) % 10)
    study = Study(check(RECIPE, "tiny"), tmp_path_factory.mktemp("run"), root)
    return study, run_study(study, here, quiet)


def alphas(study: Study, method: str, images: torch.Tensor) -> np.ndarray:
    """Straight from the network inside the student. [n k]"""
    network = study.load_student(method, 0).eval().network
    return (DIRICHLET[method] + network(pixels(images)).double().exp()).detach().numpy()


def test_scores_hold_the_mean_prediction_and_the_divergence_of_draws(finished):
    study, outcome = finished
    labels = study.data().test.labels.numpy()
    for row in outcome.scores:
        if row.split == "test" and row.calibration == "standard" and row.model in DIRICHLET:
            alpha = alphas(study, row.model, study.data().test.images)
            mean = alpha / alpha.sum(-1, keepdims=True)
            assert row.nll == pytest.approx(-np.log(mean[np.arange(40), labels]).mean(), rel=1e-4)
            assert row.kld == pytest.approx((9 / alpha.sum(-1)).mean(), rel=1e-4)
    assert {row.kld for row in outcome.scores if row.model == "mean-kd"} == {0.0}
    with (study.folder / "scores.csv").open() as file:
        header = "model,seed,split,calibration,acc,nll,bs,ece,dee,kld,params,rank_correlation,distance,voice,"
        assert file.readline().startswith(header)


def test_teachers_are_scored_as_members(finished, jobs_of):
    study, outcome = finished
    saved = jobs_of(study)["predict teachers on test"].result.load()
    rows = [row for row in outcome.scores if row.model == "teachers" and row.split == "test"]
    assert type(saved) is Predictions
    assert {row.kld for row in rows} == {saved.first(2).mean_kld()}


def test_unknown_inputs_are_told_by_the_dirichlets_own_information(finished, here, quiet):
    study, _ = finished
    source = str(study.data_root / "noise.npz")
    rows = evaluate_unknown(study, source, here, quiet)
    unknown = load_unknown(source, study.data().test, study.data_root).images
    truth = np.r_[np.zeros(40), np.ones(len(unknown))]
    for method in DIRICHLET:
        alpha = alphas(study, method, torch.cat([study.data().test.images, unknown]))
        total = alpha.sum(-1, keepdims=True)
        mean = alpha / total
        shared = -(mean * (special.digamma(alpha + 1) - special.digamma(total + 1))).sum(-1)
        information = special.entr(mean).sum(-1) - shared
        (row,) = (r for r in rows if (r.model, r.score) == (method, "mutual_information"))
        assert row.auroc == pytest.approx(roc_auc_score(truth, information), abs=2e-3)
    scores = {r.score for r in rows if r.model == "mean-kd"}
    assert scores == {"entropy", "doubt", "energy", "max_logit"}  # one network has no mutual information


def test_the_verdict_does_not_ask_one_network_for_diversity(finished):
    students = verdict(Run.open(finished[0].folder)).students
    assert students["mean-kd"].endswith("one network without members.")


def test_analyses_of_members_say_that_there_are_none_and_the_others_are_made(finished, here, quiet):
    study, _ = finished
    done = analyse(study, ["jacobians", "snr", "factors", "members"], here, quiet, examples=2)
    assert set(done.left_out) == {"jacobians", "snr", "factors"}
    assert sorted(path.name for path in done.files) == ["members.safetensors"]
