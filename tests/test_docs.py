"""The reference pages of the documentation are complete."""

import importlib.util
import re
from pathlib import Path

import pytest

import polyphony
from polyphony.recipe import Recipe

ROOT = Path(__file__).parents[1]
SCHEMA = Recipe.model_json_schema()


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("docs_hook", ROOT / "tools" / "docs_hook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("table", ["Recipe", *SCHEMA["$defs"]])
def test_every_key_of_a_recipe_has_a_meaning(table):
    properties = (SCHEMA if table == "Recipe" else SCHEMA["$defs"][table])["properties"]
    assert [key for key, value in properties.items() if key != "kind" and "description" not in value] == []


def test_the_page_of_a_recipe_has_a_row_for_every_key(hook):
    page = hook.recipe_keys()
    for table in (SCHEMA, *SCHEMA["$defs"].values()):
        for key in table["properties"].keys() - {"kind"}:
            assert f"| `{key}` | " in page
    assert re.search(r"^\| `alpha` \| number.* \| `0\.9` \| α: ", page, re.MULTILINE)


def test_the_page_of_the_command_line_has_every_verb(hook):
    from polyphony.cli.app import VERBS

    page = hook.verbs()
    for verb in (verb for verbs in VERBS.values() for verb in verbs):
        assert f"polyphony {verb.example.split()[0]}" in page


def test_the_python_reference_has_every_public_name_once():
    text = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: polyphony\.(\w+)$", text, re.MULTILINE)) == sorted(polyphony.__all__)


@pytest.mark.parametrize(
    ("target", "page", "expected"),
    [
        ("../../../recipes/demo.toml", "results/evidence/README.md", "../../project/recipes/demo.toml"),
        ("docs/data.md", "project/CHANGELOG.md", "../data.md"),
        ("reference/run.md", "index.md", "reference/run.md"),
    ],
)
def test_links_work_on_the_site_as_in_the_repository(hook, target, page, expected):
    assert hook.site_path(target, page) == expected
