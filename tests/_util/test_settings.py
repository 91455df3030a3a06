"""Invalid settings, data and saved states are rejected where they enter the library."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from pathlib import Path

import pytest
import torch

from polyphony import (
    MIMO,
    ODS,
    Adversarial,
    Augmentation,
    BatchEnsemble,
    CrossEntropy,
    DeepEnsemble,
    Dirichlet,
    Distill,
    DistillDistribution,
    DistillProxy,
    Ensemble,
    Gaussian,
    Hydra,
    LatentBE,
    Mixup,
    Plan,
    Predictions,
    Single,
    Split,
    fit,
    predict,
    resnet,
)
from polyphony.compute.devices import choose_device
from polyphony.distill import DistillMean, losses
from polyphony.runs.predictions import read_predictions, save_predictions
from polyphony.runs.store import StoreError
from polyphony.training.fit import Loss, ResumeError
from polyphony.training.optimise import SGD

NETWORK = resnet(8, 3, width=2)
TEACHERS = DeepEnsemble([resnet(8, 3, width=2)])
SPLIT = Split(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4) % 2)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: Distill(TEACHERS, temperature=-1), "temperature must be greater than 0, not -1"),
        (lambda: Distill(TEACHERS, temperature=nan), "temperature must be a finite number, not nan"),
        (
            lambda: Distill(TEACHERS, temperature=1e300),
            "temperature must be less than or equal to 1000000, not 1e",
        ),
        (lambda: Distill(TEACHERS, alpha=2), "alpha must be less than or equal to 1, not 2"),
        (lambda: DistillMean(TEACHERS, alpha=-0.1), "alpha must be greater than or equal to 0"),
        (lambda: DistillMean(TEACHERS, temperature=0), "temperature must be"),
        (lambda: ODS(inf), "step_size must be a finite number, not inf"),
        (
            lambda: Distill(TEACHERS, perturb="ods"),
            "perturb must be a perturbation such as ODS",
        ),
        (lambda: ODS(4), r"step_size must be at most 1 \(pixels are in \[0, 1\]\), not 4"),
        (lambda: Gaussian(8 / 255, 99), "Gaussian takes at most 1 value, not 2"),
        (
            lambda: Plan(momentum=0, optimizer=SGD(nesterov=True)),
            "Nesterov momentum needs a momentum",
        ),
        (lambda: Gaussian(-1), "step_size must be"),
        (lambda: Adversarial(nan), "step_size must be"),
        (lambda: Mixup(0), "concentration must be"),
        (lambda: Plan(epochs=0), "epochs must be greater than 0, not 0"),
        (lambda: Plan(batch=-1), "batch must be"),
        (lambda: Plan(learning_rate=-0.1), "learning_rate must be greater than 0, not -0.1"),
        (lambda: Plan(weight_decay=-1), "weight_decay must be"),
        (lambda: Plan(clip=0), "clip must be"),
        (lambda: Plan(epochs=1.5), "epochs must be a valid integer, not 1.5"),
        (lambda: Plan(batch="8"), "batch must be a valid integer, not '8'"),
        (lambda: Plan(learning_rate=True), "learning_rate must be a valid number, not True"),
        (lambda: Plan(precision=torch.int8), "precision must be .* or 'float16', not 'int8'"),
        (lambda: Distill(TEACHERS, temperature=None), "temperature must be a valid number, not None"),
        (lambda: Distill(TEACHERS, passes="three"), "passes must be 'one' or 'two', not 'three'"),
        (lambda: Distill(TEACHERS, alpha=10**5000), "alpha must be .*, not a number of thousands"),
        (lambda: DistillDistribution(TEACHERS, 0), "steps must be"),
        (lambda: DistillDistribution(TEACHERS, 9, start_temperature=-1), "start_temperature must be"),
        (
            lambda: DistillDistribution(TEACHERS, 9, smoothing=2),
            "smoothing must be less than or equal to 1, not 2",
        ),
        (lambda: DistillDistribution(TEACHERS, 9, gradient_limit=nan), "gradient_limit must be"),
        (lambda: DistillProxy(TEACHERS, temperature=-1), "temperature must be"),
        (lambda: Augmentation(pad=-1), "pad must be greater than or equal to 0, not -1"),
        (lambda: predict(TEACHERS, SPLIT, batch=0), "batch must be greater than 0, not 0"),
        (lambda: BatchEnsemble(NETWORK, 0), "members must be greater than 0, not 0"),
        (lambda: LatentBE(NETWORK, 1.5), "members must be .* not 1.5"),
        (lambda: Hydra(NETWORK, 10**9), "members must be .* not 1000000000"),
        (lambda: MIMO(NETWORK, -1), "members must be"),
        (lambda: BatchEnsemble(NETWORK, 2, factor_std=nan), "factor_std must be"),
        (lambda: resnet(8, 0), "classes must be"),
        (lambda: resnet(8, 3, width=-1), "width must be"),
        (lambda: choose_device("meta"), "there is no device 'meta' here"),
    ],
)
def test_invalid_settings_are_rejected(make: Callable[[], object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault) as caught:
        make()
    assert len(str(caught.value)) <= 300


def trained(student: Ensemble, loss: Loss, split: Split = SPLIT) -> Callable[[], object]:
    """One epoch of a training that cannot be."""
    plan = Plan(epochs=1, batch=2, augment=Augmentation(0, False))
    return lambda: fit(student, loss, split, split, plan, torch.Generator().manual_seed(0))


HALVES = DeepEnsemble([resnet(8, 3, width=2).half()])
OTHERS = DeepEnsemble([resnet(8, 5, width=2)])
ALONE = DeepEnsemble([resnet(8, 1, width=2)])
GREY = Split(SPLIT.images[:, :1], SPLIT.labels)
FAR = Split(SPLIT.images, SPLIT.labels + 7)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (trained(Single(NETWORK), Distill(HALVES)), r"weights are torch.float16, the images torch.float32"),
        (lambda: predict(HALVES, SPLIT), r"weights are torch.float16, the images torch.float32: call .float"),
        (trained(Single(NETWORK), Distill(OTHERS)), "the student has 3 classes, its teachers 5"),
        (trained(Dirichlet(NETWORK), DistillDistribution(OTHERS, 9)), "has 3 classes, its teachers 5"),
        (trained(Dirichlet(NETWORK, 1), DistillProxy(OTHERS)), "the student has 3 classes, its teachers 5"),
        (trained(Single(resnet(8, 1, width=2)), Distill(ALONE)), "the networks have only one class"),
        (trained(Single(resnet(8, 1, width=2)), CrossEntropy()), "the network has only one class"),
        (trained(Single(NETWORK), Distill(TEACHERS, perturb=Adversarial()), FAR), "there is a label 8, but"),
        (trained(Single(NETWORK), CrossEntropy(), GREY), "the images have 1 channels, the network takes 3"),
        (
            trained(NETWORK, CrossEntropy()),
            "fit trains an ensemble, not a ResNet: wrap it in Single",
        ),
        (lambda: DeepEnsemble([NETWORK])(torch.zeros(1, 2, 3, 8, 8, device="meta")), "images are on meta"),
    ],
)
def test_impossible_trainings_are_rejected(make: Callable[[], object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        make()


def test_predictions_that_are_not_numbers_are_rejected(tmp_path: Path) -> None:
    logits = torch.zeros(2, 4, 3)
    logits[1, 2, 0] = nan
    save_predictions(tmp_path / "test.safetensors", Predictions(logits, torch.zeros(4).long()), "key")
    with pytest.raises(StoreError, match="its logits are not all numbers"):
        read_predictions(tmp_path / "test.safetensors")


def test_limits_themselves_are_allowed() -> None:
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
    with pytest.raises(ValueError, match=r"weights are trained in float32, not torch\.float16"):
        trained(Single(resnet(8, 2, width=2).half()), CrossEntropy())()


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
    class SavedState:
        def load(self) -> dict[str, object]:
            return state

        def save(self, state: dict[str, object]) -> None:
            raise AssertionError

    model, rng = Single(resnet(8, 2, width=2)), torch.Generator().manual_seed(0)
    with pytest.raises(ResumeError, match="the saved state is not of this training") as caught:
        fit(model, CrossEntropy(), SPLIT, SPLIT, Plan(epochs=1, batch=2), rng, checkpoint=SavedState())
    assert len(str(caught.value)) <= 300
