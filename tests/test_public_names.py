"""The names in `polyphony.__all__` are what they say, whatever was imported before."""

from importlib import import_module
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


def test_every_public_name_is_in_the_module_that_the_stub_names():
    assert {"BatchEnsemble", "Student", "load", "predict", "read_recipe"} <= set(polyphony.__all__)
    for name, module in polyphony._MODULES.items():
        assert getattr(import_module(module), name) is getattr(polyphony, name)
