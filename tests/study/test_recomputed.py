"""scores.csv of a study, recomputed from its saved logits by numpy and scipy alone, with loops."""

from __future__ import annotations

import copy
import csv
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import spearmanr

MEMBERS = 2  # of the tiny study; its third teacher is there for the DEE curve


class Saved:
    """A model's predictions on a split, as the folder has them; `teachers` chooses among the members."""

    def __init__(self, folder: Path, row: dict[str, str], split: str, teachers: tuple[int, ...]) -> None:
        tensors = load_file(folder / "predictions" / row["model"] / row["seed"] / f"{split}.safetensors")
        logits = tensors["logits"].astype(np.float64)
        members = logits - logsumexp(logits, axis=-1, keepdims=True)
        self.members, self.labels = members[list(teachers)], tensors["labels"]
        self.mean = logsumexp(self.members, axis=0) - math.log(len(teachers))

    def at(self, temperature: float) -> np.ndarray:
        return self.mean / temperature - logsumexp(self.mean / temperature, axis=-1, keepdims=True)

    def nll(self, temperature: float) -> float:
        return -self.at(temperature)[np.arange(len(self.labels)), self.labels].mean()

    def temperature(self) -> float:
        """Where the NLL, convex in 1/τ, has no slope; else the bound of τ with the lesser NLL."""

        def slope(log_t: float) -> float:
            expected = (np.exp(self.at(math.exp(log_t))) * self.mean).sum(-1)
            return (expected - self.mean[np.arange(len(self.labels)), self.labels]).mean()

        bounds = math.log(0.05), math.log(1e4)
        if slope(bounds[0]) * slope(bounds[1]) > 0:
            return min((0.05, 1e4), key=self.nll)
        return math.exp(brentq(slope, *bounds, xtol=1e-13))

    def scores(self, temperature: float) -> dict[str, float]:
        log_probs = self.at(temperature)
        return {
            "acc": (log_probs.argmax(-1) == self.labels).mean(),
            "nll": self.nll(temperature),
            "bs": ((np.exp(log_probs) - np.eye(10)[self.labels]) ** 2).sum(-1).mean(),
            "ece": ece(log_probs, self.labels),
            "kld": mean_kld(self.members),
            "adaptive_ece": adaptive_ece(log_probs, self.labels),
            "class_wise_ece": np.mean(
                [class_ece(np.exp(log_probs[:, k]), self.labels == k) for k in range(10)]
            ),
            **selective(-log_probs.max(-1), log_probs.argmax(-1) != self.labels),
        }


def ece(log_probs: np.ndarray, labels: np.ndarray) -> float:
    error = 0.0
    for b in range(15):
        gap = 0.0
        for row, label in zip(log_probs, labels, strict=True):
            if b / 15 < math.exp(row.max()) <= (b + 1) / 15:
                gap += (row.argmax() == label) - math.exp(row.max())
        error += abs(gap)
    return error / len(labels)


