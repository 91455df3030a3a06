"""Choosing the step size by short trainings."""

from __future__ import annotations

import math

from polyphony.training.optimise import Schedule

SEARCH_STEPS = (1.5 / 255, 3 / 255, 6 / 255, 12 / 255)
SEARCH_SHARE = 1 / 5  # of a student's epochs, for each step
GROWTH = 2.0  # longer trainings prefer larger steps: the result is this times the step that wins


def short_schedule(schedule: Schedule) -> Schedule:
    """The schedule of a short training: a fifth of the epochs and of the warm-up, rounded up.

    A warm-up of one epoch has no effect, so a longer one keeps two epochs or more, but at most half of them.
    """
    epochs = math.ceil(SEARCH_SHARE * schedule.epochs)
    warm_up = max(math.ceil(SEARCH_SHARE * schedule.warm_up), min(schedule.warm_up, 2))
    return schedule.replace(epochs=epochs, warm_up=min(warm_up, epochs // 2))


def search_epochs(schedule: Schedule) -> int:
    """The epochs of all short trainings together, for a student with this schedule."""
    return len(SEARCH_STEPS) * short_schedule(schedule).epochs


def search_name(method: str) -> str:
    """The name of the search for a method's step size, for people."""
    return f"{method}, step size"
