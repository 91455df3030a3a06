from __future__ import annotations

import re

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import nn

from polyphony.ensembles import DeepEnsemble
from polyphony.recipe import Distillation, Recipe, RecipeError, read_recipe
from polyphony.recipe.perturbations import Perturb
from polyphony.recipe.points import PAPER, Point, plan_sweep, read_values, text_of, uses
from polyphony.recipe.read import kinds_of, tables_in
from polyphony.recipe.table import StepSetting
from polyphony.report import paper

ALPHAS = st.floats(0, 1)
FOR_ONE_NETWORK = sorted(
    {kind for table in tables_in(Perturb) for kind in kinds_of(table)} - {"diversify", "python"}
)
ABOVE_ZERO = st.floats(0, 1e6, exclude_min=True)
STEPS = st.floats(0, 1, exclude_min=True)


@pytest.fixture(scope="module")
def digits() -> Recipe:
    return read_recipe("digits", ["student.temperature=4", "methods.kd-confods.perturb=confods"])


@pytest.mark.parametrize("form", ["batch_ensemble", "dirichlet", "proxy_dirichlet", "dlf", "latent_be"])
def test_a_sweep_sets_only_what_the_method_uses(form):
    recipe = read_recipe("digits", ["methods={a={perturb='ods', form='" + form + "'}}"])
    sweep = plan_sweep(recipe, "a", {"step_size": "1/255,2/255"})
    methods = sweep.derived(sweep.grid()).methods
    assert [method.step_size for method in methods.values()] == [1 / 255, 2 / 255]
    alpha = None if form in ("dirichlet", "proxy_dirichlet", "dlf") else recipe.student.alpha
    assert {method.alpha for method in methods.values()} == {alpha}


# Names and words


@given(ALPHAS, ABOVE_ZERO, STEPS | st.just("match") | st.none())
@example(0.9, 4.0, 1 / 255)
@example(1.0, 1e5, 1e-7)
def test_a_points_name_is_a_valid_method_name_and_exact(alpha, temperature, step_size):
    name = Point(alpha, temperature, step_size).name
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9+_.-]*", name)
    parts = re.fullmatch(r"a(.+?)-t(.+?)(?:-s([^s]+|match))?", name)
    assert parts
    assert (float(parts[1]), float(parts[2])) == (alpha, temperature)
    assert (
        TypeAdapter(StepSetting).validate_python(parts[3].replace("_", "/")) if parts[3] else None
    ) == step_size


@pytest.mark.parametrize(
    ("value", "text"),
    [(1 / 255, "1/255"), (24 / 255, "24/255"), (0.01, "0.01"), (0.1234567891, "0.1234567891")],
)
def test_a_step_size_of_whole_grey_levels_is_a_fraction(value, text):
    assert text_of(value, "step_size") == text


def test_the_name_is_short_for_usual_values():
    assert Point(0.9, 4.0, 1 / 255).name == "a0.9-t4-s1_255"
    assert Point(1.0, 2.5, None).name == "a1-t2.5"


# What is swept


def test_without_values_the_grid_is_the_papers(digits):
    for experiment, kind in (("cifar10-resnet32-be4", "resnet"), ("cifar100-wrn28x10-be4", "wide_resnet")):
        cells = [cell for cell in paper.tuning() if cell.experiment == experiment]
        wanted = {(cell.alpha, cell.temperature) for cell in cells}
        values = PAPER[kind]
        assert {(a, t) for a in values["alpha"] for t in values["temperature"]} == wanted
    points = plan_sweep(digits, None, {}).grid()
    assert {(point.alpha, point.temperature) for point in points} == {
        (cell.alpha, cell.temperature) for cell in paper.tuning() if cell.experiment == "cifar10-resnet32-be4"
    }
    assert {point.step_size for point in points} == {72 / 255}


def test_parameters_without_values_stay_as_in_the_recipe(digits):
    swept = plan_sweep(digits, "kd-ods", {"step_size": "1/255, 2/255"})
    assert swept.grid() == [Point(0.9, 4.0, 1 / 255), Point(0.9, 4.0, 2 / 255)]
    assert swept.own == Point(0.9, 4.0, 24 / 255)
    assert swept.varied == ("step_size",)


def test_a_method_with_settings_of_its_own_keeps_them():
    recipe = read_recipe("digits", ["methods={a={perturb='ods', alpha=0.3, step_size='match'}}"])
    assert plan_sweep(recipe, None, {"temperature": "1,2"}).grid() == [
        Point(0.3, 1.0, "match"),
        Point(0.3, 2.0, "match"),
    ]


def test_the_first_method_that_takes_a_step_is_swept_unless_one_is_named(digits):
    assert plan_sweep(digits, None, {}).method == "kd-gaussian"
    assert plan_sweep(digits, "kd", {}).method == "kd"
    clean = read_recipe("digits", ["methods={scratch={}, kd={perturb='clean'}}"])
    assert plan_sweep(clean, None, {}).method == "kd"
    assert {point.step_size for point in plan_sweep(clean, None, {}).grid()} == {None}


def test_the_derived_recipe_differs_only_in_methods_name_and_extra_teachers(digits):
    swept = plan_sweep(digits, "kd-confods", {"alpha": "0.5,1", "step_size": "3/255"})
    derived = swept.derived(swept.grid())
    assert list(derived.methods) == ["a0.5-t4-s3_255", "a1-t4-s3_255"]
    settings = derived.distillation("a0.5-t4-s3_255")
    assert settings is not None
    assert [each.kind for each in settings.perturb] == ["confods"]
    assert (settings.alpha, settings.temperature, settings.step_size) == (0.5, 4.0, 3 / 255)
    assert derived.name == "digits-sweep"
    assert derived.teachers == digits.teachers.model_copy(update={"extra": 0})
    same = {"name", "methods", "teachers"}
    assert derived.model_dump(exclude=same) == digits.model_dump(exclude=same)


