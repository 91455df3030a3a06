"""What is saved behind scores.csv, recomputed from the saved logits by numpy and scipy."""

from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

from polyphony.metrics import Predictions
from polyphony.recipe.forms import BatchEnsembleForm, LatentFactorForm
from polyphony.runs.rows import Score, SweepScore, TeacherScore, Temperature, columns
from polyphony.study.score_table import by_calibration, score

BOUNDS = (0.05, 1e4)  # where temperatures are looked for


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "analysis" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def saved(folder: Path, *who: str) -> tuple[np.ndarray, np.ndarray]:
    """Each member's log-probabilities [m n k], and the labels."""
    tensors = load_file(folder.joinpath("predictions", *who).with_suffix(".safetensors"))
    return log_softmax(tensors["logits"].astype(np.float64), axis=-1), tensors["labels"]


def mean(members: np.ndarray) -> np.ndarray:
    return logsumexp(members, axis=0) - math.log(len(members))


def nll(log_probs: np.ndarray, labels: np.ndarray, temperature: float = 1.0) -> float:
    return -float(log_softmax(log_probs / temperature, axis=-1)[np.arange(len(labels)), labels].mean())


def best_temperature(log_probs: np.ndarray, labels: np.ndarray) -> float:
    minimum = minimize_scalar(
        lambda log: nll(log_probs, labels, np.exp(log)), bounds=np.log(BOUNDS), method="bounded",
        options={"xatol": 1e-9},
    )  # fmt: skip
    return float(np.exp(minimum.x))


def test_temperatures_are_those_that_suit_validation_images(finished):
    folder = finished[0].folder
    rows = table(folder, "temperatures")
    assert len(rows) == 2 + 2 * len(finished[0].recipe.methods)
    for row in rows:
        who = ["teachers"] if row["model"] == "best teacher" else filter(None, (row["model"], row["seed"]))
        members, labels = saved(folder, *who, "valid")
        mine = [int(row["seed"])] if row["model"] == "best teacher" else [0, 1]  # two are the ensemble
        prediction, temperature = mean(members[mine]), float(row["temperature"])
        expected = best_temperature(prediction, labels)
        assert nll(prediction, labels, temperature) <= nll(prediction, labels, expected) + 1e-12
        assert temperature == pytest.approx(
            expected, rel=1e-3 if expected < 100 else 0.1
        )  # where all is flat


def test_the_best_teacher_is_chosen_and_calibrated_on_validation_images(finished):
    folder = finished[0].folder
    (valid, labels), (tested, test_labels) = (saved(folder, "teachers", each) for each in ("valid", "test"))
    fitted = [best_temperature(each, labels) for each in valid[:2]]
    losses = [nll(each, labels, t) for each, t in zip(valid[:2], fitted, strict=True)]
    best = int(np.argmin(losses))
    with (folder / "scores.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "best teacher"]
    assert [(row["seed"], row["split"], row["calibration"]) for row in rows] == [
        (str(best), split, kind) for split in ("valid", "test") for kind in ("standard", "calibrated")
    ]
    assert float(rows[2]["nll"]) == pytest.approx(nll(tested[best], test_labels), rel=1e-6)
    assert float(rows[3]["nll"]) == pytest.approx(nll(tested[best], test_labels, fitted[best]), rel=1e-4)
    assert {(float(row["kld"]), row["voice"]) for row in rows} == {(0.0, "")}
    one = finished[0].load_teachers(1, best)
    assert {int(row["params"]) for row in rows} == {sum(p.numel() for p in one.parameters())}


@pytest.mark.parametrize("split", ["valid", "test"])
def test_the_curve_is_the_mean_over_every_subset_of_the_teachers(finished, split):
    folder = finished[0].folder
    (valid, valid_labels), (members, labels) = (saved(folder, "teachers", each) for each in ("valid", split))
    expected = {"standard": [math.log(10)], "calibrated": [math.log(10)]}
    for size in (1, 2, 3):
        subsets = [list(subset) for subset in itertools.combinations(range(3), size)]
        fitted = [best_temperature(mean(valid[subset]), valid_labels) for subset in subsets]
        expected["standard"].append(np.mean([nll(mean(members[subset]), labels) for subset in subsets]))
        scaled = [nll(mean(members[s]), labels, t) for s, t in zip(subsets, fitted, strict=True)]
        expected["calibrated"].append(np.mean(scaled))
    for kind, curve in expected.items():
        rows = [r for r in table(folder, "dee") if (r["split"], r["calibration"]) == (split, kind)]
        assert [int(row["size"]) for row in rows] == [0, 1, 2, 3]
        assert [float(row["nll"]) for row in rows] == pytest.approx(curve, rel=1e-6)


@pytest.mark.parametrize("kind", [Score, SweepScore, TeacherScore])
def test_a_score_that_a_table_has_no_column_for_is_left_out_of_it(monkeypatch, kind):
    scores = Predictions.scores
    monkeypatch.setattr(Predictions, "scores", lambda self, *at: scores(self, *at) | {"more": 1.0})
    predictions = Predictions(torch.randn(2, 9, 3), torch.arange(9) % 3)
    scores = by_calibration(predictions, 2.0, kind)
    assert scores.keys() == {"standard", "calibrated"}
    assert all({"acc", "nll", "bs", "ece", "kld"} <= row.keys() for row in scores.values())
    assert all(row.keys() <= set(columns(kind)) for row in scores.values())


def test_members_that_are_drawn_have_no_voice_even_if_they_are_as_many_as_teachers():
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (20,), generator=rng)
    names = {"teachers": None, "be": 0, "dlf": 0}
    saved = {
        (name, seed, "test"): Predictions(torch.randn(2, 20, 3, generator=rng), labels)
        for name, seed in names.items()
    }
    temperatures = [Temperature(name, seed, 1.5) for name, seed in names.items()]
    rows = list(score(saved, temperatures, [], dict.fromkeys(names, 1), ["dlf"]))
    voices = {row.model: row.voice for row in rows}
    assert voices["dlf"] is None
    assert voices["be"] is not None
    assert BatchEnsembleForm.one_to_one
    assert not LatentFactorForm.one_to_one
