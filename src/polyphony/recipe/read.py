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
from polyphony.data.files import there
from polyphony.recipe.schema import TEACHER_TAGS, Recipe
from polyphony.recipe.table import RecipeError

TABLES = ("student", "teachers", "data")  # tables in which a key without a table is looked for
LARGEST, LONGEST = 1 << 16, 2_000  # bytes of a recipe, characters of a line: tomllib takes quadratic time


def read_recipe(source: str | Path, overrides: Sequence[str] = (), *, code: bool = True) -> Recipe:
    """A recipe from a TOML file, or a shipped one by its name.

    Args:
        source: Path or name.
        overrides: Changes such as "student.alpha=0.5".
        code: Whether to import the user's code that the recipe names, to check it.

    Raises:
        RecipeError: One sentence that names the key and the nearest right spelling.

    Examples:
        >>> read_recipe("digits", ["student.alpha=0.5"]).student.alpha
        0.5
    """
    path = find(source)
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        table = parsed(text)
    except ValueError as error:
        raise RecipeError(f"{path.name} is not TOML: {error}") from error
    for override in overrides:
        put(table, override)
    shipped_one = path in shipped().values()
    folder = Path.cwd() if shipped_one else path.absolute().parent  # where the user's modules are
    return check({"name": path.stem, **table}, path.name, folder, code=code)


def find(source: str | Path) -> Path:
    """The file of a recipe: a path that exists, or the name of a shipped recipe."""
    path = Path(source)
    if there(path) and path.is_file():
        return path
    known = shipped()
    if str(source) in known:
        return known[str(source)]
    if there(path):
        raise RecipeError(f"'{source}' is not a file: a recipe is a TOML file")
    hint = suggestion(path.stem, known, "shipped are")
    if path.suffix == ".toml" or path.name != str(source):
        raise RecipeError(f"there is no file '{source}'" + (f"; {hint}" if hint.startswith("did") else ""))
    raise RecipeError(f"there is no recipe '{source}'; {hint}")


def put(table: dict[str, Any], override: str) -> None:
    """Set `a.b=c` in nested tables; c is read as TOML, or else as text."""
    key, equals, text = override.partition("=")
    *parents, last = key.strip().split(".")
    if not equals or not last:
        raise RecipeError(f"a change is key=value, for example student.alpha=0.5, not '{override}'")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise RecipeError(f"{override}: '{parent}' is a value, not a table")
    try:
        found = parsed(f"value = {text}")
        table[last] = found["value"] if len(found) == 1 else text.strip()
    except tomllib.TOMLDecodeError:
        table[last] = text.strip()
    except ValueError as error:
        raise RecipeError(f"{override}: {error}") from error


def parsed(text: str) -> dict[str, Any]:
    """The table of a TOML text; ValueError for one that would take Python's reader too long."""
    if len(text) > LARGEST or any(len(line) > LONGEST for line in text.splitlines()):
        raise ValueError(f"more than {LARGEST:,} characters in all or {LONGEST:,} in a line")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def check(table: dict[str, Any], where: str, folder: Path | None = None, *, code: bool = True) -> Recipe:
    """The recipe of a table; its modules are looked for in the folder first."""
    context = {"folder": str(folder or ""), "code": code}
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
    """An error in plain words, with the nearest right spelling of a wrong key."""
    steps = [step for step in fault["loc"] if isinstance(step, str) and step not in TEACHER_TAGS]
    *parents, key = steps or [""]
    keys, tables = table_at(parents)
    table, place = ".".join(keys), ".".join([*keys, key])
    match fault["type"]:
        case "extra_forbidden":
            known = {name for each in tables for name in each.model_fields}
            others = [name for name in TABLES for each in table_at([name])[1] if key in each.model_fields]
            elsewhere = [] if table else [f"'{name}.{key}'" for name in dict.fromkeys(others)]
            hint = f"did you mean {' or '.join(elsewhere)}?" if elsewhere else suggestion(key, sorted(known))
            return f"{table or 'a recipe'} has no key '{key}'; {hint}"
        case "missing":
            return f"{table or 'the recipe'} needs the key '{key}'"
        case "union_tag_not_found":
            return f"{place} needs the key 'kind': one of {', '.join(kinds_at([*parents, key]))}"
        case "union_tag_invalid":
            kind = fault["ctx"]["tag"]
            return f"{place} knows no kind '{kind}'; {suggestion(kind, kinds_at([*parents, key]))}"
        case "too_short" | "string_too_short":
            return f"{place} must not be empty"
        case "string_pattern_mismatch":
            named = place.removesuffix(".[key]")
            return f"{named} must be a name of letters, digits and + _ . -, not {fault['input']!r}"
    return complaint(place, fault)


def kinds_at(path: Sequence[str]) -> list[str]:
    """The kinds that the table at a path may have."""
    return [kind for table in table_at(path)[1] for kind in kinds_of(table)]


def table_at(path: Sequence[str]) -> tuple[list[str], list[type[Settings]]]:
    """The keys in the path of an error, without kinds; and the types that the table there may have."""
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
    """The tables in a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for inner in get_args(annotation):
        yield from tables_in(inner)


def kinds_of(table: type[Settings]) -> tuple[str, ...]:
    """The kinds that choose a table, if it is one of several."""
    field = table.model_fields.get("kind")
    return get_args(field.annotation) if field else ()
