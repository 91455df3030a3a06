"""The command line itself: groups, help, recipes, --quiet, --debug, completion."""

import importlib.metadata
import json
import platform
import re
import subprocess
import sys

import pytest

from polyphony import __version__
from polyphony._util.shipped import shipped
from polyphony.cli.app import VERBS, app
from polyphony.recipe import read_recipe

EXAMPLES = [verb.example for verbs in VERBS.values() for verb in verbs]


def test_help_groups_all_verbs(say):
    text = say("--help").out
    positions = [text.index(f"─ {title} ─") for title in VERBS]
    assert positions == sorted(positions)
    for verb in (example.split()[0] for example in EXAMPLES):
        assert re.search(rf"^│ {verb} ", text, re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_help_of_a_verb_has_an_example_and_names_its_arguments(say, example):
    text = " ".join(say(example.split()[0], "--help").out.split())
    assert f"Example: polyphony {example}" in text
    assert "ARGS" not in text
    assert "--quiet" in text


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_a_command(example):
    app.meta.parse_args(example.split(), exit_on_error=False, print_error=False)
    command, _, ignored = app.parse_args(example.split(), exit_on_error=False, print_error=False)
    assert command.__name__ in (example.split()[0], "check")
    assert not ignored


def test_version_names_python_and_torch(say):
    python, torch = platform.python_version(), importlib.metadata.version("torch")
    assert say("--version") == (0, f"polyphony {__version__} (Python {python}, torch {torch})\n", "")


def test_recipes_lists_every_shipped_recipe_with_its_first_line(say):
    text = " ".join(say("recipes").out.split())
    for name, path in shipped().items():
        first = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert f"{name} " in text
        assert first[:20] in text


def test_show_as_json_is_one_object(say, tiny_digits):
    settings = [part for override in tiny_digits for part in ("--set", override)]
    shown = json.loads(say("show", "digits", "--device", "cpu", "--json", *settings).out)
    assert shown["recipe"] == read_recipe("digits", tiny_digits).model_dump(mode="json", exclude_none=True)
    assert shown["parameters"].keys() == {"teachers", *shown["recipe"]["methods"]}
    assert [each["name"] for each in shown["answers"]][:2] == ["one teacher", "teachers"]
    assert all(each["multiply_adds"] > 0 and each["milliseconds"] > 0 for each in shown["answers"])
    assert {cost["name"] for cost in shown["costs"]} == {"teacher", *shown["recipe"]["methods"]}
    assert all(cost["seconds"] > 0 for cost in shown["costs"])


def test_quiet_prints_results_alone(say, tiny_digits):
    settings = [part for override in tiny_digits for part in ("--set", override)]
    result = say("--quiet", "teach", "digits", "--workers", "1", "--set", "seeds=[0]", *settings)
    assert (result.code, result.out, result.err) == (0, "", "")


@pytest.mark.parametrize("arguments", [["show", "nope"], ["show", "digits", "--nonsense"]])
def test_debug_prints_a_traceback_and_the_same_sentence(say, refused, arguments):
    plain = say(*arguments)
    refused(plain)
    debugged = say(*arguments, "--debug")
    assert debugged.code == 2
    assert debugged.err.startswith("Traceback")
    assert debugged.err.endswith(plain.err)


def test_completion_knows_verbs_and_options(environment, tmp_path):
    home = {**environment, "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    command = [sys.executable, "-m", "polyphony", "--install-completion"]
    subprocess.run(command, env=home, check=True, capture_output=True)
    (script,) = (tmp_path / ".local").rglob("polyphony")
    text = script.read_text()
    for word in ("study", "recipes", "--set", "--out", "--seed"):
        assert word in text