def adaptive_ece(log_probs: np.ndarray, labels: np.ndarray) -> float:
    order = np.argsort(log_probs.max(-1), kind="stable")
    gaps = np.exp(log_probs.max(-1)) - (log_probs.argmax(-1) == labels)
    n = len(labels)
    return sum(abs(gaps[order[b * n // 15 : (b + 1) * n // 15]].sum()) for b in range(15)) / n


def class_ece(probs: np.ndarray, outcomes: np.ndarray) -> float:
    gaps = [
        sum(p - o for p, o in zip(probs, outcomes, strict=True) if b / 15 < p <= (b + 1) / 15)
        for b in range(15)
    ]
    return sum(map(abs, gaps)) / len(probs)


def selective(uncertainty: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """By loops over images in the order of their uncertainty, of which no two are equal."""
    order, n = np.argsort(uncertainty), len(wrong)
    risk = [wrong[order[: i + 1]].mean() for i in range(n)]
    best = [np.sort(wrong)[: i + 1].mean() for i in range(n)]
    pairs = [(u > v) + (u == v) / 2 for u in uncertainty[wrong] for v in uncertainty[~wrong]]
    return {
        "aurc": sum(risk) / n,
        "excess_aurc": (sum(risk) - sum(best)) / n,
        "error_80": risk[math.ceil(0.8 * n) - 1],
        "error_90": risk[math.ceil(0.9 * n) - 1],
        "coverage_5": max([i + 1 for i in range(n) if risk[i] <= 0.05], default=0) / n,
        **({"error_auroc": sum(pairs) / len(pairs)} if pairs else {}),  # without errors there is none
    }


def mean_kld(members: np.ndarray) -> float:
    pairs = list(itertools.permutations(members, 2))
    return sum(float((np.exp(p) * (p - q)).sum(-1).mean()) for p, q in pairs) / max(1, len(pairs))


def dee(nll: float, curve: list[float]) -> float:
    """The least size whose interpolated NLL is at most this, walking along the curve in small steps."""
    sizes = np.linspace(0, len(curve) - 1, 200_000)
    good = np.interp(sizes, range(len(curve)), curve) <= nll
    return float(sizes[good.argmax()]) if good.any() else math.inf


TRAINED = (
    "seeds=[0]",
    "methods={kd = {perturb='clean'}, kd-ods = {perturb='ods'}}",
    "data.per_class=10",
    "teachers.network.width=4",
    "teachers.epochs=12",
    "student.epochs=8",
    "student.temperature=4",
)


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory) -> Path:
    """A study whose models have learned something: their temperatures and DEEs are not at the ends."""
    return run(tmp_path_factory.mktemp("trained") / "run", *TRAINED)[0].folder


@pytest.fixture(scope="module")
def rows(folder) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "scores.csv").read_text().splitlines()))


def pair(folder: Path, row: dict[str, str]) -> tuple[Saved, Saved]:
    """The predictions of a row, and those its temperature comes from."""
    members = tuple(range(MEMBERS))
    if row["model"] == "best teacher":
        members, row = (int(row["seed"]),), {**row, "model": "teachers", "seed": ""}
    split, valid = (Saved(folder, row, name, members) for name in (row["split"], "valid"))
    return split, valid


def test_every_score_follows_from_the_saved_logits_at_the_temperature_of_validation(folder, rows):
    for row in rows:
        saved, valid = pair(folder, row)
        expected = saved.scores(valid.temperature() if row["calibration"] == "calibrated" else 1.0)
        assert {name: float(row[name]) for name in expected} == pytest.approx(expected, rel=1e-8), row


def test_a_temperature_fitted_on_the_images_scored_would_be_seen(folder, rows):
    """The test above can fail: at a temperature of test's own, test scores would be others."""
    tested = [row for row in rows if (row["split"], row["calibration"]) == ("test", "calibrated")]
    for row in tested:
        saved, _ = pair(folder, row)
        own = saved.scores(saved.temperature())
        assert float(row["nll"]) > own["nll"] * (1 + 1e-4)
        assert abs(float(row["ece"]) / own["ece"] - 1) > 1e-3
    assert len(tested) == 4


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("calibration", ["standard", "calibrated"])
def test_dee_is_read_off_the_mean_over_every_subset_of_teachers(folder, rows, split, calibration):
    teachers, curve = {"model": "teachers", "seed": ""}, [math.log(10)]
    for size in (1, 2, 3):
        nlls = []
        for subset in itertools.combinations(range(3), size):
            saved, valid = (Saved(folder, teachers, name, subset) for name in (split, "valid"))
            nlls.append(saved.nll(valid.temperature() if calibration == "calibrated" else 1.0))
        curve.append(sum(nlls) / len(nlls))
    selected = [row for row in rows if (row["split"], row["calibration"]) == (split, calibration)]
    for row in selected:
        assert float(row["dee"]) == pytest.approx(dee(float(row["nll"]), curve), abs=1e-4), row
    assert any(0 < float(row["dee"]) < math.inf for row in selected)


def test_students_stand_beside_their_teachers_as_loops_say(folder, rows):
    for row in rows:
        cells = [row[name] for name in ("rank_correlation", "distance", "voice")]
        if row["model"] in ("teachers", "best teacher"):
            assert cells == ["", "", ""]
            continue
        student, teachers = (pair(folder, who)[0] for who in (row, {**row, "model": "teachers", "seed": ""}))
        apart = [
            [mean_kld(each.members[:, [i]]) for i in range(len(each.labels))] for each in (student, teachers)
        ]
        kld = [
            [float((np.exp(t) * (t - s)).sum(-1).mean()) for t in teachers.members] for s in student.members
        ]
        own, others = (kld[0][0] + kld[1][1]) / 2, (kld[0][1] + kld[1][0]) / 2
        distance = sum(abs(one - other) for one, other in zip(*apart, strict=True)) / len(apart[0])
        expected = [spearmanr(*apart).statistic, distance, others - own]
        assert [float(text) for text in cells] == pytest.approx(expected, rel=1e-4, abs=1e-7)


def table(folder: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "analysis" / f"{name}.csv").read_text().splitlines()))


