"""Hook of mkdocs: writes tables from the code, and makes links work in the repository and on the site.

In a page, the line `<!-- recipe keys -->` is replaced by the keys of a recipe, and `<!-- verbs -->` by the
command line. Files outside docs/ that pages link to are below `project/` of the site.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import polyphony

ROOT = Path(__file__).parents[1]
OUTSIDE = "project"  # where files outside docs/ are on the site
LINKED = ("*.md", "LICENSE", "CITATION.cff", "benchmarks/*.md", "recipes/*.toml", "examples/*.py")
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
OBJECT = re.compile(r"^::: polyphony\.(\w+)$", re.MULTILINE)
Schema = dict[str, Any]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that pages link to."""
    for path in [path for pattern in LINKED for path in ROOT.glob(pattern)]:
        address = f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}"
        files.append(File.generated(config, address, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Insert the tables of a page, and rewrite links from docs/ to files outside and back."""
    for mark, write in TABLES.items():
        if mark in markdown:
            markdown = markdown.replace(mark, write())
    markdown = OBJECT.sub(lambda name: name[0] + settings_of(name[1]), markdown)
    here = page.file.src_uri
    return LINK.sub(lambda link: f"{link[1]}{site_path(link[2], here)}{link[3]}", markdown)


def site_path(target: str, here: str) -> str:
    """The path on the site, relative to the page, of a link in the repository.

    >>> site_path("../../../recipes/demo.toml", "results/evidence/README.md")
    '../../project/recipes/demo.toml'
    >>> site_path("docs/data.md", "project/CHANGELOG.md")
    '../data.md'
    """
    folder = posixpath.dirname(here)
    outside = here.startswith(f"{OUTSIDE}/")
    repository = folder.removeprefix(OUTSIDE).strip("/") if outside else f"docs/{folder}"
    path = posixpath.normpath(posixpath.join(repository, target))
    on_site = path.removeprefix("docs/") if path.startswith("docs/") else f"{OUTSIDE}/{path}"
    return posixpath.relpath(on_site, folder or ".")


def settings_of(name: str) -> str:
    """Options that let mkdocstrings list the fields of a public class of settings as its arguments."""
    fields = [field for field in getattr(getattr(polyphony, name), "model_fields", ()) if field != "kind"]
    options = f"{{merge_init_into_class: false, members: {json.dumps(fields)}, members_order: source}}"
    return f"\n    options: {options}" if fields and name != "Recipe" else ""  # a recipe has its own page


def verbs() -> str:
    """The command line: every verb with its arguments and options."""
    from polyphony.cli.app import app

    text = app.generate_docs("markdown", heading_level=1)
    return text[text.index("**Start**") :]  # after a second table of contents


def recipe_keys() -> str:
    """A recipe's keys: a section for each place that holds a table, a row for each key."""
    from polyphony.recipe import Recipe

    schema = Recipe.model_json_schema()
    lines = ["## Top level", *keys_table(schema)]
    for tables, paths in places(schema).items():
        lines += [f"## {', '.join(f'`{path}`' for path in paths)}", ""]
        for name in tables:
            table = schema["$defs"][name]
            lines += [heading(table)] if len(tables) > 1 else []
            lines += [table.get("description", ""), *keys_table(table), ""]
    return "\n".join(lines)


def places(schema: Schema) -> dict[tuple[str, ...], list[str]]:
    """Names of the tables that a key may hold → the paths of the keys that may hold them."""
    paths_of: dict[tuple[str, ...], list[str]] = {}
    queue = [("", schema)]
    while queue:
        parent, table = queue.pop(0)
        for key, value in table.get("properties", {}).items():
            path = f"{parent}.{key}".strip(".") + (".NAME" if "patternProperties" in value else "")
            if tables := tuple(dict.fromkeys(references(value))):
                if tables not in paths_of:
                    queue += [(path, schema["$defs"][name]) for name in tables]
                paths_of.setdefault(tables, []).append(path)
    return {tables: list(dict.fromkeys(paths)) for tables, paths in paths_of.items()}


def references(value: Any) -> Iterator[str]:
    """The names of the tables that a part of a schema mentions."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        parts = [part for key, part in value.items() if key not in ("discriminator", "default")]
    else:
        parts = value if isinstance(value, list) else []
    for part in parts:
        yield from references(part)


def heading(table: Schema) -> str:
    """The heading of a table, where a key may hold one of several."""
    kind = table["properties"].get("kind")
    return f"### `kind` = {type_words(kind)}\n" if kind else f"### {table['title']}\n"


def keys_table(table: Schema) -> Iterator[str]:
    """A Markdown table of a table's keys: type, default, meaning."""
    keys = {key: value for key, value in table["properties"].items() if key != "kind"}
    if not keys:
        return
    yield from ("", "| key | type | default | meaning |", "|---|---|---|---|")
    for key, value in keys.items():
        default = "" if value.get("default") is None else f"`{toml(value['default'])}`"
        default = "required" if key in table.get("required", ()) else default
        yield f"| `{key}` | {type_words(value)} | {default} | {value.get('description', '')} |"
    yield ""


def toml(value: Any) -> str:
    """A default value as written in a recipe."""
    if isinstance(value, dict):
        pairs = (f"{key} = {toml(each)}" for key, each in value.items() if each is not None)
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def type_words(value: Schema) -> str:
    """The type of a key in words."""
    if options := value.get("anyOf") or value.get("oneOf"):
        return " or ".join(dict.fromkeys(words for each in options if (words := type_words(each))))
    if "$ref" in value or value.get("type") == "object":
        return "table"
    if choices := value.get("enum", [value["const"]] if "const" in value else []):
        return ", ".join(f"`{toml(each)}`" for each in choices)
    match value.get("type"):
        case "array":
            return f"list: {type_words(value.get('items', {'type': 'number'}))}"
        case "integer" | "number":
            return f"{value['type']} {bounds(value)}".strip()
        case "boolean":
            return "true or false"
    return {"null": "", "string": "text"}.get(str(value.get("type")), "any")


def bounds(value: Schema) -> str:
    """The range of a number in words, without bounds of a million or more."""
    limits = {
        "above": "exclusiveMinimum",
        "at least": "minimum",
        "below": "exclusiveMaximum",
        "at most": "maximum",
    }
    small = {words: value[key] for words, key in limits.items() if abs(value.get(key, 1e9)) < 1e6}
    return ", ".join(f"{words} {limit:g}" for words, limit in small.items())


TABLES = {"<!-- recipe keys -->": recipe_keys, "<!-- verbs -->": verbs}
