"""The typed recipe, read from TOML."""

from polyphony.recipe.forms import Form
from polyphony.recipe.methods import Distillation, Surroundings
from polyphony.recipe.networks import Network
from polyphony.recipe.parts import Data, Recipe, Schedule
from polyphony.recipe.read import RecipeError, check, read_recipe, shipped

__all__ = [
    "Data",
    "Distillation",
    "Form",
    "Network",
    "Recipe",
    "RecipeError",
    "Schedule",
    "Surroundings",
    "check",
    "read_recipe",
    "shipped",
]
