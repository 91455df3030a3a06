from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from polyphony.analysis import latencies

Works = dict[str, Callable[[], None]]


@pytest.fixture
def slow(monkeypatch):
    """Works that take as long as they are told, by a clock of their own, and the order they ran in."""
    clock, order = [0.0], []
    monkeypatch.setattr(time, "process_time", lambda: clock[0])

    def make(**takes: list[float]) -> tuple[Works, list[str]]:
        def work(name: str) -> Callable[[], None]:
            def run() -> None:
                clock[0] += takes[name][order.count(name) % len(takes[name])]
                order.append(name)

            return run

        return {name: work(name) for name in takes}, order

    return make


def test_latency_is_each_works_median_of_alternating_rounds(slow):
    works, order = slow(a=[9.0, 1.0, 7.0, 5.0, 8.0, 2.0], b=[0.5])
    found = latencies(works, repeats=3)
    assert found == pytest.approx({"a": 2000.0, "b": 500.0})  # every second call is timed
    assert order == ["a", "a", "b", "b"] * 3


@pytest.mark.parametrize(("takes", "rounds"), [(0.1, 20), (1.0, 5), (60.0, 3)])
def test_slow_works_have_fewer_rounds_but_three(slow, takes: float, rounds: int):
    works, order = slow(a=[takes])
    latencies(works, limit=4.5)
    assert len(order) == 2 * rounds
