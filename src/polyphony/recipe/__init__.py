"""The typed recipe, read from TOML."""

from polyphony.recipe.parts import Data, Distillation, Network, Recipe, Schedule
from polyphony.recipe.read import RecipeError, check, read_recipe, shipped

__all__ = [
    "Data",
    "Distillation",
    "Network",
    "Recipe",
    "RecipeError",
    "Schedule",
    "check",
    "read_recipe",
    "shipped",
]
