"""Choosing the step size by short trainings."""

from __future__ import annotations

import math

from polyphony.training.optimise import Schedule

SEARCH_STEPS = (1.5 / 255, 3 / 255, 6 / 255, 12 / 255, 24 / 255)
SEARCH_SHARE = 1 / len(
    SEARCH_STEPS
)  # of the epochs: all short trainings together cost as much as one student


def short_schedule(schedule: Schedule) -> Schedule:
    """The schedule of a short training: a fifth of the epochs and of the warm-up, rounded up."""
    lengths = {
        "epochs": math.ceil(SEARCH_SHARE * schedule.epochs),
        "warm_up": math.ceil(SEARCH_SHARE * schedule.warm_up),
    }
    return schedule.replace(**lengths)


def search_epochs(schedule: Schedule) -> int:
    """The epochs of all short trainings together, for a student with this schedule."""
    return len(SEARCH_STEPS) * short_schedule(schedule).epochs


def search_name(method: str) -> str:
    """The name of the search for a method's step size, for people."""
    return f"{method}, step size"
