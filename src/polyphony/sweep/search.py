"""A search: optuna proposes points in rounds; a journal file stores the points and their NLLs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyphony._util.text import extra
from polyphony.recipe import ROUNDING, Recipe, RecipeError
from polyphony.recipe.methods import Method
from polyphony.recipe.points import GREY_LEVELS, PARAMETERS, Point, SweepPlan
from polyphony.runs.store import Spec, spec_key

if TYPE_CHECKING:
    import optuna

STARTUP = 6  # trials with random points before optuna uses results
ROUND = "round"  # key in the journal; its value is the number of trials at the end of the current round


@dataclass(frozen=True)
class Trial:
    """A point that optuna proposed, and the number of the trial in optuna."""

    number: int
    point: Point


def check_search(plan: SweepPlan) -> None:
    """Raise a RecipeError unless optuna is installed and at least one parameter has a range of numbers."""
    if find_spec("optuna") is None:
        raise RecipeError(f"a search needs optuna: {extra('sweep')}; or sweep a grid")
    if not plan.varied:
        raise RecipeError("a search needs a range of values, for example 0.5,1 for alpha")
    for name in plan.varied:
        for value in plan.values[name]:
            if isinstance(value, str):
                raise RecipeError(f"'{value}' for {name} is not a number, and a search needs numbers")


@dataclass(frozen=True)
class Search:
    """A search by tree-structured Parzen estimators between the smallest and largest value of each parameter.

    The next points depend only on the journal and on the size of a round, and a round is completed before the
    next begins. So a killed search that continues gives the same result as one without interruption. The
    caller must hold the lock of the journal's folder.
    """

    plan: SweepPlan
    study: optuna.Study

    def includes(self, point: Point) -> bool:
        """Whether a point lies in all ranges."""
        return all(
            isinstance(value := getattr(point, name), float) and low <= value <= high
            for name, (low, high) in self.ranges.items()
        )

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """(smallest, largest) value of each parameter that is searched."""
        numbers = {n: [v for v in self.plan.values[n] if isinstance(v, float)] for n in self.plan.varied}
        return {name: (min(values), max(values)) for name, values in numbers.items()}

    def finished(self) -> list[Point]:
        """The points that have an NLL, without duplicates, in the order of their trials."""
        return self._points([trial for trial in self._trials() if trial.value is not None])

    def diverged(self) -> list[Point]:
        """The points whose training diverged, in the same order."""
        return self._points([t for t in self._trials() if t.state.is_finished() and t.value is None])

    def completed(self) -> int:
        """How many trials have a result, including those that diverged."""
        return sum(trial.state.is_finished() for trial in self._trials())

    def ask(self, count: int) -> list[Trial]:
        """At most `count` trials without a result, all of the same round.

        If the current round is complete, a new round of `count` trials begins. Optuna proposes all points of
        a round before any of them has a result.
        """
        trials = self._trials()
        end = self.study.user_attrs.get(ROUND, 0)
        if end <= len(trials) and all(trial.state.is_finished() for trial in trials):
            end = len(trials) + count
            self.study.set_user_attr(ROUND, end)
        for _ in range(end - len(trials)):
            self._propose()
        unfinished = [trial for trial in self._trials() if not trial.state.is_finished()]
        return [Trial(trial.number, self.point(trial.params)) for trial in unfinished[:count]]

    def tell(self, trial: Trial, nll: float | None) -> None:
        """Record the NLL of a trial, or None for a training that diverged; the search avoids such points."""
        from optuna.trial import TrialState

        if nll is None:
            self.study.tell(trial.number, state=TrialState.PRUNED)
        else:
            self.study.tell(trial.number, nll)

    def point(self, parameters: Mapping[str, Any]) -> Point:
        """The point of optuna's parameters, rounded to three significant digits."""
        fixed = {name: self.plan.values[name][0] for name in PARAMETERS}
        return Point(**fixed | {name: rounded(name, value) for name, value in parameters.items()})

    def _propose(self) -> None:
        """Add a trial to the journal."""
        import optuna
        from optuna.distributions import FloatDistribution

        self.study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=STARTUP, multivariate=True, constant_liar=True, seed=len(self._trials())
        )
        self.study.ask(
            {name: FloatDistribution(*limits, log=name != "alpha") for name, limits in self.ranges.items()}
        )

    def repair(self) -> None:
        """Mark trials without parameters, which a killed process leaves, as failed: the sampler ignores them.

        The first point of a new search is the recipe's own.
        """
        from optuna.trial import TrialState

        for trial in self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            if not self._has_parameters(trial):
                self.study.tell(trial.number, state=TrialState.FAIL)
        trials = self.study.get_trials(deepcopy=False)
        is_new = all(trial.state == TrialState.FAIL for trial in trials)
        if is_new and self.includes(self.plan.own):
            self.study.enqueue_trial({name: getattr(self.plan.own, name) for name in self.plan.varied})

    def _has_parameters(self, trial: optuna.trial.FrozenTrial) -> bool:
        return trial.params.keys() >= set(self.plan.varied)

    def _points(self, trials: Iterable[optuna.trial.FrozenTrial]) -> list[Point]:
        return list(dict.fromkeys(self.point(trial.params) for trial in trials))

    def _trials(self) -> list[optuna.trial.FrozenTrial]:
        """All trials that have their parameters."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if self._has_parameters(trial)]


def open_search(plan: SweepPlan, journal: Path, trained_on: Spec) -> Search:
    """The search with these settings in a journal file, which can hold several searches.

    `trained_on` holds what an NLL depends on besides the recipe: the images and the version of the code.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    repair_journal(journal)
    storage, name = JournalStorage(JournalFileBackend(str(journal))), search_key(plan, trained_on)
    search = Search(plan, optuna.create_study(storage=storage, study_name=name, load_if_exists=True))
    search.repair()
    return search


def search_key(plan: SweepPlan, trained_on: Spec) -> str:
    """The hash of everything that the points of a search have in common."""
    recipe = plan.recipe
    fixed = recipe.spec(Recipe.model_fields.keys() - {"name", "methods"} - ROUNDING)
    method = recipe.methods[plan.method].spec(Method.model_fields.keys() - set(PARAMETERS))
    constant = {name: plan.values[name] for name in PARAMETERS if name not in plan.varied}
    return spec_key({"recipe": fixed, "method": method, "kept": constant, "trained_on": trained_on})


def rounded(parameter: str, value: float) -> float:
    """A value with three significant digits; a step size close to whole grey levels is rounded to them."""
    if parameter == "step_size" and (levels := float(f"{GREY_LEVELS * value:.3g}")).is_integer():
        return levels / GREY_LEVELS
    return float(f"{value:.3g}")


def repair_journal(journal: Path) -> None:
    """Remove what a killed process leaves: an incomplete last line, and optuna's lock."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.exists():  # complete lines stay, so that a kill here loses nothing
        os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
