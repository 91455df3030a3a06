from __future__ import annotations

import math

import numpy as np
import pytest

from polyphony.metrics import grid_mean, mean_sd


def test_mean_and_sd_are_numpys():
    values = [0.18, 0.184, 0.191, 0.17]
    found = mean_sd(values)
    assert (found.n, found.mean, found.sd) == pytest.approx((4, np.mean(values), np.std(values, ddof=1)))


def test_one_seed_has_no_deviation():
    assert math.isnan(mean_sd([0.25]).sd)
    assert math.isnan(mean_sd([0.25, math.inf]).sd)


def test_no_seed_has_no_mean():
    with pytest.raises(ValueError, match="at least one seed"):
        mean_sd([])


def test_the_mean_of_a_grid_is_numpys():
    grid = np.random.default_rng(0).random((3, 5))
    cells = {(kind, level): grid[i, level] for level in range(5) for i, kind in enumerate("abc")}
    assert grid_mean(cells) == pytest.approx(grid.mean())


@pytest.mark.parametrize(
    ("scores", "message"),
    [({("fog", 1): 0.1, ("fog", 2): 0.2, ("snow", 2): 0.3}, "snow 1"), ({}, "all of them")],
)
def test_a_grid_with_holes_has_no_mean(scores, message):
    with pytest.raises(ValueError, match=message):
        grid_mean(scores)
