from __future__ import annotations

import numpy as np
import pytest

from polyphony.metrics import summarise_corruptions


def test_means_are_those_of_the_grid():
    grid = np.random.default_rng(0).random((3, 5))
    kinds = ["fog", "snow", "blur"]
    cells = [(i, level) for level in range(5) for i in range(3)]
    summary = summarise_corruptions({(kinds[i], level + 1): grid[i, level] for i, level in cells})
    assert list(summary.by_type) == kinds
    assert list(summary.by_severity) == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(list(summary.by_type.values()), grid.mean(1))
    np.testing.assert_allclose(list(summary.by_severity.values()), grid.mean(0))
    assert summary.mean == pytest.approx(grid.mean())


@pytest.mark.parametrize(
    ("scores", "message"),
    [({("fog", 1): 0.1, ("fog", 2): 0.2, ("snow", 2): 0.3}, "snow 1"), ({}, "all of them")],
)
def test_a_grid_with_holes_is_refused(scores, message):
    with pytest.raises(ValueError, match=message):
        summarise_corruptions(scores)
