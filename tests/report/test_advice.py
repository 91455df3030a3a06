"""The page's advice: how much the teachers disagree on training images, and what to try next."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from polyphony import metrics
from polyphony.report.chart import Chart
from polyphony.report.figures.diversity import disagreement_by_temperature
from polyphony.report.verdict import advice, uncalibrated, undertrained, visible_disagreement
from polyphony.runs.run import Run


@pytest.fixture
def hints(small_run: Path, maker):
    """Returns the hints at τ = 1 for confident teachers that differ by the given spread on each split."""

    def run(**spreads: float) -> str:
        path = small_run / "recipe.json"
        path.write_text(path.read_text().replace('"student": {', '"student": {"temperature": 1, '))
        confident = 12.0 * np.eye(4)[maker.labels]
        for split, spread in spreads.items():
            noise = spread * maker.rng.normal(size=(3, *confident.shape))
            name = split.replace("moved", "train+kd-ods")
            maker.save(small_run, "teachers", name, (confident + noise).astype(np.float32))
        return " ".join(visible_disagreement(Run.open(small_run)))

    return run


def test_the_page_says_if_teachers_agree_on_training_images(hints):
    words = hints(train=0.5, valid=3.0, moved=3.0)
    assert "Plain distillation sees little of it." in words
    assert "On images perturbed as in kd-ods (temperature 1) they disagree" in words
    assert "larger step" not in words


def test_a_step_that_reveals_little_is_called_small(hints):
    assert "a larger step would reveal more" in hints(train=0.5, valid=3.0, moved=1.0)


def test_a_temperature_that_reveals_the_disagreement_is_suggested(hints):
    assert "At temperature 4 they disagree" in hints(train=2.0, valid=3.0)
    assert "At temperature 4 they disagree" not in hints(train=0.5, valid=3.0)


def test_teachers_that_disagree_on_training_images_need_no_perturbation(hints):
    assert "Plain distillation sees most of it: try that first." in hints(train=3.0, valid=3.0)


def test_teachers_that_disagree_less_on_training_images_reveal_part_of_it(hints):
    assert "Plain distillation sees part of it." in hints(train=2.5, valid=3.0)


def test_a_method_is_judged_at_its_own_temperature(hints, small_run: Path):
    hints(train=0.5, valid=3.0, moved=1.0)
    path = small_run / "recipe.json"
    path.write_text(path.read_text().replace('"kd-ods": {', '"kd-ods": {"temperature": 4, '))
    run = Run.open(small_run)
    logits = [
        run.predictions["teachers", None, split].first(3).logits / 4 for split in ("train+kd-ods", "valid")
    ]
    perturbed, valid = (
        metrics.Predictions(each, run.predictions["teachers", None, "valid"].labels).mean_kld()
        for each in logits
    )
    (sentence,) = (words for words in visible_disagreement(run) if "as in kd-ods" in words)
    share = f"{100 * perturbed / valid:.0f}\N{NO-BREAK SPACE}%"
    assert sentence.startswith(f"On images perturbed as in kd-ods (temperature 4) they disagree {share}")


def test_undertrained_students_are_named(small_run: Path):
    assert undertrained(Run.open(small_run)) == []  # whose logs do not say
    for path in small_run.glob("**/log.jsonl"):
        acc = {"teachers": 1.0, "kd": 0.7}.get(path.parents[1].name, 0.2)
        path.write_text(json.dumps({"epoch": 0, "acc": acc}) + "\n")
    (sentence,) = undertrained(Run.open(small_run))
    assert "fewer training images right than the teachers (100\N{NO-BREAK SPACE}%): kd (70" in sentence
    for path in small_run.glob("students/kd/*/log.jsonl"):
        path.write_text(json.dumps({"epoch": 0, "acc": 0.95}) + "\n")
    assert undertrained(Run.open(small_run)) == []


def test_a_temperature_at_a_bound_of_its_range_gets_a_note(small_run: Path):
    assert uncalibrated(Run.open(small_run)) == []
    sure = metrics.Predictions(12 * torch.eye(4)[None], torch.arange(4))  # without an error
    with (small_run / "analysis" / "temperatures.csv").open("a") as file:
        file.writelines(f"kd,{seed},{sure.fit_temperature()}\n" for seed in (0, 1))
    run = Run.open(small_run)
    (sentence,) = uncalibrated(run)
    assert sentence.startswith("The temperature fitted for kd is at a bound of the search range (0.05 to")
    assert sentence in advice(run)


def test_the_figure_shows_shares_of_the_disagreement_on_validation_images(small_run: Path):
    run = Run.open(small_run)
    chart = disagreement_by_temperature(run)
    assert isinstance(chart, Chart)
    shares = {(label, temperature): share for label, temperature, share in chart.numbers.rows}
    logits = {s: run.predictions["teachers", None, s].first(3).logits.double() for s in ("train", "valid")}
    for temperature in (1.0, 4.0):
        logs = {split: (each / temperature).log_softmax(-1).numpy() for split, each in logits.items()}
        pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
        klds = {
            split: np.mean([(np.exp(p[i]) * (p[i] - p[j])).sum(-1).mean() for i, j in pairs])
            for split, p in logs.items()
        }
        expected = klds["train"] / klds["valid"]
        assert shares["training images", temperature] == pytest.approx(expected, rel=1e-4)


def test_methods_with_the_same_perturbed_images_share_one_sentence(hints, small_run: Path):
    hints(train=0.5, valid=3.0, moved=3.0)
    folder = small_run / "predictions" / "teachers"
    (folder / "train+kd-gaussian.safetensors").write_bytes((folder / "train+kd-ods.safetensors").read_bytes())
    (sentence,) = (
        words for words in visible_disagreement(Run.open(small_run)) if words.startswith("On images")
    )
    assert sentence.startswith(
        "On images perturbed as in kd-gaussian and kd-ods (temperature 1) they disagree "
    )