def test_a_method_that_needs_an_extra_teacher_keeps_it():
    recipe = read_recipe("digits", ["methods={far={perturb='ods', source='extra'}}"])
    swept = plan_sweep(recipe, None, {})
    assert swept.derived(swept.grid()).teachers.extra == 4


def test_values_are_read_as_in_a_recipe_without_duplicates():
    assert read_values("step_size", "1/255,0.5, match ,2/510") == (1 / 255, 0.5, "match")
    assert read_values("alpha", "0,1.0,1") == (0.0, 1.0)


def test_only_parameters_that_a_form_uses_are_swept():
    forms = "methods={end2={form='dirichlet', perturb='clean'}, far={form='dirichlet', perturb='ods'}}"
    recipe = read_recipe("digits", [forms])
    swept = plan_sweep(recipe, None, {})
    assert (swept.method, swept.varied) == ("far", ("temperature",))  # it has no α: it never sees labels
    with pytest.raises(RecipeError, match="the method 'far' does not use alpha"):
        plan_sweep(recipe, "far", {"alpha": "0.5,1"})
    with pytest.raises(RecipeError, match="the method 'end2' has no α, temperature or step size"):
        plan_sweep(recipe, "end2", {})
    both = read_recipe(
        "digits", ["methods={both={form='hydra', perturb='mixup+ods'}, mix={perturb='mixup'}}"]
    )
    assert plan_sweep(both, None, {"step_size": "1/255,2/255"}).method == "both"
    with pytest.raises(RecipeError, match="the method 'mix' does not use step_size"):
        plan_sweep(both, "mix", {"step_size": "1/255"})


@pytest.mark.parametrize("form", ["dirichlet", "proxy_dirichlet"])
@pytest.mark.parametrize("perturb", [*FOR_ONE_NETWORK, "gaussian+ods", "mixup+gaussian"])
def test_a_temperature_that_only_a_perturbation_uses_is_swept_if_images_depend_on_it(form, perturb):
    rng = torch.Generator().manual_seed(0)
    x, y = torch.rand(6, 1, 4, 4, generator=rng), torch.arange(6) % 3
    teachers = DeepEnsemble([linear(rng) for _ in range(2)])
    settings = Distillation(perturb=perturb, alpha=1, temperature=1, step_size=0.1)
    step = settings.perturbation(0.1)
    cold, hot = (step(x, y, teachers, None, t, torch.Generator().manual_seed(1)) for t in (0.5, 8.0))
    recipe = read_recipe("digits", [f"methods={{far={{form='{form}', perturb='{perturb}'}}}}"])
    assert uses(recipe, "far", "temperature") == (not torch.equal(cold, hot))


def linear(rng: torch.Generator) -> nn.Module:
    """A classifier of 4 × 4 pixels into three classes."""
    layer = nn.Linear(16, 3)
    nn.init.normal_(layer.weight, generator=rng)
    return nn.Sequential(nn.Flatten(), layer)


# What is refused


def test_a_method_that_does_not_use_the_papers_parameters_needs_step_sizes():
    recipe = read_recipe("digits", ["methods={far={form='dirichlet', perturb='gaussian'}}"])
    with pytest.raises(RecipeError, match="the method 'far' does not use temperature"):
        plan_sweep(recipe, "far", {"temperature": "1,4"})
    with pytest.raises(RecipeError, match="give values of step_size"):
        plan_sweep(recipe, "far", {})
    assert plan_sweep(recipe, None, {"step_size": "1/255,2/255"}).varied == ("step_size",)


@pytest.mark.parametrize(
    ("method", "texts", "sentence"),
    [
        (None, {"alpha": "2"}, "alpha must be less than or equal to 1, not 2"),
        (None, {"alpha": "0.5,,1"}, "alpha must be a valid number"),
        (None, {"alpha": "nan"}, "alpha must be a valid number, not 'nan'"),
        (None, {"temperature": "0"}, "temperature must be greater than 0, not 0"),
        (None, {"step_size": "x"}, "step_size must be a number or a fraction above 0"),
        (None, {"step_size": "-1/255"}, "step_size must be a number or a fraction above 0"),
        ("kdods", {}, "digits has no method 'kdods'; did you mean 'kd-ods'?"),
        ("kd", {"step_size": "1/255"}, "the method 'kd' does not use step_size"),
        ("scratch", {"alpha": "1"}, "the method 'scratch' has no α, temperature or step size to sweep"),
    ],
)
def test_impossible_sweeps_are_one_sentence(digits, method, texts, sentence):
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        plan_sweep(digits, method, texts)


def test_a_method_that_must_ignore_labels_keeps_its_alpha():
    recipe = read_recipe("digits", ["methods={mixed={perturb='mixup', passes='one', alpha=1.0}}"])
    planned = plan_sweep(recipe, None, {})
    assert planned.varied == ("temperature",)
    assert {method.alpha for method in planned.derived(planned.grid()).methods.values()} == {1.0}
    with pytest.raises(RecipeError, match="the method 'mixed' needs alpha = 1, because it mixes images"):
        plan_sweep(recipe, None, {"alpha": "0.9,1"})


def test_a_recipe_of_labels_alone_has_nothing_to_sweep():
    recipe = read_recipe("digits", ["methods={scratch={}}"])
    with pytest.raises(RecipeError, match="no method has an α, temperature or step size to sweep"):
        plan_sweep(recipe, None, {})
