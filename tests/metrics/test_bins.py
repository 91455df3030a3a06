from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyphony.metrics.bins import bin_index, bin_sums

NUMBERS = st.floats(0, 1) | st.fractions(0, 1, max_denominator=20).map(float)


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_every_edge_belongs_to_the_bin_below_it(bins):
    for edge in range(1, bins + 1):
        value = torch.tensor(edge / bins, dtype=torch.float64)
        assert bin_index(value, bins) == edge - 1
        if edge < bins:
            assert bin_index(value + 1e-11, bins) == edge
            assert bin_index(value + 1e-15, bins) == edge - 1  # above by rounding only
    assert bin_index(torch.tensor(0.0, dtype=torch.float64), bins) == 0


@settings(max_examples=50, derandomize=True)
@given(values=st.lists(NUMBERS, min_size=1, max_size=20), bins=st.integers(1, 20))
def test_bins_are_found_by_search_and_summed_by_hand(values, bins):
    def search(value: float) -> int:
        return next(b for b in range(bins) if value - (b + 1) / bins <= 1e-12)

    places = np.array([search(value) for value in values])
    column = np.random.default_rng(0).normal(size=len(values))
    count, total = bin_sums(torch.tensor(values, dtype=torch.float64), bins, torch.tensor(column))
    assert count.tolist() == [(places == b).sum() for b in range(bins)]
    np.testing.assert_allclose(total, [column[places == b].sum() for b in range(bins)], atol=1e-12)
