"""The recipes that come with Polyphony. Imports no PyTorch, so that listing them is quick."""

from __future__ import annotations

from pathlib import Path


def shipped() -> dict[str, Path]:
    """The recipes that come with Polyphony, by name."""
    package = Path(__file__).parents[1]
    folders = (package / "recipes", package.parents[1] / "recipes")  # installed, or in the source tree
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def headline(recipe: Path) -> str:
    """What a recipe is about: the comment in its first line."""
    with recipe.open(encoding="utf-8") as file:
        return file.readline().removeprefix("#").strip()
