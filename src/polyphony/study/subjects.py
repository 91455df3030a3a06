"""Which students an analysis looks at, and with which step."""

from __future__ import annotations

from polyphony.nn import factors
from polyphony.study.study import Study


def ods_setting(study: Study) -> tuple[float, float]:
    """Step size and temperature of the recipe's first method with ODS, or ConfODS, or of all students."""
    recipe = study.recipe
    for kind in ("ods", "confods"):
        for name, method in recipe.methods.items():
            settings = recipe.distillation(name)
            if method.label == kind and settings:
                done = study.student_stage(name, recipe.seeds[0]).done()
                return float(done["step_size"]), settings.temperature
    step_size = recipe.student.step_size
    return 1 / 255 if step_size == "match" else step_size, recipe.student.temperature


def one_to_one(study: Study) -> list[str]:
    """The methods whose students have a member for each teacher that depends on its own input alone."""
    recipe = study.recipe
    return [
        name
        for name in recipe.methods
        if study.members(name) == recipe.members and not recipe.form(name).mixes_members
    ]


def with_factors(study: Study) -> list[str]:
    """The methods whose students' members differ by rank-one factors."""
    several = [name for name in study.recipe.methods if study.members(name) > 1]
    return [name for name in several if any(True for _ in factors(study.fresh_student(name)))]


def plain_student(study: Study) -> tuple[str, int]:
    """Whose gradients are looked at: of `one_to_one` that of plain distillation, else the first distilled."""
    methods = {name: study.recipe.methods[name] for name in one_to_one(study)}
    distilled = [name for name, method in methods.items() if method.perturb] or list(methods)
    return min(distilled, key=lambda name: methods[name].perturbs), study.recipe.seeds[0]
