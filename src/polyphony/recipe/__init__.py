"""The typed recipe, read from TOML."""

from polyphony._util.shipped import shipped
from polyphony.recipe.foreign import ForeignTable, NetworkTable
from polyphony.recipe.form_table import Blueprint, FormTable
from polyphony.recipe.forms import Form
from polyphony.recipe.methods import Distillation
from polyphony.recipe.networks import foreign_table
from polyphony.recipe.perturbations import PythonPerturbation
from polyphony.recipe.python import own_code, report_user_errors
from polyphony.recipe.read import check, read_recipe
from polyphony.recipe.schema import ROUNDING, Data, PretrainedTeachers, Recipe
from polyphony.recipe.table import RecipeError
from polyphony.training.optimise import Schedule

__all__ = [
    "ROUNDING",
    "Blueprint",
    "Data",
    "Distillation",
    "ForeignTable",
    "Form",
    "FormTable",
    "NetworkTable",
    "PretrainedTeachers",
    "PythonPerturbation",
    "Recipe",
    "RecipeError",
    "Schedule",
    "check",
    "foreign_table",
    "own_code",
    "read_recipe",
    "report_user_errors",
    "shipped",
]
