from __future__ import annotations

import math

import numpy as np
import pytest

from polyphony.metrics import mean_sd


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
