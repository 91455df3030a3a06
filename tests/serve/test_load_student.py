"""What a student answers is what the run measured, whatever form it has and however images come."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy.special import digamma

from polyphony import Single, load_student
from polyphony.execute.runner import Here
from polyphony.recipe import read_recipe
from polyphony.report.verdict import best_on_validation
from polyphony.runs.rows import Score, from_csv, to_csv
from polyphony.runs.run import Run
from polyphony.runs.store import ChangedError, StoreError
from polyphony.serve import AnswerError
from polyphony.serve.load import Choice, choose
from polyphony.study.run import run_study
from polyphony.study.study import Study


def test_answers_score_as_the_run_says(form, run, student, images):
    answers = student(form).predict(images.images)
    rows = from_csv((run / Score.file).read_text(), Score)
    (row,) = [r for r in rows if (r.model, r.seed, r.split, r.calibration) == (form, 0, "test", "calibrated")]
    right = answers.probabilities[torch.arange(70), images.labels]
    assert float(-right.log().mean()) == pytest.approx(row.nll, abs=1e-6)
    assert float((answers.labels == images.labels).double().mean()) == pytest.approx(row.acc)


def test_uncertainties_are_those_of_a_naive_loop(form, student, images):
    chosen = student(form)
    answers, x = chosen.predict(images.images[:9]), images.images[:9].float() / 255
    with torch.no_grad():
        logits = chosen.ensemble(x.expand(chosen.ensemble.members, *x.shape)).double().numpy()
    for i in range(9):
        members = [np.exp(row[i]) / np.exp(row[i]).sum() for row in logits]
        mean = np.mean(members, axis=0)
        scaled = mean ** (1 / chosen.temperature)
        scaled /= scaled.sum()
        information = entropy(mean) - np.mean([entropy(p) for p in members])
        if form in ("dirichlet", "proxy"):
            alpha = np.exp(logits[0, i])
            total = alpha.sum()
            information = entropy(mean) + (mean * (digamma(alpha + 1) - digamma(total + 1))).sum()
        np.testing.assert_allclose(answers.members[:, i], members, atol=1e-6)
        np.testing.assert_allclose(answers.probabilities[i], scaled, atol=1e-6)
        assert float(answers.entropy[i]) == pytest.approx(entropy(scaled), abs=1e-6)
        assert float(answers.mutual_information[i]) == pytest.approx(information, abs=1e-6)


def entropy(p):
    return -sum(float(each) * math.log(each) for each in p)


def test_what_is_left_open_is_the_best_on_validation_images(run, tmp_path):
    rows = [row for row in from_csv((run / Score.file).read_text(), Score) if row.model in Run(run).methods]
    valid = [row for row in rows if (row.split, row.calibration) == ("valid", "calibrated")]
    best = min(valid, key=lambda row: row.nll)  # of one seed each
    assert load_student(run).description.method == best.model

    record = json.loads((run / "recipe.json").read_text())
    record["recipe"]["seeds"] = [0, 1]
    (tmp_path / "recipe.json").write_text(json.dumps(record))
    better = [replace(row, seed=1, nll=row.nll - 0.1) for row in rows if row.model == "hydra"]
    misleading = [replace(row, seed=1, nll=0.0) for row in rows if row.split == "test"]
    (tmp_path / Score.file).write_text(to_csv([*rows, *better, *misleading], Score))
    copy = Run(tmp_path)
    chosen = choose(copy, "hydra", None)
    assert (chosen.method, chosen.seed) == ("hydra", 1)
    every = [*(row for row in better if (row.split, row.calibration) == ("valid", "calibrated")), *valid]
    low, high = sorted(row.nll for row in every if row.model == "hydra")
    assert chosen.words == f"lowest calibrated validation NLL, {low:.4f} (next seed 0: {high:.4f})"
    assert choose(copy, "hydra", 0) == Choice("hydra", 0)
    assert choose(copy, "be", None) == Choice("be", 0)


def test_a_method_is_chosen_by_its_mean_over_seeds_not_by_one_lucky_seed(run, tmp_path):
    rows = from_csv((run / Score.file).read_text(), Score)
    record = json.loads((run / "recipe.json").read_text())
    record["recipe"]["seeds"] = [0, 1]
    (tmp_path / "recipe.json").write_text(json.dumps(record))
    nlls = dict.fromkeys(Run(run).methods, (5.0, 5.0)) | {"hydra": (0.5, 0.4), "be": (0.9, 0.1)}
    scores = [
        replace(row, seed=seed, nll=nlls[row.model][seed if row.split == "valid" else 0])
        for row in rows
        if row.model in nlls
        for seed in (0, 1)
    ]
    (tmp_path / Score.file).write_text(to_csv(scores, Score))
    words = "lowest calibrated validation NLL, 0.4500 (mean over 2 seeds) (next method be: 0.5000)"
    assert choose(Run(tmp_path), None, None) == Choice("hydra", 1, words)
    assert choose(Run(tmp_path), None, 1).method == "be"
    assert best_on_validation(Run(tmp_path)) == "hydra"  # the page says the same


OF_A_FOLDER = """
members = 2
[data]
name = "digits"
per_class = 5
valid = 30
test = 30
augment = { pad = 0, flip = false }
[teachers]
network = { kind = "transformers", name = "vit" }
epochs = 1
batch = 50
learning_rate = 0.01
[student]
epochs = 1
batch = 50
learning_rate = 0.01
[methods]
kd = { perturb = "clean", form = "single" }
"""


def test_the_folder_of_a_model_need_not_be_there_nor_be_as_it_was(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model, processor = tmp_path / "vit", tmp_path / "vit" / "preprocessor_config.json"
    transformers.ViTConfig(image_size=8, patch_size=4, **small).save_pretrained(model)
    processor.write_text(json.dumps({"image_mean": 0.5, "image_std": 0.5}))
    (tmp_path / "own.toml").write_text(OF_A_FOLDER)

    def study():
        own_study = Study(read_recipe(tmp_path / "own.toml"), tmp_path / "run")
        run_study(own_study, Here(1), Mock())
        return own_study.data().test.images

    images = study()
    before = load_student(tmp_path / "run").predict(images)
    processor.write_text(json.dumps({"image_mean": 0.1, "image_std": 0.5}))
    assert load_student(tmp_path / "run").predict(images).probabilities.equal(before.probabilities)
    with pytest.raises(ChangedError, match=r"another network.mean \(\[0.5\], now \[0.1\]\)"):
        study()
    shutil.rmtree(model)
    assert load_student(tmp_path / "run").predict(images).probabilities.equal(before.probabilities)


def test_the_data_need_not_be_there(run, tmp_path, monkeypatch):
    monkeypatch.setattr("polyphony.study.study.load", lambda *_: pytest.fail("the data was read"))
    assert load_student(run, "be").classes == tuple("0123456789")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bee", 0), "no method 'bee'; did you mean 'be'?"),
        (("teachers", None), "no method 'teachers'"),
        (("be", 7), "no seed 7; it has 0"),
    ],
)
def test_a_student_that_is_not_there_is_one_sentence(run, arguments, message):
    with pytest.raises(StoreError, match=re.escape(message)):
        load_student(run, *arguments)


def test_a_folder_that_is_no_run_is_one_sentence(tmp_path):
    with pytest.raises(StoreError, match=r"recipe\.json is not there"):
        load_student(tmp_path)


def test_pictures_are_resized_as_the_run_says_it_was_done(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    record = json.loads((copy / "recipe.json").read_text())
    assert record["images"]["resize"] == "crop"
    wide = np.random.default_rng(0).integers(0, 256, (2, 8, 24, 1), dtype=np.uint8)
    expected = {
        "crop": wide[:, :, 8:16],
        "squash": wide.reshape(2, 8, 8, 3, 1).mean(3).round().astype(np.uint8),
        None: wide[:, :, 8:16],  # of a run that does not say
    }
    for resize, images in expected.items():
        record["images"] = {key: value for key, value in record["images"].items() if key != "resize"}
        record["images"] |= {"resize": resize} if resize else {}
        (copy / "recipe.json").write_text(json.dumps(record))
        student = load_student(copy, "single")
        assert student.predict(wide).probabilities.equal(student.predict(images).probabilities), resize


def test_a_run_that_lacks_a_file_is_one_sentence(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    record = json.loads((copy / "recipe.json").read_text())
    del record["images"]
    (copy / "recipe.json").write_text(json.dumps(record))
    with pytest.raises(StoreError, match="does not list the classes"):
        load_student(copy)
    (copy / "analysis" / "temperatures.csv").unlink()
    with pytest.raises(StoreError, match="has no temperature of"):
        load_student(copy)
    (copy / "scores.csv").unlink()
    with pytest.raises(StoreError, match=r"scores\.csv is not there"):
        load_student(copy)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda z: z * math.nan, "returns NaN for these images: its training has diverged"),
        (lambda z: z * math.inf, "returns NaN for these images: its training has diverged"),
        (lambda z: z[..., None], "returns [2, 10, 1] for 2 images, not [2, 10]"),
    ],
)
def test_outputs_that_are_not_predictions_are_one_sentence(student, images, spoil, message):
    class Spoilt(torch.nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, x):
            return spoil(self.network(x))

    chosen = student("single")
    with pytest.raises(AnswerError, match=re.escape(message)):
        replace(chosen, ensemble=Single(Spoilt(chosen.ensemble.network))).predict(images.images[:2])
