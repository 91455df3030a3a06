"""How a step is measured before a study starts: by a clock that the tests set."""

from __future__ import annotations

import pytest
import torch

from polyphony.distill import CrossEntropy
from polyphony.ensembles import Single
from polyphony.recipe import read_recipe
from polyphony.study import Study
from polyphony.study.cost import probe, probing_batch, typical


@pytest.mark.parametrize(
    ("seconds", "least", "largest", "batch", "asked"),
    [
        (lambda size: 0.01 * size, 4, 128, 32, [4, 8, 16, 32]),  # a small network on a CPU
        (lambda size: 3.0 * size, 2, 128, 2, [2]),  # a network so large that two images take seconds
        (lambda size: 0.02, 9, 50, 50, [9, 18, 36]),  # a GPU: as long as it takes to launch
        (lambda size: 0.3, 60, 50, 50, []),  # a busy CPU and little arithmetic: the call itself takes long
    ],
    ids=["small", "large", "launched", "called"],
)
def test_the_batch_is_doubled_until_a_step_can_be_measured(seconds, least, largest, batch, asked):
    sizes = []

    def measure(size: int) -> float:
        sizes.append(size)
        return seconds(size)

    assert probing_batch(measure, least, largest) == batch
    assert sizes == asked


@pytest.mark.parametrize(
    ("seconds", "expected", "left"),
    [([0.3, 0.1, 0.2], 0.2, 0), ([9.0, 1.0, 1.0], 9.0, 2), ([1.0, 0.6, 0.1], 0.8, 1)],
)
def test_what_takes_long_is_measured_less_often(seconds, expected, left):
    assert typical(lambda: seconds.pop(0)) == pytest.approx(expected)
    assert len(seconds) == left


@pytest.mark.parametrize(("precision", "dtype"), [("float32", None), ("bfloat16", torch.bfloat16)])
def test_a_step_is_measured_at_the_recipes_precision(tmp_path, precision, dtype):
    settings = ("teachers.network.width=2", f"precision='{precision}'")
    study, seen = Study(read_recipe("digits", settings), tmp_path), []

    def loss(model, x, y, rng):
        seen.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)
        return CrossEntropy()(model, x, y, rng)

    probe(study, Single(study.network(study.recipe.teachers.network)), loss, 2)
    assert seen == [dtype]
    assert not torch.is_autocast_enabled("cpu")
