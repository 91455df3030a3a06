from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyphony.metrics.bins import BinSums, bin_index

NUMBERS = st.floats(0, 1) | st.fractions(0, 1, max_denominator=20).map(float)


@pytest.mark.parametrize("bins", [1, 2, 7, 10, 15])
def test_every_edge_belongs_to_the_bin_below_it(bins):
    for edge in range(1, bins + 1):
        value = torch.tensor(edge / bins, dtype=torch.float64)
        assert bin_index(value, bins) == edge - 1
        if edge < bins:
            assert bin_index(value + 1e-11, bins) == edge
            assert bin_index(value + 1e-15, bins) == edge - 1  # above by rounding only
    assert bin_index(torch.tensor(0.0, dtype=torch.float64), bins) == 0


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    values=st.lists(
        st.floats(0, 1) | st.fractions(0, 1, max_denominator=20).map(float), min_size=1, max_size=20
    ),
    bins=st.integers(1, 20),
)
def test_bins_are_found_by_search(values, bins):
    def search(value: float) -> int:
        return next(b for b in range(bins) if value - (b + 1) / bins <= 1e-12)

    found = bin_index(torch.tensor(values, dtype=torch.float64), bins)
    assert found.tolist() == [search(value) for value in values]


def test_sums_of_parts_are_the_sums_of_the_whole():
    rng = np.random.default_rng(0)
    index, first, second = rng.integers(0, 5, 50), rng.normal(size=50), rng.normal(size=50)
    whole = BinSums.of(*map(torch.tensor, (index,)), 7, torch.tensor(first), torch.tensor(second))
    parts = [
        BinSums.of(torch.tensor(index[s]), 7, torch.tensor(first[s]), torch.tensor(second[s]))
        for s in (slice(0, 20), slice(20, 50))
    ]
    total = parts[0] + parts[1]
    for b in range(7):
        assert whole.count[b] == total.count[b] == (index == b).sum()
        assert math.isclose(whole.first[b], first[index == b].sum(), abs_tol=1e-12)
        assert math.isclose(total.second[b], second[index == b].sum(), abs_tol=1e-12)
