"""Processor time of models for a batch, in one thread, measured side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

REPEATS = 20
LIMIT = 5.0  # seconds of measurement after which no new round starts


def latencies(
    works: Mapping[str, Callable[[], object]], repeats: int = REPEATS, limit: float = LIMIT
) -> dict[str, float]:
    """Milliseconds of processor time of each function: the median over rounds.

    A round times every function once, so that a busy machine slows all of them equally. Each is called once,
    untimed, just before, so that its weights are in the cache, as on a server with one model. There are
    `repeats` rounds; fewer, but at least three, if they take longer than `limit` seconds in all.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    count = 0
    while count < repeats and (count < 3 or sum(map(sum, times.values())) < limit):
        for name, work in works.items():
            work()
            times[name].append(seconds(work))
        count += 1
    return {name: 1000 * statistics.median(rounds) for name, rounds in times.items()}


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one call; in one thread, other processes hardly change it."""
    start = time.process_time()
    work()
    return time.process_time() - start
