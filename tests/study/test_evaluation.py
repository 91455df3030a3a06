"""Unknown and corrupted inputs on a tiny study of digits, against numbers worked out by hand."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import softmax
from sklearn.metrics import average_precision_score, roc_auc_score

from polyphony.data import DataError, Split, load_unknown, pixels
from polyphony.data.corruptions import regenerate
from polyphony.recipe import check
from polyphony.runs.rows import UnknownScore, columns
from polyphony.runs.store import StoreError
from polyphony.study.evaluation import corruptions, evaluate_corrupted, evaluate_unknown
from polyphony.study.run import run_study
from polyphony.study.study import Study

SHORT = {"epochs": 1, "batch": 25, "learning_rate": 0.1}
RECIPE = {
    "name": "tiny",
    "members": 2,
    "data": {"name": "digits", "per_class": 5, "valid": 50, "test": 40, "augment": {"pad": 0, "flip": False}},
    "teachers": {"network": {"kind": "resnet", "depth": 8, "width": 2}, **SHORT},
    "student": SHORT,
    "methods": {"scratch": {}, "kd": {"perturb": "clean"}},
}  # fmt: skip
WHO = [("teachers", None), ("scratch", 0), ("kd", 0)]


@pytest.fixture(scope="module")
def trained(here, quiet, tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(3)
    for name, count in (("noise", 30), ("more", 20)):
        images = rng.integers(0, 256, (count, 12, 12), dtype=np.uint8)
        np.savez(root / f"{name}.npz", images=images, labels=np.arange(count) % 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        study = Study(check(RECIPE, "tiny"), tmp_path_factory.mktemp("run"), root)
        run_study(study, here, quiet)
        list(regenerate("digits", study.data().test, root / "digits-c-regenerated"))
        yield study


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def choosing(values, count):
    """How well a score tells every fifth unknown image from the validation images, which come last."""
    unknown, valid = values[40:count:5], values[count:]
    return roc_auc_score(np.r_[np.ones(len(unknown)), np.zeros(len(valid))], np.r_[unknown, valid])


def member_logits(study, model, seed, images):
    """Straight from the weights, member by member. [m n k]"""
    if model in ("teachers", "best teacher"):
        networks = [*study.load_teachers(2).networks]
        networks = networks if seed is None else networks[seed : seed + 1]
    else:
        student = study.load_student(model, seed).eval()
        networks = [student.member(j) for j in range(2)]
    return torch.stack([network(pixels(images)).double() for network in networks]).detach().numpy()


def best_teacher(study):
    """The one that scores.csv has, which is chosen on validation images."""
    (seed,) = {row["seed"] for row in table(study.folder / "scores.csv") if row["model"] == "best teacher"}
    return int(seed)


def entropy(p):
    return -(p * np.log(p)).sum(-1)


def test_unknown_scores_are_those_of_the_models_themselves(trained, here, quiet):
    source = str(trained.data_root / "noise.npz")
    rows = evaluate_unknown(trained, source, here, quiet)
    saved = table(trained.folder / "analysis" / "ood.csv")
    assert list(saved[0]) == columns(UnknownScore)
    unknown = load_unknown(source, trained.data().test, trained.data_root).images
    assert unknown.shape[1:] == (1, 8, 8)  # 12 × 12 noise at the run's size
    truth = np.r_[np.zeros(40), np.ones(len(unknown))]
    for model, seed in (*WHO, ("best teacher", best_teacher(trained))):
        images = torch.cat([trained.data().test.images, unknown, trained.data().valid.images])
        logits = member_logits(trained, model, seed, images)
        p = softmax(logits, -1)
        mean, count = p.mean(0), 40 + len(unknown)
        expected = {
            "entropy": entropy(mean),
            "mutual_information": entropy(mean) - entropy(p).mean(0),
            "doubt": -mean.max(-1),
            "energy": -np.log(np.exp(logits.mean(0)).sum(-1)),
            "max_logit": -logits.mean(0).max(-1),
        }
        chosen = {score: choosing(values, count) for score, values in expected.items()}
        for row in (row for row in rows if (row.model, row.seed) == (model, seed)):
            assert row.best == (row.score == max(chosen, key=chosen.get))  # of equals the first
            values = expected.pop(row.score)[:count]
            assert row.auroc == pytest.approx(roc_auc_score(truth, values), abs=2e-3)
            assert row.aupr == pytest.approx(average_precision_score(truth, values), abs=2e-3)
            assert row.known_entropy == pytest.approx(entropy(mean)[:40].mean(), rel=1e-4)
            assert row.unknown_entropy == pytest.approx(entropy(mean)[40:count].mean(), rel=1e-4)
        assert [*expected] == (["mutual_information"] if model == "best teacher" else [])  # it is one network
    order = [("teachers", ""), ("best teacher", str(best_teacher(trained))), ("scratch", "0"), ("kd", "0")]
    assert list(dict.fromkeys((row["model"], row["seed"]) for row in saved)) == order


def test_a_second_call_runs_nothing_and_other_data_keeps_its_rows(trained, here, board):
    names = [str(trained.data_root / f"{name}.npz") for name in ("noise", "more")]
    first = [evaluate_unknown(trained, name, here, board) for name in names]
    board.jobs.clear()
    assert [evaluate_unknown(trained, name, here, board) for name in names] == first
    assert board.jobs == []
    assert {row["unknown"] for row in table(trained.folder / "analysis" / "ood.csv")} == {"noise", "more"}


def test_rows_that_other_weights_made_leave_the_table(trained, here, quiet):
    parts = trained.folder / "analysis" / "parts"
    evaluate_unknown(trained, str(trained.data_root / "noise.npz"), here, quiet)
    stale = parts / "ood-old.json"
    stale.write_text(
        (parts / "ood-noise.json").read_text().replace('{"key": "', '{"key": "0').replace("noise", "old")
    )
    evaluate_unknown(trained, str(trained.data_root / "noise.npz"), here, quiet)
    assert "old" not in (trained.folder / "analysis" / "ood.csv").read_text()


def test_corrupted_scores_are_those_of_the_models_themselves(trained, here, quiet):
    rows = evaluate_corrupted(trained, "digits-c", here, quiet)
    saved = table(trained.folder / "analysis" / "corrupted.csv")
    assert list(saved[0]) == [
        "model", "seed", "data", "corruption", "severity", "acc", "nll", "bs", "ece",
    ]  # fmt: skip
    assert len(saved) == len(rows) == 4 * 15 * 5
    assert {row.seed for row in rows if row.model == "best teacher"} == {best_teacher(trained)}
    assert {row.data for row in rows} == {"digits-c-regenerated"}  # never under the official name
    labels = trained.data().test.labels.numpy()
    for row in rows[7::31]:
        corrupted = np.load(trained.data_root / "digits-c-regenerated" / f"{row.corruption}.npy")
        images = corrupted[(row.severity - 1) * 40 : row.severity * 40].transpose(0, 3, 1, 2).copy()
        p = softmax(member_logits(trained, row.model, row.seed, torch.from_numpy(images)), -1).mean(0)
        assert row.acc == pytest.approx((p.argmax(-1) == labels).mean(), abs=0.026)
        assert row.nll == pytest.approx(-np.log(p[np.arange(40), labels]).mean(), rel=1e-4)
        assert row.bs == pytest.approx(((p - np.eye(10)[labels]) ** 2).sum(-1).mean(), rel=1e-4)


def test_only_what_is_missing_is_predicted_again(trained, here, quiet, board):
    evaluate_corrupted(trained, "digits-c", here, quiet)
    folder = trained.folder / "predictions" / "kd" / "0"
    removed, untouched = (
        folder / f"corrupted-digits-c-regenerated-fog-{severity}.safetensors" for severity in (2, 3)
    )
    before, content = untouched.stat().st_ino, removed.read_bytes()
    removed.unlink()
    evaluate_corrupted(trained, "digits-c", here, board)
    assert board.jobs == ["predict kd, seed 0, on digits-c-regenerated"]
    assert (untouched.stat().st_ino, removed.read_bytes()) == (before, content)


def test_a_limit_takes_the_first_images(trained, here, quiet):
    path = trained.folder / "predictions" / "teachers" / "corrupted-digits-c-regenerated-snow-4.safetensors"
    evaluate_corrupted(trained, "digits-c", here, quiet)
    all_images = load_file(path)
    evaluate_corrupted(trained, "digits-c", here, quiet, limit=10)
    torch.testing.assert_close(load_file(path)["logits"], all_images["logits"][:, :10])


def test_images_corrupted_at_another_size_are_of_the_run(trained):
    smaller = {**RECIPE, "data": {**RECIPE["data"], "resolution": 4}}
    study = Study(check(smaller, "tiny"), trained.folder, trained.data_root)
    fog = corruptions(study, "digits-c").images("corrupted-digits-c-regenerated-fog-3")
    expected = np.load(trained.data_root / "digits-c-regenerated" / "fog.npy")[80:120, :, :, 0]
    assert np.abs(fog.images[:, 0].numpy() - expected.reshape(40, 4, 2, 4, 2).mean((2, 4))).max() <= 0.5


def test_what_cannot_be_compared_is_refused_in_one_sentence(trained, here, quiet, tmp_path):
    with pytest.raises(DataError, match="digits is the run's own data"):
        evaluate_unknown(trained, "digits", here, quiet)
    with pytest.raises(DataError, match="cifar10-c is not made from the run's data: use digits-c"):
        evaluate_corrupted(trained, "cifar10-c", here, quiet)
    other = replace(trained, data_root=tmp_path)
    list(regenerate("digits", other.data().train[:40], tmp_path / "digits-c-regenerated"))
    with pytest.raises(DataError, match="not corrupted versions of this run's test images"):
        evaluate_corrupted(other, "digits-c", here, quiet)
    other = replace(trained, data_root=tmp_path / "same labels")
    negative = Split(255 - other.data().test.images, other.data().test.labels)
    list(regenerate("digits", negative, other.data_root / "digits-c-regenerated"))
    with pytest.raises(DataError, match="digits-c-regenerated are not corrupted versions of this run's test"):
        evaluate_corrupted(other, "digits-c", here, quiet)
    with pytest.raises(StoreError, match="teachers/0 is not fully trained"):
        evaluate_corrupted(replace(trained, folder=tmp_path / "empty"), "digits-c", here, quiet)
