from __future__ import annotations

from itertools import combinations

import pytest
import torch

from polyphony.ensembles import BatchEnsemble
from polyphony.nn import RankOneConv2d, RankOneLinear, factor_distance, resnet


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def layers(network):
    return [module for module in network.modules() if isinstance(module, RankOneConv2d | RankOneLinear)]


@pytest.fixture
def student(rng):
    return BatchEnsemble(resnet(8, 10, 3, 16, rng), 3, rng=rng)


@torch.no_grad()
def test_distance_is_that_of_the_matrices_that_multiply_the_weights(student):
    shares = []
    for layer in layers(student):
        matrices = [torch.outer(s, r) for s, r in zip(layer.s.double(), layer.r.double(), strict=True)]
        for a, b in combinations(matrices, 2):
            norm = ((a.norm() ** 2 + b.norm() ** 2) / 2) ** 0.5
            shares.append(float((a - b).norm() / norm))
    assert factor_distance(student) == pytest.approx(sum(shares) / len(shares), rel=1e-9)


def test_fresh_factors_are_about_085_apart(student):
    assert factor_distance(student) == pytest.approx((1.125 / 1.5625) ** 0.5, abs=0.05)


@torch.no_grad()
def test_members_with_the_same_weights_have_collapsed_however_their_factors_are_written(student):
    for layer in layers(student):
        for j in (1, 2):
            layer.r[j], layer.s[j] = layer.r[0] * -2 * j, layer.s[0] / (-2 * j)
    assert factor_distance(student) == pytest.approx(0, abs=1e-3)  # float32: (1/3) · 3 is not quite 1


def test_one_member_has_no_distance(rng):
    with pytest.raises(ValueError, match="at least two"):
        factor_distance(BatchEnsemble(resnet(8, 10, 3, 2, rng), 1, rng=rng))
