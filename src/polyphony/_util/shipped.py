"""The recipes that come with Polyphony. PyTorch is not imported here, so that listing them is quick."""

from __future__ import annotations

from pathlib import Path


def shipped() -> dict[str, Path]:
    """Name → file of every recipe that comes with Polyphony."""
    package = Path(__file__).parents[1]
    folders = (package / "recipes", package.parents[1] / "recipes")  # installed, or in the source tree
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def headline(recipe: Path) -> str:
    """The first comment of a recipe, which says what it is about."""
    with recipe.open(encoding="utf-8") as file:
        return file.readline().removeprefix("#").strip()
