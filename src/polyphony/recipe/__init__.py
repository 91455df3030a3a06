"""The typed recipe, read from TOML."""

from polyphony.recipe.parts import PERTURBATIONS, Method, Network, Recipe, Schedule
from polyphony.recipe.read import RecipeError, read_recipe, shipped

__all__ = [
    "PERTURBATIONS",
    "Method",
    "Network",
    "Recipe",
    "RecipeError",
    "Schedule",
    "read_recipe",
    "shipped",
]
