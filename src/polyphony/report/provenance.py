"""Where the numbers come from: data, training times, reused trainings, versions, machine, recipe."""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Any

from polyphony._util.text import counted, duration
from polyphony.data.load import VERDICTS
from polyphony.runs.run import Run
from polyphony.runs.store import flat

Lines = list[tuple[str, str]]  # name and value


def provenance(run: Run) -> dict[str, Lines]:
    """Names and values by group, for the end of the page; empty groups are left out."""
    groups = {
        "Data": _data(run.facts.data),
        "Time": _times(run),
        "Trainings reused from other runs": _adopted(run),
        "Versions": _lines(run.facts.versions),
        "Machine": _lines(run.facts.machine),
        "Recipe": _lines(flat(run.facts.recipe)),
    }
    return {title: lines for title, lines in groups.items() if lines}


def _data(data: dict[str, Any]) -> Lines:
    origin = str(data.get("origin", "unknown"))
    fingerprints = [(f"fingerprint, {key}", str(value)) for key, value in data.items() if key != "origin"]
    words = f"{origin}: {VERDICTS[origin]}" if origin in VERDICTS else origin
    return [("origin", words), *fingerprints] if data else []


def _times(run: Run) -> Lines:
    rows, total = [], 0.0
    for model, seconds in run.times().items():
        if seconds:
            mean = f", {duration(fmean(seconds))} each" if len(seconds) > 1 else ""
            rows.append((model, f"{duration(sum(seconds))} for {counted(len(seconds), 'training')}{mean}"))
            total += sum(seconds)
    return [*rows, ("all trainings", f"{duration(total)}, one after the other")] if rows else []


def _adopted(run: Run) -> Lines:
    sources = Counter(name for model in run.trained for name in run.adopted(model))
    total = sum(len(run.trainings[model]) for model in run.trained)
    rows = [(f"from {name}", str(count)) for name, count in sorted(sources.items())]
    return [("together", f"{sources.total()} of {total}"), *rows] if rows else []


def _lines(values: dict[str, Any]) -> Lines:
    lists = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    return [(name, ", ".join(map(str, items))) for name, items in lists.items()]


def one_line(run: Run) -> str:
    """The line under the title: the data, and the numbers of teachers, methods and seeds."""
    teachers = counted(run.members, "teacher")
    extra = run.recipe.teachers.extra
    seeds = counted(len(run.scored(run.methods[0])), "seed")
    more = f" (and {extra} for comparison)" if extra else ""
    methods = counted(len(run.methods), "method")
    return f"{run.recipe.data.label}: {teachers}{more}, {methods} of training the student, {seeds} each."
