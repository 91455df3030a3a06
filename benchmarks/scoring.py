"""The cost of scoring saved logits, and how it grows with examples and members.

Run from the project's root: `python benchmarks/scoring.py`. Prints times and ratios, and writes them to
`benchmarks/results/scoring.csv`. A ratio is the cost per example and member, relative to the first row of its
group: it is 1.0 if the cost grows in proportion.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path

import torch

from polyphony import metrics
from polyphony._util.files import processor
from polyphony.metrics import Predictions
from polyphony.runs.rows import csv_text

RESULTS = Path(__file__).parent / "results" / "scoring.csv"
EXAMPLES, MEMBERS, CLASSES, TEACHERS = 10_000, 4, 10, 8
Row = dict[str, str | int | float]


def predictions(members: int, examples: int, seed: int = 0) -> Predictions:
    """Float32 logits as on CIFAR: members agree on most examples and are correct on about 19 of 20."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (examples,), generator=rng)
    shared = torch.randn(examples, CLASSES, generator=rng) * 2
    shared[torch.arange(examples), labels] += 8
    return Predictions(shared + torch.randn(members, examples, CLASSES, generator=rng), labels)


def seconds(work: Callable[[], object], repeats: int = 7) -> float:
    """The shortest time of several runs: the cost on an idle machine."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def parts() -> list[Row]:
    """Each part of an evaluation of one student, its temperature fitted on 5,000 validation examples."""
    tested, valid, unknown = (predictions(MEMBERS, n, n) for n in (EXAMPLES, 5_000, 26_032))
    teachers, teachers_valid = (predictions(TEACHERS, n, n) for n in (EXAMPLES, 5_000))
    work: dict[str, Callable[[], object]] = {
        "temperature": valid.fit_temperature,
        "scores, standard": tested.scores,
        "scores, calibrated": lambda: tested.scores(1.3),
        "fidelity": lambda: tested.fidelity(teachers.first(MEMBERS)),
        "diversity plot": tested.diversity_bins,
        "reliability diagram": lambda: metrics.reliability(tested.log_probs(), tested.labels),
        "detection, 26,032 unknown": lambda: tested.detect(unknown),
        "DEE curve, 8 teachers": lambda: metrics.dee_curve(teachers, torch.Generator()),
        "calibrated DEE curve, 8 teachers": lambda: metrics.dee_curve(
            teachers, torch.Generator(), teachers_valid
        ),
    }
    rows = [row("part", name, MEMBERS, EXAMPLES, seconds(job, 3)) for name, job in work.items()]
    total = sum(float(r["seconds"]) for r in rows)
    return [*rows, row("part", "all of the above", MEMBERS, EXAMPLES, total)]


def growth() -> list[Row]:
    """`Predictions.scores` at doubling examples, then at doubling members."""
    sizes = [(MEMBERS, n) for n in (10_000, 20_000, 40_000, 80_000)]
    sizes += [(m, EXAMPLES) for m in (4, 8, 16, 32)]
    rows = []
    for index, (members, examples) in enumerate(sizes):
        name = "examples" if index < 4 else "members"
        rows.append(row("growth", name, members, examples, seconds(predictions(members, examples).scores)))
    return rows


def row(kind: str, name: str, members: int, examples: int, elapsed: float) -> Row:
    """One line of the results."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {
        "kind": kind,
        "name": name,
        "members": members,
        "examples": examples,
        "classes": CLASSES,
        "seconds": round(elapsed, 5),
        "peak_mb": peak,
        "threads": torch.get_num_threads(),
        "machine": processor(),
        "torch": torch.__version__,
    }


def show(rows: list[Row]) -> None:
    """Print each row, with its cost per example and member relative to the first of its kind and name."""
    first: dict[str, float] = {}
    for r in rows:
        cost = float(r["seconds"]) / (int(r["members"]) * int(r["examples"]))
        key = f"{r['kind']} {r['name']}"
        ratio = cost / first.setdefault(key, cost)
        size = f"M={r['members']:<3} n={r['examples']:<8,}"
        print(f"{key:<45} {size} {float(r['seconds']):9.4f} s  x{ratio:.2f} per M·n  peak {r['peak_mb']} MB")


def main() -> None:
    """Measure, print, write."""
    predictions(MEMBERS, 1000).scores()  # the first call is slower
    rows = growth() + parts()
    show(rows)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(csv_text(list(rows[0]), (row.values() for row in rows)))


if __name__ == "__main__":
    main()
