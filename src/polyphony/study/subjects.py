"""Which students an analysis looks at, and with which step."""

from __future__ import annotations

from polyphony.ensembles import MIMO, Ensemble
from polyphony.nn import factors
from polyphony.study.plan import Study


def ods_setting(study: Study) -> tuple[float, float]:
    """Step size and temperature of the recipe's first method with ODS, or ConfODS, or of all students."""
    recipe = study.recipe
    for kind in ("ods", "confods"):
        for name, method in recipe.methods.items():
            settings = recipe.distillation(name)
            if method.perturb == kind and settings:
                done = study.student_stage(name, recipe.seeds[0]).done()
                return float(done["step_size"]), settings.temperature
    step_size = recipe.student.step_size
    return 1 / 255 if step_size == "match" else step_size, recipe.student.temperature


def first_students(study: Study) -> dict[str, Ensemble]:
    """Every method's student of the first seed."""
    return {name: study.load_student(name, study.recipe.seeds[0]) for name in study.recipe.methods}


def one_to_one(study: Study) -> list[str]:
    """The methods whose students have a member for each teacher that depends on its own input alone."""
    members, found = study.recipe.members, first_students(study)
    return [name for name, each in found.items() if each.members == members and not isinstance(each, MIMO)]


def with_factors(study: Study) -> list[str]:
    """The methods whose students' members differ by rank-one factors."""
    found = first_students(study)
    return [name for name, each in found.items() if each.members > 1 and list(factors(each))]


def plain_student(study: Study) -> tuple[str, int]:
    """Whose gradients are looked at: of `one_to_one` that of plain distillation, else the first distilled."""
    methods = {name: study.recipe.methods[name].perturb for name in one_to_one(study)}
    order = sorted(methods, key=lambda name: (methods[name] != "clean", methods[name] is None))
    return order[0], study.recipe.seeds[0]
