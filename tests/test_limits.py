"""Settings of the library that no training can follow are refused where they are given."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from pathlib import Path

import pytest
import torch

from polyphony import (
    ODS,
    Adversarial,
    CrossEntropy,
    DeepEnsemble,
    Distill,
    Gaussian,
    Mixup,
    Plan,
    Predictions,
    Single,
    Split,
    fit,
    losses,
    resnet,
)
from polyphony.devices import choose_device
from polyphony.distill import DistillMean
from polyphony.store import StoreError, load_predictions, save_predictions
from polyphony.train import ResumeError

TEACHERS = DeepEnsemble([resnet(8, 3, width=2)])


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: Distill(TEACHERS, temperature=-1), "temperature must be a number above 0, not -1"),
        (lambda: Distill(TEACHERS, temperature=nan), "temperature must be a number above 0, not nan"),
        (lambda: Distill(TEACHERS, temperature=1e300), "temperature must be a number above 0, not 1e"),
        (lambda: Distill(TEACHERS, alpha=2), "alpha must be from 0 to 1, not 2"),
        (lambda: DistillMean(TEACHERS, alpha=-0.1), "alpha must be from 0 to 1"),
        (lambda: DistillMean(TEACHERS, temperature=0), "temperature must be"),
        (lambda: ODS(inf), "step_size must be a number from 0 on, not inf"),
        (lambda: Gaussian(-1), "step_size must be"),
        (lambda: Adversarial(nan), "step_size must be"),
        (lambda: Mixup(0), "concentration must be"),
        (lambda: Plan(epochs=0), "epochs must be a number above 0, not 0"),
        (lambda: Plan(batch=-1), "batch must be"),
        (lambda: Plan(learning_rate=-0.1), "learning_rate must be a number above 0, not -0.1"),
        (lambda: Plan(weight_decay=-1), "weight_decay must be"),
        (lambda: Plan(clip=0), "clip must be"),
        (lambda: choose_device("meta"), "there is no device 'meta' here"),
    ],
)
def test_settings_that_make_no_sense(make: Callable[[], object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        make()


def test_predictions_that_are_no_numbers_are_not_read(tmp_path: Path) -> None:
    logits = torch.zeros(2, 4, 3)
    logits[1, 2, 0] = nan
    save_predictions(tmp_path / "test.safetensors", Predictions(logits, torch.zeros(4).long()), "key")
    with pytest.raises(StoreError, match="its logits are not all numbers"):
        load_predictions(tmp_path / "test.safetensors", "key")


def test_the_edges_are_allowed() -> None:
    Distill(TEACHERS, alpha=0), Distill(TEACHERS, alpha=1), ODS(0), Plan(epochs=1, weight_decay=0, warm_up=0)


def test_teachers_of_other_classes_and_labels_of_none() -> None:
    student, teachers = torch.zeros(2, 4, 10), torch.zeros(2, 4, 100)
    for loss in (losses.distillation, losses.mean_distillation):
        with pytest.raises(ValueError, match="the student has 10 classes, its teachers 100"):
            loss(student, teachers, 1.0)
    for label in (-1, 10):
        with pytest.raises(ValueError, match=f"there is a label {label}, but the network has 10 classes"):
            losses.cross_entropy(student, torch.full((2, 4), label))


def test_weights_of_half_precision_are_not_trained() -> None:
    split = Split(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4) % 2)
    model, rng = Single(resnet(8, 2, width=2).half()), torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match=r"weights are trained in float32, not torch\.float16"):
        fit(model, CrossEntropy(), split, split, Plan(epochs=1, batch=2), rng)


@pytest.mark.parametrize(
    "state",
    [
        {"log": []},
        {"model": {}, "optimiser": {}, "rng": torch.zeros(3), "best": {}, "log": []},
        {"model": resnet(8, 5, width=2).state_dict(), "optimiser": {}, "rng": 3, "best": {}, "log": []},
        {"model": 3, "optimiser": None, "rng": None, "best": None, "log": None},
    ],
)
def test_a_saved_state_of_another_training_is_one_sentence(state: dict[str, object]) -> None:
    class Kept:
        def load(self) -> dict[str, object]:
            return state

        def save(self, state: dict[str, object]) -> None:
            raise AssertionError

    split = Split(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4) % 2)
    model, rng = Single(resnet(8, 2, width=2)), torch.Generator().manual_seed(0)
    with pytest.raises(ResumeError, match="the saved state is not of this training") as caught:
        fit(model, CrossEntropy(), split, split, Plan(epochs=1, batch=2), rng, checkpoint=Kept())
    assert len(str(caught.value)) <= 300
