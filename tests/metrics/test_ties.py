from __future__ import annotations

import pytest
import torch

from polyphony.metrics.bins import in_order


def test_equal_values_share_their_mean_outcome():
    values, outcomes = torch.tensor([2.0, 1.0, 2.0, 0.0]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    ordered, expected = in_order(values, outcomes)
    assert ordered.tolist() == [0, 1, 2, 2]
    assert expected.tolist() == [1, 0, 0.5, 0.5]


def test_the_order_of_examples_does_not_matter():
    rng = torch.Generator().manual_seed(0)
    values = torch.randint(5, (60,), generator=rng).double()
    outcomes = torch.randint(2, (60,), generator=rng).double()
    shuffled = torch.randperm(60, generator=rng)
    one, other = in_order(values, outcomes), in_order(values[shuffled], outcomes[shuffled])
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_nan_and_misfits_are_rejected():
    with pytest.raises(ValueError, match="NaN cannot be sorted"):
        in_order(torch.tensor([0.0, float("nan")]), torch.zeros(2))
    with pytest.raises(ValueError, match="do not fit"):
        in_order(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="do not fit"):
        in_order(torch.zeros(0), torch.zeros(0))
