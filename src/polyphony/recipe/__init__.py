"""The typed recipe, read from TOML."""

from polyphony.recipe.forms import Form, FormTable
from polyphony.recipe.methods import Distillation
from polyphony.recipe.networks import NetworkTable
from polyphony.recipe.perturbations import ODSTable, Surroundings
from polyphony.recipe.read import check, read_recipe, shipped
from polyphony.recipe.schema import Data, Recipe, Schedule
from polyphony.recipe.table import RecipeError

__all__ = [
    "Data",
    "Distillation",
    "Form",
    "FormTable",
    "NetworkTable",
    "ODSTable",
    "Recipe",
    "RecipeError",
    "Schedule",
    "Surroundings",
    "check",
    "read_recipe",
    "shipped",
]
