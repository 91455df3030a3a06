"""The names in `polyphony.__all__` are what they say, whatever was imported before."""

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import polyphony


@pytest.mark.parametrize("name", polyphony.__all__)
def test_a_public_name_is_no_module(name):
    for module in ("training.fit", "training.predict", "distill", "recipe", "study", "report"):
        import_module(f"polyphony.{module}")
    assert not isinstance(getattr(polyphony, name), ModuleType)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        polyphony.nonsense  # noqa: B018


def test_type_checkers_are_told_the_same_names():
    stub = ast.parse(Path(polyphony.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    told = {name.asname: node.module for node in imports for name in node.names}
    assert told == {name: f"polyphony.{module}" for name, module in polyphony._MODULES.items()}
