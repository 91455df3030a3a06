"""The examples in the docstrings of public names give what they show."""

import doctest

import pytest
import torch

import polyphony

EXAMPLES = [
    test
    for name in polyphony.__all__
    for test in doctest.DocTestFinder(recurse=False).find(getattr(polyphony, name), name)
    if test.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_gives_what_it_shows(example, capsys):
    example.globs |= {name: getattr(polyphony, name) for name in polyphony.__all__} | {"torch": torch}
    with torch.random.fork_rng():
        failed, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example)
    assert failed == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", polyphony.__all__)
def test_public_functions_and_classes_have_a_docstring(name):
    value = getattr(polyphony, name)
    assert not callable(value) or vars(value).get("__doc__", value.__doc__)


def test_the_names_that_people_use_first_have_an_example():
    shown = {example.name for example in EXAMPLES}
    assert shown >= {"Distill", "fit", "predict", "load", "BatchEnsemble", "DeepEnsemble", "ODS", "adapt"}
