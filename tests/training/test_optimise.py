from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from polyphony.compute.parallel import Group
from polyphony.data import Augmentation, Split
from polyphony.distill import CrossEntropy
from polyphony.ensembles import Single
from polyphony.recipe import read_recipe
from polyphony.training.fit import Plan, Training, fit
from polyphony.training.optimise import AdamW, Cosine


@pytest.mark.parametrize(("epochs", "warm_up"), [(10, 3), (5, 0), (4, 1), (1, 0), (3, 5)])
def test_cosine_rises_over_the_warm_up_and_falls_to_almost_nothing(epochs, warm_up):
    found = [Cosine()(epoch, epochs, warm_up) for epoch in range(epochs)]
    first = max(0, warm_up - 1)
    for epoch, share in enumerate(found):
        if epoch < first:
            expected = 0.01 + 0.99 * epoch / (warm_up - 1)
        else:
            expected = (1 + math.cos(math.pi * (epoch - first) / max(1, epochs - first))) / 2
        assert share == pytest.approx(expected, abs=1e-12)
    assert 0 < min(found) <= max(found) <= 1


def data() -> Split:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(256, (24, 1, 4, 4), generator=rng, dtype=torch.uint8)
    return Split(images, torch.arange(24) % 3)


def network() -> Single:
    torch.manual_seed(0)
    return Single(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)))


def test_fit_follows_adamw_as_a_loop_written_out_does():
    plain = Augmentation(pad=0, flip=False)
    plan = Plan(epochs=3, batch=24, learning_rate=0.01, weight_decay=0.1, warm_up=0, augment=plain,
                optimizer=AdamW(betas=(0.8, 0.95), eps=1e-6), schedule=Cosine(), clip=0.05)  # fmt: skip
    model, split = network(), data()
    fit(model, CrossEntropy(), split, split, plan, torch.Generator().manual_seed(1))

    weights = [parameter.detach().double() for parameter in network().parameters()]
    moments = [[torch.zeros_like(w), torch.zeros_like(w)] for w in weights]
    x, y = split.images.double().flatten(1) / 255, split.labels
    for t in range(1, 4):
        rate = 0.01 * (1 + math.cos(math.pi * (t - 1) / 3)) / 2
        probs = (x @ weights[0].T + weights[1]).softmax(-1)
        error = (probs - nn.functional.one_hot(y, 3)) / 24
        gradients = [error.T @ x, error.sum(0)]
        length = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        assert length > 0.05, "nothing was clipped"
        gradients = [g * 0.05 / (length + 1e-6) for g in gradients]
        for i, (g, (m, v)) in enumerate(zip(gradients, moments, strict=True)):
            m.mul_(0.8).add_(0.2 * g)
            v.mul_(0.95).add_(0.05 * g * g)
            step = (m / (1 - 0.8**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-6)
            weights[i] = weights[i] * (1 - rate * 0.1) - rate * step
    best = [p.detach().double() for p in model.parameters()]
    for found, expected in zip(best, weights, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def test_a_recipe_chooses_optimiser_schedule_and_clipping():
    recipe = read_recipe("digits", ["student.optimizer=adamw", "student.schedule=cosine", "student.clip=1.5"])
    plan = Plan.of(recipe.student)
    assert (plan.optimizer, plan.schedule, plan.clip) == (AdamW(), Cosine(), 1.5)
    assert isinstance(Training(network(), plan, torch.Generator(), Group()).optimiser, torch.optim.AdamW)
    assert recipe.student.spec().keys() >= {"optimizer", "schedule", "clip"}
    betas = "student.optimizer={ kind = 'adamw', betas = [0.8, 0.9] }"
    assert read_recipe("digits", [betas]).student.optimizer.betas == (0.8, 0.9)
    before = Plan.of(read_recipe("digits").student)
    assert (
        Training(network(), before, torch.Generator(), Group()).optimiser.param_groups[0]["momentum"] == 0.9
    )
