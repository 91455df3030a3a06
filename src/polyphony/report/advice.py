"""Advice on how to distil, from what the teachers predict on training images and from the training logs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from polyphony._util.text import listed
from polyphony.metrics import Predictions
from polyphony.metrics.temperature import TEMPERATURE_BOUNDS
from polyphony.report.verdict import percent
from polyphony.runs.run import Run
from polyphony.runs.scores import TEACHERS

LITTLE, ENOUGH, MUCH = 0.25, 0.5, 2.0  # of the teachers' disagreement on validation images
WARM = 4.0  # the temperature that is suggested
LEARNT = 0.95  # of the teachers' accuracy on training images


def advice(run: Run) -> list[str]:
    """Sentences that say what to try next."""
    return [*visible_disagreement(run), *undertrained(run), *uncalibrated(run)]


def visible_disagreement(run: Run) -> list[str]:
    """How much of the teachers' disagreement training images reveal, clean and perturbed."""
    clean, held = (run.pooled(TEACHERS, split) for split in ("train", "valid"))
    if clean is None or held is None or run.members == 1 or not held.mean_kld():
        return []
    warmth = run.recipe.student.temperature
    share = share_shown(clean, held, warmth)
    said = (
        f"At temperature {warmth:g} the teachers disagree on training images {percent(share)} as much as on"
        " validation images"
    )
    if share >= LITTLE:
        sees = "most of it: try that first" if share >= ENOUGH else "part of it"
        return [f"{said}. Plain distillation sees {sees}."]
    said += ". Plain distillation sees little of it."
    return [said, *_perturbed(run, held), *_warm(clean, held, warmth)]


def _perturbed(run: Run, held: Predictions) -> Iterator[str]:
    """What each perturbation reveals, at the temperature of its methods."""
    for names, seen in run.moved:
        warmths = {name: float(run.recipe.setting(name, "temperature")) for name in names}
        for warmth in dict.fromkeys(warmths.values()):
            alike = [name for name in names if warmths[name] == warmth]
            share = share_shown(seen, held, warmth)
            hint = ""
            if share > MUCH:
                hint = ": the step may be too large; try smaller ones on validation images"
            elif share < ENOUGH:
                hint = ": a larger step would reveal more"
            how = f"perturbed as in {listed(alike)} (temperature {warmth:g})"
            yield f"On images {how} it is {percent(share)}{hint}."


def _warm(clean: Predictions, held: Predictions, warmth: float) -> list[str]:
    warm = share_shown(clean, held, WARM)
    if warmth >= WARM or warm < LITTLE:
        return []
    return [
        f"At temperature {WARM:g} it is {percent(warm)} on clean training images. That is cheaper to try;"
        " validation images tell which is better."
    ]


def share_shown(seen: Predictions, held: Predictions, temperature: float) -> float:
    """The teachers' mean-KLD on some images as a share of that on held-out ones, both at a temperature."""
    return _kld(seen, temperature) / _kld(held, temperature)


def _kld(teachers: Predictions, temperature: float) -> float:
    return Predictions(teachers.logits / temperature, teachers.labels).mean_kld()


def undertrained(run: Run) -> list[str]:
    """Which students of plain distillation have learnt their training images less than the teachers."""
    taught = _accuracy(run, TEACHERS)
    shares = {name: _accuracy(run, name) for name in run.methods_with("clean")}
    behind = [f"{name} ({percent(share)})" for name, share in shares.items() if share < LEARNT * taught]
    if not behind:
        return []
    return [
        "After training, these students get fewer training images right than the teachers"
        f" ({percent(taught)}): {listed(behind)}. Train them longer before you compare a perturbation with"
        " them."
    ]


def _accuracy(run: Run, model: str) -> float:
    """The mean training accuracy in the last epoch of a model's trainings; NaN without logs."""
    last = [log[-1].get("acc", math.nan) for log in run.logs(model) if log]
    return statistics.fmean(last) if last else math.nan


def uncalibrated(run: Run) -> list[str]:
    """Which models have a temperature at a bound of the search range, for any seed."""
    ends = [model for (model, _), fitted in run.temperatures.items() if fitted in TEMPERATURE_BOUNDS]
    if not ends:
        return []
    low, high = TEMPERATURE_BOUNDS
    return [
        f"The temperature fitted for {listed(list(dict.fromkeys(ends)))} is at a bound of the search range"
        f" ({low:g} to {high:,.0f}): calibrated scores mean little there."
    ]
