"""Four trained networks and images in, a student out that is better than the best of the four."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from polyphony import Options, load
from polyphony.cli import main
from polyphony.data import pixels
from polyphony.metrics import Predictions
from polyphony.runs.predictions import prediction_path, read_predictions

MODULE = """
from torch import nn

class SmallCNN(nn.Sequential):
    def __init__(self, num_classes, in_channels):
        first = [nn.Conv2d(in_channels, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()]
        second = [nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
        super().__init__(*first, *second, nn.Flatten(), nn.Linear(128, num_classes))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """1,000 training images in an .npz, and four networks that a plain loop has trained on them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "paying_nets.py").write_text(MODULE)
    splits = load("fashion-small", Options(limit=1000, valid=600, test=2000))
    arrays = {f"{part}_images": getattr(splits, part).images.numpy() for part in ("train", "valid", "test")}
    arrays |= {f"{part}_labels": getattr(splits, part).labels.numpy() for part in ("train", "valid", "test")}
    np.savez("images.npz", **arrays)
    names: dict = {}
    exec(MODULE, names)
    x, y = (pixels(splits.train.images) - 0.5) / 0.5, splits.train.labels
    for seed in range(4):
        torch.manual_seed(seed)
        net = names["SmallCNN"](10, 1)
        optimizer = torch.optim.Adam(net.parameters(), 5e-3)
        for _ in range(15):
            for rows in torch.randperm(len(x)).split(50):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
                optimizer.step()
        torch.save(net.state_dict(), f"{seed}.pt")
    yield tmp_path
    sys.modules.pop("paying_nets", None)


def command(*arguments: str) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(list(arguments))


def calibrated_nll(valid: Predictions, test: Predictions) -> tuple[float, float]:
    """NLL on validation and on test images, at the temperature that validation images choose."""
    temperature = valid.fit_temperature()
    return valid.quality(temperature)["nll"], test.quality(temperature)["nll"]


def errors_at_80(model: str) -> float:
    """The share of wrong answers among the 80 % of test images that a model is surest of."""
    with Path("runs/own/scores.csv").open() as table:
        (row,) = (
            row
            for row in csv.DictReader(table)
            if (row["model"], row["split"], row["calibration"]) == (model, "test", "calibrated")
        )
    return float(row["error_80"])


def test_a_student_from_init_is_better_than_the_best_of_its_teachers(place):
    weights = [f"{seed}.pt" for seed in range(4)]
    command("init", "images.npz", *weights, "--network", "paying_nets:SmallCNN")
    methods = "methods={ods-3={perturb='ods', step_size='3/255'}}"
    small = ("--set", "seeds=[0]", "--set", "student.epochs=25", "--set", methods)
    command("study", "own.toml", *small, "--workers", "1")

    def answers(model: str, seed: int | None, split: str) -> Predictions:
        return read_predictions(prediction_path(Path("runs/own"), model, seed, split))

    student = calibrated_nll(answers("ods-3", 0, "valid"), answers("ods-3", 0, "test"))
    valid, test = (answers("teachers", None, split) for split in ("valid", "test"))
    teachers = [
        calibrated_nll(
            Predictions(valid.logits[j : j + 1], valid.labels),
            Predictions(test.logits[j : j + 1], test.labels),
        )
        for j in range(4)
    ]
    assert student[1] < min(teachers)[1]  # of the best by validation images
    assert student[1] < min(nll for _, nll in teachers)
    assert answers("ods-3", 0, "test").mean_kld() > 0.02  # members are no copies
    assert errors_at_80("ods-3") < errors_at_80("best teacher") + 0.01  # a standard error of 1,600 images

    command("export", "runs/own", "--out", "student.onnx")
    images = np.load("images.npz")
    session = onnxruntime.InferenceSession("student.onnx")
    (probabilities,) = session.run(["probabilities"], {"pixels": images["test_images"]})
    of_labels = probabilities[np.arange(2000), images["test_labels"]]
    assert -np.log(of_labels).mean() == pytest.approx(student[1], abs=1e-4)
