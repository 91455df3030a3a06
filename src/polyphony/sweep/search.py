"""A search: optuna proposes points in rounds; a journal file stores them with their scores."""

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
from polyphony.recipe.points import GREY_LEVELS, PARAMETERS, Point, Swept
from polyphony.runs.store import Spec, spec_key

if TYPE_CHECKING:
    import optuna

STARTUP = 6  # random points before the search uses results
ROUND = "round"  # key in the journal: number of trials at the end of the current round


@dataclass(frozen=True)
class Trial:
    """A point that optuna asked for, and its number in optuna."""

    number: int
    point: Point


def check_search(swept: Swept) -> None:
    """Raise unless optuna is installed and there is a range to search."""
    if find_spec("optuna") is None:
        raise RecipeError(f"a search needs optuna: {extra('sweep')}; or sweep a grid")
    if not swept.varied:
        raise RecipeError("a search needs a range of values, for example 0.5,1 for alpha")
    for name in swept.varied:
        if "match" in swept.values[name]:
            raise RecipeError(f"'match' for {name} is not a number, and a search needs numbers")


@dataclass(frozen=True)
class Search:
    """Tree-structured Parzen estimators between the smallest and the largest value of each parameter.

    What is asked next depends only on the journal and the size of a round, and a round is completed before
    the next begins. So a search that was killed gives the same result as one that was not. The caller must
    hold the lock of the journal's folder.
    """

    swept: Swept
    study: optuna.Study

    def includes(self, point: Point) -> bool:
        return all(
            isinstance(value := getattr(point, name), float) and low <= value <= high
            for name, (low, high) in self.ranges.items()
        )

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """(smallest, largest) value of each parameter that is searched."""
        numbers = {n: [v for v in self.swept.values[n] if isinstance(v, float)] for n in self.swept.varied}
        return {name: (min(values), max(values)) for name, values in numbers.items()}

    def finished(self) -> list[Point]:
        """The points that have an NLL, each once, in the order they were asked for."""
        return self._points([trial for trial in self._trials() if trial.value is not None])

    def diverged(self) -> list[Point]:
        return self._points([t for t in self._trials() if t.state.is_finished() and t.value is None])

    def answered(self) -> int:
        """How many trials have a result, including those that diverged."""
        return sum(trial.state.is_finished() for trial in self._trials())

    def ask(self, count: int) -> list[Trial]:
        """At most `count` points of one round: unanswered ones of the current round, else those of a new one.

        A new round has `count` points, all asked for before any of them has a result.
        """
        trials = self._trials()
        end = self.study.user_attrs.get(ROUND, 0)
        if end <= len(trials) and all(trial.state.is_finished() for trial in trials):
            end = len(trials) + count
            self.study.set_user_attr(ROUND, end)
        for _ in range(end - len(trials)):
            self._next()
        unanswered = [trial for trial in self._trials() if not trial.state.is_finished()]
        return [Trial(trial.number, self.point(trial.params)) for trial in unanswered[:count]]

    def tell(self, trial: Trial, nll: float | None) -> None:
        """Record the NLL of a trial; None for a training that diverged, which the search then avoids."""
        from optuna.trial import TrialState

        if nll is None:
            self.study.tell(trial.number, state=TrialState.PRUNED)
        else:
            self.study.tell(trial.number, nll)

    def point(self, parameters: Mapping[str, Any]) -> Point:
        """The point of optuna's parameters, rounded to three significant digits."""
        fixed = {name: self.swept.values[name][0] for name in PARAMETERS}
        return Point(**fixed | {name: rounded(name, value) for name, value in parameters.items()})

    def _next(self) -> None:
        import optuna
        from optuna.distributions import FloatDistribution

        self.study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=STARTUP, multivariate=True, constant_liar=True, seed=len(self._trials())
        )
        self.study.ask(
            {name: FloatDistribution(*ends, log=name != "alpha") for name, ends in self.ranges.items()}
        )

    def repair(self) -> None:
        """Fail the trials whose parameters a killed process did not write, so that the sampler ignores them.

        A new search begins at the recipe's own point.
        """
        from optuna.trial import TrialState

        for trial in self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            if not self._is_whole(trial):
                self.study.tell(trial.number, state=TrialState.FAIL)
        begun = any(trial.state != TrialState.FAIL for trial in self.study.get_trials(deepcopy=False))
        if not begun and self.includes(self.swept.own):
            self.study.enqueue_trial({name: getattr(self.swept.own, name) for name in self.swept.varied})

    def _is_whole(self, trial: optuna.trial.FrozenTrial) -> bool:
        return trial.params.keys() >= set(self.swept.varied)

    def _points(self, trials: Iterable[optuna.trial.FrozenTrial]) -> list[Point]:
        return list(dict.fromkeys(self.point(trial.params) for trial in trials))

    def _trials(self) -> list[optuna.trial.FrozenTrial]:
        """All trials that have their parameters."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if self._is_whole(trial)]


def open_search(swept: Swept, journal: Path, trained_on: Spec) -> Search:
    """The search in a journal file; trainings with other settings are another study in the same file.

    `trained_on` is what an NLL depends on besides the recipe: the images and the version of the code.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    mend(journal)
    storage, name = JournalStorage(JournalFileBackend(str(journal))), search_key(swept, trained_on)
    search = Search(swept, optuna.create_study(storage=storage, study_name=name, load_if_exists=True))
    search.repair()
    return search


def search_key(swept: Swept, trained_on: Spec) -> str:
    """The hash of everything that the points of a search have in common."""
    recipe = swept.recipe
    fixed = recipe.spec(Recipe.model_fields.keys() - {"name", "methods"} - ROUNDING)
    method = recipe.methods[swept.method].spec(Method.model_fields.keys() - set(PARAMETERS))
    kept = {name: swept.values[name] for name in PARAMETERS if name not in swept.varied}
    return spec_key({"recipe": fixed, "method": method, "kept": kept, "trained_on": trained_on})


def rounded(parameter: str, value: float) -> float:
    """A value to three significant digits; a step size close to whole grey levels is rounded to them."""
    if parameter == "step_size" and (levels := float(f"{GREY_LEVELS * value:.3g}")).is_integer():
        return levels / GREY_LEVELS
    return float(f"{value:.3g}")


def mend(journal: Path) -> None:
    """Remove what a killed process left: half a line at the end, and optuna's lock."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.exists():  # complete lines are not touched, so that a kill here loses nothing
        os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