def test_selective_scores_by_every_uncertainty_are_loops(folder):
    selected = [
        row
        for row in table(folder, "selective")
        if (row["split"], row["calibration"]) == ("test", "calibrated")
    ]
    assert {row["score"] for row in selected} == {"doubt", "entropy", "mutual_information"}
    for row in selected:
        saved, valid = pair(folder, row)
        log_probs = saved.at(valid.temperature())
        parts = [(-np.exp(each) * each).sum(-1) for each in (log_probs, saved.mean, saved.members)]
        uncertainty = {
            "doubt": -log_probs.max(-1),
            "entropy": parts[0],
            "mutual_information": parts[1] - parts[2].mean(0),
        }
        expected = selective(uncertainty[row["score"]], log_probs.argmax(-1) != saved.labels)
        assert {name: float(row[name]) for name in expected} == pytest.approx(expected, rel=1e-8), row


def test_sets_are_those_of_validation_images_that_did_not_fit_the_temperature(folder):
    rows = table(folder, "sets")
    assert {(row["score"], row["wanted"]) for row in rows} == {
        (s, w) for s in ("lac", "aps") for w in ("0.9", "0.95")
    }
    for row in (row for row in rows if row["score"] == "lac"):
        saved, valid = pair(folder, {**row, "split": "test"})
        fitted, calibrated = int(row["fitted"]), int(row["calibrated"])
        assert (fitted, calibrated) == (len(valid.labels) // 4, len(valid.labels) - len(valid.labels) // 4)
        order = torch.randperm(len(valid.labels), generator=torch.Generator().manual_seed(0)).numpy()
        part = copy.copy(valid)
        part.mean, part.labels = valid.mean[order[:fitted]], valid.labels[order[:fitted]]
        temperature = part.temperature()
        rest = order[fitted:]
        scores = np.sort(-valid.at(temperature)[rest, valid.labels[rest]])
        place = math.ceil((calibrated + 1) * float(row["wanted"]))
        limit = scores[place - 1] if place <= calibrated else math.inf
        names = sorted({int(each["label"]) for each in rows if each["label"]})
        chosen = saved.labels == int(row["label"]) if row["label"] else np.ones(len(saved.labels), bool)
        assert names == sorted(set(saved.labels.tolist()))
        sets = (-saved.at(temperature) <= limit + 1e-9)[chosen]
        assert int(row["n"]) == chosen.sum()
        assert float(row["coverage"]) == pytest.approx(
            sets[np.arange(len(sets)), saved.labels[chosen]].mean()
        )
        assert float(row["size"]) == pytest.approx(sets.sum(-1).mean())
        assert float(row["empty"]) == pytest.approx((sets.sum(-1) == 0).mean())


def test_the_table_of_classes_is_counted(folder):
    for row in table(folder, "groups"):
        saved, valid = pair(folder, {**row, "split": "test"})
        chosen = saved.labels == int(row["group"])
        log_probs, labels = saved.at(valid.temperature())[chosen], saved.labels[chosen]
        answers = log_probs.argmax(-1)
        assert (row["by"], int(row["n"])) == ("class", chosen.sum())
        assert float(row["acc"]) == pytest.approx((answers == labels).mean())
        assert float(row["ece"]) == pytest.approx(ece(log_probs, labels))
        assert float(row["confidence"]) == pytest.approx(np.exp(log_probs.max(-1)).mean())
        wrong = answers[answers != labels].tolist()
        most = max(map(wrong.count, wrong), default=0)
        assert int(row["times"]) == most
        assert row["answer"] == (str(min(k for k in wrong if wrong.count(k) == most)) if most else "")
        assert row["label"] == (row["group"] if most else "")


def test_thresholds_answer_the_share_of_validation_images_that_was_asked_for(folder):
    for row in table(folder, "thresholds"):
        _, valid = pair(folder, {**row, "split": "valid"})
        sure = np.exp(valid.at(valid.temperature()).max(-1))
        coverage, n = float(row["coverage"]), len(sure)
        answered = (sure >= float(row["confidence"]) - 1e-7).sum()
        assert answered == math.ceil(coverage * n - 1e-9)  # no two are equally sure
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).numpy()
        rest = order[n // 4 :]
        scores = -valid.at(float(row["temperature"]))[rest, valid.labels[rest]]
        held, wanted = (
            (scores <= float(row["score"]) + 1e-9).sum(),
            math.ceil((len(rest) + 1) * coverage - 1e-9),
        )
        assert held == min(wanted, len(rest))
