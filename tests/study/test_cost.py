"""What a study costs: operations against a closed form and against real steps, time against real clocks."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from polyphony.compute.seeds import generator
from polyphony.distill import CrossEntropy
from polyphony.ensembles import Ensemble, Single
from polyphony.nn import ConversionError, add_members, resnet
from polyphony.nn.counting import FEW, Count, Counting
from polyphony.recipe import RecipeError, read_recipe
from polyphony.study.cost import (
    MAX_FLOPS,
    Speed,
    all_zeros,
    blank,
    costs,
    estimate_predictions,
    estimate_trainings,
    fit_speed,
    measure_speed,
    plain_step,
    sketch_models,
    sketch_on,
    training_step,
)
from polyphony.study.study import Study
from polyphony.training.fit import fit

SMALL = ("teachers.network={kind='resnet', depth=8, width=2}", "data.per_class=8", "data.resolution=8")


def macs_of_layers(network: nn.Module, x: torch.Tensor) -> list[int]:
    """Multiplications of every convolution and linear layer on a batch, first to last."""
    macs = []

    def note(layer: nn.Module, _: object, out: torch.Tensor) -> None:
        macs.append(out.numel() * layer.weight[0].numel())

    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(note)
    network(x)
    return macs


def test_a_step_of_a_plain_network_is_what_its_layers_take(tmp_path):
    network, x = resnet(14, 10, 3, 4), torch.rand(FEW, 3, 16, 16)
    stem, *others = macs_of_layers(network, x)
    # two operations a multiplication; forward, gradient of weights, and of inputs except the images
    expected = 2 * (2 * stem + 3 * sum(others)) / FEW
    on_cpu = Counting().of(partial(training_step, Single(resnet(14, 10, 3, 4)), CrossEntropy(), x))
    assert on_cpu.flops == expected
    with torch.device("meta"):
        model = Single(resnet(14, 10, 3, 4))
    on_meta = Counting()
    for _ in range(2):  # the second time all shapes are cached
        assert on_meta.of(partial(training_step, model, CrossEntropy(), x.to("meta"))).flops == expected


@pytest.mark.parametrize("recipe", ["students-fashion", "evidence-2-cifar10"])
def test_the_arithmetic_counted_without_numbers_is_that_of_real_steps(recipe):
    study = Study(read_recipe(recipe, SMALL), Path("nowhere")).outlined()
    without, real = (estimate_trainings(study, sketch_on(device, study)) for device in ("meta", "cpu"))
    assert [cost.name for cost in without] == ["teacher", *study.recipe.methods]
    assert {cost.name: cost.flops for cost in without} == {cost.name: cost.flops for cost in real}


def test_the_papers_largest_recipe_is_counted_within_seconds():
    study = Study(read_recipe("cifar100-wrn28x10-be4"), Path("nowhere")).outlined()
    start = time.process_time()
    costs(study, sketch_models(study))
    assert time.process_time() - start < 30  # 3 on a machine that does nothing else; by doing a step, minutes


BRANCHED = """
members = 3
seeds = [0]
[data]
name = "digits"
[teachers]
network = { kind = "resnet", depth = 8, width = 2 }
epochs = 1
batch = 8
learning_rate = 0.1
[student]
epochs = 1
batch = 8
learning_rate = 0.1
[methods]
everywhere = { perturb = "ods" }
branch = { perturb = "ods", form = { kind = "batch_ensemble", branch = "stages.1" } }
hydra = { perturb = "ods", form = "hydra" }
merged = { perturb = "ods", form = "latent_be" }
"""


@pytest.fixture
def branched(tmp_path) -> Study:
    (tmp_path / "branched.toml").write_text(BRANCHED)
    return Study(read_recipe(str(tmp_path / "branched.toml")), tmp_path / "run")


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_an_answer_takes_the_multiply_adds_of_its_layers_and_a_shared_front_once(branched, device):
    predictions = {cost.name: cost for cost in estimate_predictions(branched, sketch_on(device, branched))}
    assert list(predictions) == ["one teacher", "teachers", "everywhere", "branch", "hydra", "merged"]
    network = resnet(8, 10, 1, 2)
    *trunk, classifier = macs_of_layers(network, branched.data().train.images[:1].float())
    one, front = sum(trunk) + classifier, sum(trunk[:3])  # the stem, and the two layers of the first stage
    assert {name: cost.multiply_adds for name, cost in predictions.items()} == {
        "one teacher": one,
        "teachers": 3 * one,
        "everywhere": 3 * one,
        "branch": front + 3 * (one - front),
        "hydra": one + 2 * classifier,
        "merged": one,
    }
    size = sum(value.nbytes for value in network.state_dict().values())
    assert (predictions["one teacher"].weights, predictions["teachers"].weights) == (size, 3 * size)
    assert predictions["merged"].weights == size
    assert all(cost.milliseconds > 0 for cost in predictions.values())
    assert predictions["branch"].milliseconds < predictions["everywhere"].milliseconds


def test_what_cannot_be_added_is_noticed_without_numbers():
    """A branch inside a block is refused on the meta device, too, where nothing is written."""
    with torch.device("meta"), Counting(), pytest.raises(ConversionError, match="is used after it, too"):
        add_members(resnet(8, 10), 2, branch="stages.1.0.conv1")


# Time


COUNT = Count(calls=200, flops=1e7)


@pytest.mark.parametrize("largest", [16, 128])
def test_the_time_of_calls_and_of_arithmetic_are_told_apart(largest):
    def measure(images: int) -> float:
        return 200 * 3e-6 + images * 1e7 * 2e-11

    speed = fit_speed(measure, COUNT, largest)
    assert speed.call == pytest.approx(3e-6)
    assert speed.flop == pytest.approx(2e-11)
    assert speed.seconds(COUNT, images=250, batch=100) == pytest.approx(3 * 200 * 3e-6 + 250 * 2e-4)


def test_a_network_without_products_is_measured_by_its_calls():
    speed = fit_speed(lambda images: 2.0, Count(calls=200, flops=0), 128)
    assert speed == Speed(0.01, 0.0)


def test_the_network_that_is_measured_takes_memory_for_one_weight_alone():
    network = resnet(8, 3, 1, 2)
    network.get_parameter("classifier.bias").requires_grad_(False)
    network.register_parameter("exact", nn.Parameter(torch.ones(3, dtype=torch.float64)))
    model = all_zeros(Single(network), "cpu")
    assert len({weight.untyped_storage().data_ptr() for weight in model.parameters()}) == 1
    training_step(model, CrossEntropy(), torch.rand(FEW, 1, 8, 8))
    assert all(weight.grad is None and not weight.any() for weight in model.parameters())
    assert network.get_parameter("exact").all()


def test_a_measurement_that_was_disturbed_does_not_count():
    disturbed = iter([9.0, 0.0, 5.0] * 2)

    def measure(images: int) -> float:
        return 1e-3 + images * 1e-4 + next(disturbed) / 100

    speed = fit_speed(measure, COUNT, 32)
    assert speed.flop == pytest.approx(1e-11)


def test_a_network_so_large_that_few_images_take_long_is_measured_once():
    batches = []
    huge = Count(calls=400, flops=MAX_FLOPS)

    def measure(images: int) -> float:
        batches.append(images)
        return 2.0

    assert fit_speed(measure, huge, 128) == Speed(0.0, 2.0 / (FEW * MAX_FLOPS))
    assert batches == [FEW]


@pytest.mark.parametrize("alone", [True, False])
def test_a_network_of_which_one_image_takes_long_is_measured_on_one_if_it_takes_one(alone):
    batches = []

    def measure(images: int) -> float:
        batches.append(images)
        if images == 1 and not alone:
            raise ValueError("Expected more than 1 value per channel")
        return 2.0 * images

    assert fit_speed(measure, Count(calls=400, flops=2 * MAX_FLOPS), 128) == Speed(0.0, 1 / MAX_FLOPS)
    assert batches == ([1] if alone else [1, FEW])


def test_the_estimate_is_near_what_a_training_takes(tmp_path):
    settings = ("teachers.network.width=8", "teachers.epochs=4", "teachers.warm_up=1", "threads=1")
    study = Study(read_recipe("digits", settings), tmp_path)
    estimate = costs(study)[0].seconds
    model, splits = Single(study.network(study.recipe.teachers.network_of(0))), study.data()
    plan = study.training_plan(study.recipe.teachers)
    seconds = []
    for _ in range(2):  # the first in a process takes longer
        start = time.process_time()
        fit(model, CrossEntropy(), splits.train, splits.valid, plan, generator("", 0))
        seconds.append(time.process_time() - start)
    assert 1 / 3 < estimate / min(seconds) < 3


class Noting(Ensemble):
    """One that notes at which precision it is called."""

    members = 1
    dtypes: ClassVar[list[torch.dtype | None]] = []

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.dtypes.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)
        return self.logits.expand(*x.shape[:2], 10)


@pytest.mark.parametrize(("precision", "dtype"), [("float32", None), ("bfloat16", torch.bfloat16)])
def test_a_step_is_measured_at_the_recipes_precision(tmp_path, precision, dtype):
    study = Study(read_recipe("digits", [f"precision='{precision}'"]), tmp_path)
    Noting.dtypes.clear()
    measure_speed(study, Noting(), COUNT, plain_step)
    assert set(Noting.dtypes) == {dtype}
    assert not torch.is_autocast_enabled("cpu")


# Networks of one's own


OWN = """
import torch
from torch import nn

