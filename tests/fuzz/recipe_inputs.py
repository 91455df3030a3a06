"""Recipes: shipped ones damaged, values replaced by odd ones, and overrides that nobody would type."""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path
from random import Random

from damage import damaged, number, text
from judge import Call, Kind

from polyphony.recipe import Recipe, RecipeError, read_recipe
from polyphony.recipe.read import check, shipped

KEYS = """name members seeds precision threads data data.name data.resolution data.per_class data.augment.pad
teachers teachers.network teachers.network.kind teachers.network.width teachers.network.depth teachers.epochs
teachers.batch teachers.weights teachers.extra student student.form student.alpha student.temperature
student.step_size student.learning_rate student.optimizer student.schedule methods methods.x methods.confods
methods.confods.perturb methods.confods.step_size methods.confods.source"""
MORE = (
    "[" * 1500,
    "{a=" * 500,
    '"1e99999999"',
    '"1/1e99999999"',
    "0x" + "f" * 1500,
    "-0.0",
    "1e-320",
    "[]",
    "{}",
)
MORE += (
    "1979-05-27T07:32:00Z",
    "true",
    '"match"',
    '{kind="python", name="os:system", args={command="false"}}',
    "''",
)
MORE += ('"mixup+ods"', '{kind="mixup", concentration=1e308}', "[[1]]", '["a", 1]', '"""\n\n"""', '"\\ud800"')


def value(random: Random) -> str:
    """What may stand behind an equals sign."""
    if random.random() < 0.5:
        return random.choice(MORE)
    return str(number(random)) if random.random() < 0.6 else text(random)


@cache
def texts() -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in sorted(shipped().values()))


def sane(recipe: Recipe) -> None:
    """What is accepted is accepted again after it was stored."""
    assert check(recipe.model_dump(mode="json", exclude_none=True), "again", code=False) == recipe


def files(random: Random, folder: Path) -> Call:
    recipe = random.choice(texts())
    if random.random() < 0.5:
        content = damaged(random, recipe.encode())
    else:
        lines = [i for i, line in enumerate(recipe.splitlines()) if "=" in line]
        chosen = set(random.sample(lines, min(len(lines), random.choice((1, 1, 2)))))
        changed = [
            re.sub(r"=.*", lambda _: f"= {value(random)}", line) if i in chosen else line
            for i, line in enumerate(recipe.splitlines())
        ]
        content = "\n".join(changed).encode("utf-8", "replace")
    (folder / "x.toml").write_bytes(content)
    return lambda: sane(read_recipe(folder / "x.toml", code=False))


def overrides(random: Random, folder: Path) -> Call:
    keys = [
        random.choice(KEYS.split()) if random.random() < 0.85 else text(random)
        for _ in range(random.choice((1, 1, 3)))
    ]
    given = [f"{key}={value(random)}" if random.random() < 0.97 else key for key in keys]
    return lambda: sane(read_recipe("digits", given, code=False))


def names(random: Random, folder: Path) -> Call:
    return partial(read_recipe, text(random))


KINDS = tuple(
    Kind(name, make, (RecipeError,))
    for name, make in {"recipes": files, "--set": overrides, "names of recipes": names}.items()
)
