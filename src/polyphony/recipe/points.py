"""The points of a sweep: values of α, τ and η for one method, and a recipe whose methods are the points."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from polyphony._util.text import suggestion
from polyphony.recipe.methods import Method
from polyphony.recipe.read import check, explain
from polyphony.recipe.schema import Recipe
from polyphony.recipe.table import RecipeError

PARAMETERS = ("alpha", "temperature", "step_size")
GREY_LEVELS = 255
Value = float | str | None  # a step size may be "match" or "search", or None if a method takes no step
Values = dict[str, tuple[Any, ...]]  # by parameter

# The values in the paper's two tables of hyper-parameters, by the student's network.
PAPER: dict[str, Values] = {
    "resnet": {"alpha": (0.8, 0.9, 1.0), "temperature": (2.0, 3.0, 4.0, 5.0)},
    "wide_resnet": {"alpha": (0.9,), "temperature": (1.0, 2.0, 3.0, 4.0, 5.0)},
}


@dataclass(frozen=True)
class Point:
    """One setting of the method."""

    alpha: float
    temperature: float
    step_size: Value

    @property
    def name(self) -> str:
        """The point as the name of a method: "a0.9-t4-s1_255"."""
        step = "" if self.step_size is None else f"-s{text_of(self.step_size, 'step_size').replace('/', '_')}"
        return f"a{text_of(self.alpha)}-t{text_of(self.temperature)}{step}"

    def settings(self) -> dict[str, float | str]:
        """The parameters that are not None, by name."""
        values = {name: getattr(self, name) for name in PARAMETERS}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class SweepPlan:
    """The plan of a sweep: a method of a recipe, and one or more values of each parameter."""

    recipe: Recipe
    method: str
    own: Point  # the method's values in the recipe
    values: Values

    @property
    def varied(self) -> tuple[str, ...]:
        """The parameters that have several values."""
        return tuple(name for name in PARAMETERS if len(self.values[name]) > 1)

    def grid(self) -> list[Point]:
        """All combinations of the values."""
        return [Point(*point) for point in itertools.product(*(self.values[name] for name in PARAMETERS))]

    def derived(self, points: Sequence[Point]) -> Recipe:
        """A recipe with a method for each point, and without extra teachers if no method needs them."""
        method = self.recipe.methods[self.method]
        used = {name for name in PARAMETERS if uses(self.recipe, self.method, name)}
        methods = {
            point.name: method.model_copy(
                update={name: value for name, value in point.settings().items() if name in used}
            )
            for point in points
        }
        changes: dict[str, Any] = {"name": f"{self.recipe.name}-sweep", "methods": methods}
        lists_teachers = self.recipe.teachers.networks or getattr(self.recipe.teachers, "weights", ())
        if not method.source and not lists_teachers:
            changes["teachers"] = self.recipe.teachers.model_copy(update={"extra": 0})
        table = self.recipe.model_copy(update=changes).model_dump(mode="json", exclude_none=True)
        return check(table, changes["name"])


def plan_sweep(recipe: Recipe, method: str | None, texts: Mapping[str, str | None]) -> SweepPlan:
    """The plan of a sweep; `texts` holds values such as "0.5,0.9", or None, for each parameter.

    Without any values, those of the paper are swept. A parameter without values stays as in the recipe.
    Raises a RecipeError if a value is invalid, or if the method does not use a parameter.
    """
    name = choose_method(recipe, method)
    used = [parameter for parameter in PARAMETERS if uses(recipe, name, parameter)]
    swept = {parameter: read_values(parameter, text) for parameter, text in texts.items() if text is not None}
    for parameter in swept:
        if parameter not in used:
            raise RecipeError(
                f"{recipe.name}: the method '{name}' does not use {parameter}; choose another method"
            )
    ignores_labels = recipe.must_ignore_labels(name)
    if ignores_labels and any(alpha < 1 for alpha in swept.get("alpha", ())):
        raise RecipeError(f"{recipe.name}: the method '{name}' needs alpha = 1, because it mixes images")
    if not swept:
        paper = PAPER.get(recipe.student_network.label, PAPER["resnet"])
        swept = {parameter: paper[parameter] for parameter in paper if parameter in used}
        if ignores_labels:
            swept.pop("alpha", None)
    if not swept:
        raise RecipeError(
            f"{recipe.name}: the method '{name}' does not use the paper's α and temperatures;"
            " give values of step_size"
        )
    settings = recipe.distillation(name)
    assert settings is not None, name
    step_size = settings.step_size if "step_size" in used else None
    own = Point(settings.alpha, settings.temperature, step_size)
    values = {parameter: swept.get(parameter, (getattr(own, parameter),)) for parameter in PARAMETERS}
    return SweepPlan(recipe, name, own, values)


def choose_method(recipe: Recipe, name: str | None) -> str:
    """The method of that name (default: the first that takes a step, or the first with teachers).

    Raises a RecipeError if there is none.
    """
    if name is not None and name not in recipe.methods:
        raise RecipeError(f"{recipe.name} has no method '{name}'; {suggestion(name, recipe.methods)}")
    candidates = [name] if name is not None else list(recipe.methods)
    for parameter in ("step_size", "alpha", "temperature"):
        for candidate in candidates:
            if uses(recipe, candidate, parameter):
                return candidate
    who = f"the method '{name}' has no" if name is not None else "no method has an"
    raise RecipeError(f"{recipe.name}: {who} α, temperature or step size to sweep")


def uses(recipe: Recipe, name: str, parameter: str) -> bool:
    """Whether a parameter changes the training of a method."""
    method = recipe.methods[name]
    if method.perturb is None or parameter == "step_size":
        return method.takes_step
    in_perturbation = parameter == "temperature" and any(part.reads_temperature for part in method.perturb)
    return in_perturbation or not recipe.form(name).own_loss


def read_values(parameter: str, text: str) -> tuple[Any, ...]:
    """ "0.5, 0.9" → (0.5, 0.9), without duplicates; raises a RecipeError if a recipe rejects a value."""
    values = []
    for part in map(str.strip, text.split(",")):
        try:
            value = json.loads(part)
        except ValueError:  # a fraction, "match" or "search"
            value = part
        try:
            values.append(getattr(Method.model_validate({parameter: value}), parameter))
        except ValidationError as error:
            raise RecipeError(explain(error.errors()[0])) from None
    return tuple(dict.fromkeys(values))


def text_of(value: Value, parameter: str = "") -> str:
    """A value as people write it: "0.9", "4", and a step of n grey levels as "n/255"; "" for None."""
    if value is None or isinstance(value, str):
        return value or ""
    levels = round(GREY_LEVELS * value) if parameter == "step_size" else 0
    if levels and levels / GREY_LEVELS == value:
        return f"{levels}/{GREY_LEVELS}"
    short = f"{value:.6g}"
    return short if float(short) == value else repr(value)


def toml(value: Any) -> str:
    """A value in TOML, on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {toml(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return text_of(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