class Choosy(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()
        self.light, self.dark = nn.Linear(64 * channels, classes), nn.Linear(64 * channels, classes)
        self.register_buffer("mood", torch.ones(()))
    def forward(self, x):
        return (self.light if float(self.mood) > 0.5 else self.dark)(x.flatten(1))
"""


def test_a_network_that_needs_numbers_is_counted_with_them(tmp_path, monkeypatch):
    (tmp_path / "choosy_network.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    network = "teachers.network={ kind = 'python', name = 'choosy_network:Choosy' }"
    study = Study(read_recipe("digits", [network, "methods={scratch = {}}", "seeds=[0]"]), tmp_path)
    teacher = costs(study)[0]
    images = len(study.data().train) * study.recipe.teachers.epochs
    assert teacher.flops == images * 2 * 2 * 64 * 10  # forward, and the gradient of the one that was used
    assert blank(study, 3, "meta").shape == (3, 1, 8, 8)


def test_a_network_larger_than_the_memory_is_one_sentence_with_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr("polyphony.study.cost.memory", lambda: 16 << 30)
    width = 4096  # of which a ResNet-8 has 288 w² weights in six 3×3 convolutions, and little else
    recipe = read_recipe("digits", (f"teachers.network={{kind='resnet', depth=8, width={width}}}",))
    with pytest.raises(RecipeError, match=r"a step needs at least .* this machine has 16\.0") as caught:
        costs(Study(recipe, tmp_path / "run"))
    size = float(str(caught.value).split("at least ")[1].split()[0])
    assert size == pytest.approx(3 * 4 * 288 * width**2 / 2**30, rel=0.02)  # gradients and momentum too
