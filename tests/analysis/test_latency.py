from __future__ import annotations

import time

import pytest
import torch

from polyphony.analysis import latencies
from polyphony.ensembles import Ensemble


class Slow(Ensemble):
    """A model that takes as long as it is told, by a clock of its own."""

    def __init__(self, clock: list[float], takes: list[float], order: list[int]) -> None:
        super().__init__()
        self.members, self.clock, self.takes, self.order = len(takes), clock, takes, order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert len(x) == self.members
        self.clock[0] += self.takes[self.order.count(id(self)) % len(self.takes)]
        self.order.append(id(self))
        return x


def test_latency_is_each_models_median_of_alternating_repeats(monkeypatch):
    clock, order = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    models = {"a": Slow(clock, [9.0, 1.0, 5.0, 2.0], order), "b": Slow(clock, [0.5], order)}
    found = latencies(models, torch.zeros(2, 1, 4, 4), repeats=3)
    assert found == pytest.approx({"a": 2000.0, "b": 500.0})  # the first, slow pass is not counted
    a, b = (id(model) for model in models.values())
    assert order == [a, b] * 4
