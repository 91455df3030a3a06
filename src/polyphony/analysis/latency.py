"""How long models take for a batch: processor time of one thread, measured in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

REPEATS = 20
LIMIT = 5.0  # seconds of measurement after which no further round starts


def latencies(
    works: Mapping[str, Callable[[], object]], repeats: int = REPEATS, limit: float = LIMIT
) -> dict[str, float]:
    """The milliseconds of processor time that each work takes: the median over rounds.

    A round times every work once, so that a busy machine slows all of them alike. Each is run once more just
    before, untimed, so that its weights are in the cache, as on a server with one model. There are `repeats`
    rounds; fewer, but at least three, if they take longer than `limit` seconds in all.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    rounds = 0
    while rounds < repeats and (rounds < 3 or sum(map(sum, times.values())) < limit):
        for name, work in works.items():
            work()
            times[name].append(seconds(work))
        rounds += 1
    return {name: 1000 * statistics.median(taken) for name, taken in times.items()}


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one call: with one thread, what a quiet machine takes."""
    start = time.process_time()
    work()
    return time.process_time() - start
