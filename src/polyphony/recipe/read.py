"""Reads a TOML file as a Recipe, or explains its first error in one sentence."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from polyphony._util.settings import Settings, complaint
from polyphony._util.shipped import shipped
from polyphony._util.text import suggestion
from polyphony.data.files import path_exists
from polyphony.recipe.schema import TEACHER_TAGS, Recipe
from polyphony.recipe.table import RecipeError

TABLES = ("student", "teachers", "data")  # tables that an unknown top-level key may belong to
MAX_SIZE, MAX_LINE = 1 << 16, 2_000  # bytes of a recipe, characters of a line: tomllib takes quadratic time


def read_recipe(source: str | Path, overrides: Sequence[str] = (), *, code: bool = True) -> Recipe:
    """Read a recipe from a TOML file, or a shipped recipe by its name.

    Args:
        source: Path or name.
        overrides: Changes such as "student.alpha=0.5".
        code: Whether to import the user's code that the recipe names, to check it.

    Returns:
        The recipe, with all defaults filled in.

    Raises:
        RecipeError: The first problem, in one sentence that names the key and suggests the right spelling.

    Examples:
        >>> read_recipe("digits", ["student.alpha=0.5"]).student.alpha
        0.5
    """
    path = find(source)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_SIZE + 1).decode("utf-8-sig")  # Windows editors begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        table = parse(text)
    except ValueError as error:
        raise RecipeError(f"{path.name} is not TOML: {error}") from error
    for override in overrides:
        apply_override(table, override)
    is_shipped = path in shipped().values()
    folder = Path.cwd() if is_shipped else path.absolute().parent  # where the user's modules are
    return check({"name": path.stem, **table}, path.name, folder, code=code)


def find(source: str | Path) -> Path:
    """The file of a recipe, from a path that exists or the name of a shipped recipe; raises a RecipeError."""
    path = Path(source)
    if path_exists(path) and path.is_file():
        return path
    recipes = shipped()
    if str(source) in recipes:
        return recipes[str(source)]
    if path_exists(path):
        raise RecipeError(f"'{source}' is not a file: a recipe is a TOML file")
    hint = suggestion(path.stem, recipes, "shipped are")
    if path.suffix == ".toml" or path.name != str(source):
        raise RecipeError(f"there is no file '{source}'" + (f"; {hint}" if hint.startswith("did") else ""))
    raise RecipeError(f"there is no recipe '{source}'; {hint}")


def apply_override(table: dict[str, Any], override: str) -> None:
    """Set `a.b=c` in nested tables; c is read as TOML, or as text if it is not TOML."""
    key, equals, text = override.partition("=")
    *parents, last = key.strip().split(".")
    if not equals or not last:
        raise RecipeError(f"a change is key=value, for example student.alpha=0.5, not '{override}'")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise RecipeError(f"{override}: '{parent}' is a value, not a table")
    try:
        values = parse(f"value = {text}")
        table[last] = values["value"] if len(values) == 1 else text.strip()
    except tomllib.TOMLDecodeError:
        table[last] = text.strip()
    except ValueError as error:
        raise RecipeError(f"{override}: {error}") from error


def parse(text: str) -> dict[str, Any]:
    """The table of a TOML text; raises a ValueError if it is not TOML, too long or nested too deeply."""
    if len(text) > MAX_SIZE or any(len(line) > MAX_LINE for line in text.splitlines()):
        raise ValueError(f"more than {MAX_SIZE:,} characters in all or {MAX_LINE:,} in a line")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def check(
    table: dict[str, Any], where: str, folder: Path | None = None, *, code: bool = True, stored: bool = False
) -> Recipe:
    """The recipe of a table; raises a RecipeError that begins with `where`.

    `folder` is the folder that paths and modules are relative to. `code` is as in `read_recipe`. A `stored`
    recipe, of a run folder, may have settings that new recipes may not have.
    """
    context = {"folder": str(folder or ""), "code": code, "stored": stored}
    try:
        text = json.dumps(table, default=str)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or deeply nested tables
        raise RecipeError(f"{where}: a number is too long or a table nested too deeply") from error
    try:
        return Recipe.model_validate_json(text, strict=True, context=context)
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from error
    except ValidationError as error:
        raise RecipeError(f"{where}: {explain(error.errors()[0])}") from None


def explain(fault: ErrorDetails) -> str:
    """An error of pydantic as one sentence; for an unknown key, with a suggestion."""
    steps = [step for step in fault["loc"] if isinstance(step, str) and step not in TEACHER_TAGS]
    *parents, key = steps or [""]
    keys, tables = table_at(parents)
    table, place = ".".join(keys), ".".join([*keys, key])
    match fault["type"]:
        case "extra_forbidden":
            valid = {name for kind in tables for name in kind.model_fields}
            if key in valid:  # of Teachers, but the table has weights
                return f"{table} has no key '{key}', because pretrained teachers are not trained"
            others = [name for name in TABLES for kind in table_at([name])[1] if key in kind.model_fields]
            elsewhere = [] if table else [f"'{name}.{key}'" for name in dict.fromkeys(others)]
            hint = f"did you mean {' or '.join(elsewhere)}?" if elsewhere else suggestion(key, sorted(valid))
            return f"{table or 'a recipe'} has no key '{key}'; {hint}"
        case "missing" if isinstance(fault["loc"][-1], int):
            return f"{place} has too few values"
        case "missing":
            return f"{table or 'the recipe'} needs the key '{key}'"
        case "union_tag_not_found":
            return f"{place} needs the key 'kind': one of {', '.join(kinds_at([*parents, key]))}"
        case "union_tag_invalid":
            kind = fault["ctx"]["tag"]
            return f"{place} has no kind '{kind}'; {suggestion(kind, kinds_at([*parents, key]))}"
        case "too_short" | "string_too_short":
            return f"{place} must not be empty"
        case "string_pattern_mismatch":
            where = place.removesuffix(".[key]")
            return f"{where} must be a name of letters, digits and + _ . -, not {fault['input']!r}"
    return complaint(place, fault)


def kinds_at(path: Sequence[str]) -> list[str]:
    """The values that `kind` may have in the table at a path."""
    return [kind for table in table_at(path)[1] for kind in kinds_of(table)]


def table_at(path: Sequence[str]) -> tuple[list[str], list[type[Settings]]]:
    """From the path of an error: its keys without kinds, and the types that the table there may have."""
    keys: list[str] = []
    tables: list[type[Settings]] = [Recipe]
    for step in path:
        fields = [table.model_fields[step] for table in tables if step in table.model_fields]
        of_kind = [table for table in tables if step in kinds_of(table)]
        if fields:
            tables = list(tables_in(fields[0].annotation))
        if of_kind and not fields:
            tables = of_kind
        else:
            keys.append(step)
    return keys, tables


def tables_in(annotation: Any) -> Iterator[type[Settings]]:
    """The types of tables in a field's annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for inner in get_args(annotation):
        yield from tables_in(inner)


def kinds_of(table: type[Settings]) -> tuple[str, ...]:
    """The values of `kind` that choose this table; empty if it has no kind."""
    field = table.model_fields.get("kind")
    return get_args(field.annotation) if field else ()
