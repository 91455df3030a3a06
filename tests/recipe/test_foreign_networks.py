"""Networks of other people in a recipe: what they expect of pixels, and what is wrong with them in words."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from polyphony.recipe import RecipeError, read_recipe


def network(table: str):
    return read_recipe("digits", [f"teachers.network={table}"]).teachers.network


@pytest.fixture
def mynets(monkeypatch):
    module = ModuleType("mynets")
    module.make = lambda classes, channels: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    monkeypatch.setitem(sys.modules, "mynets", module)
    return module


def test_pixels_are_normalised_and_resized_as_the_recipe_says(mynets):
    x = torch.rand(2, 3, 6, 6)
    plain = network('{ kind = "python", name = "mynets:make" }').build(3, 3)
    torch.testing.assert_close(plain(x), x.mean((2, 3)))
    table = (
        '{ kind = "python", name = "mynets:make", mean = [0.5, 0.25, 0.0], std = [0.5, 1.0, 2.0], size = 9 }'
    )
    wanted = nn.functional.interpolate(x, (9, 9), mode="bilinear", antialias=True).mean((2, 3))
    wanted = (wanted - torch.tensor([0.5, 0.25, 0.0])) / torch.tensor([0.5, 1.0, 2.0])
    torch.testing.assert_close(network(table).build(3, 3)(x), wanted)
    of_two = network(table).build(6, 6)  # MIMO shows it two images at once
    assert of_two.normalize.mean.flatten().tolist() == [0.5, 0.25, 0.0] * 2


def test_statistics_of_other_channels_are_refused(mynets):
    table = '{ kind = "python", name = "mynets:make", mean = [0.5, 0.5, 0.5], std = [1.0, 1.0, 1.0] }'
    with pytest.raises(RecipeError, match="given for 3 channels, but images have 1"):
        network(table).build(10, 1)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("mean = [0.5]", "mean and std go together"),
        ("mean = [0.5], std = [0.0]", "greater than 0"),
        ("size = 0", "greater than 0"),
        ("mean = [], std = []", "must not be empty"),
    ],
)
def test_impossible_expectations_are_one_sentence(keys, sentence):
    with pytest.raises(RecipeError, match=sentence):
        network(f'{{ kind = "python", name = "mynets:make", {keys} }}')


def test_timm_says_itself_what_it_expects(monkeypatch):
    made = []

    def create_model(name, **settings):
        made.append((name, settings))
        net = nn.Conv2d(3, 7, 1)
        net.pretrained_cfg = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.2, 0.2), "fixed_input_size": True}
        net.pretrained_cfg["input_size"] = (3, 12, 12)
        return net

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    built = network('{ kind = "timm", name = "tiny", args = { drop_rate = 0.1 } }').build(7, 3)
    assert made == [("tiny", {"num_classes": 7, "in_chans": 3, "pretrained": False, "drop_rate": 0.1})]
    assert built.size == (12, 12)
    assert built.normalize.mean.flatten().tolist() == pytest.approx([0.4, 0.5, 0.6])


@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_a_library_that_is_not_there_is_one_sentence(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(RecipeError, match=rf"pip install 'polyphony\[{library}\]'"):
        network(f'{{ kind = "{library}", name = "x" }}').build(10, 1)


@pytest.mark.parametrize("keys", ["", 'name = "x", config = { model_type = "vit" }'])
def test_a_network_of_transformers_has_a_name_or_a_config(keys):
    with pytest.raises(RecipeError, match="give name, a model's folder or id, or config"):
        network(f'{{ kind = "transformers"{", " * bool(keys)}{keys} }}')


def test_a_vision_transformer_by_its_configuration():
    pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = "hidden_size = 16, num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 16"
    table = f'config = {{ model_type = "vit", {sizes}, image_size = 16, patch_size = 8 }}'
    table = f'{{ kind = "transformers", {table} }}'
    built = network(table).build(5, 3, torch.Generator().manual_seed(0))
    assert built.size == (16, 16)
    assert built(torch.rand(2, 3, 10, 10)).shape == (2, 5)
    with pytest.raises(RecipeError, match="transformers cannot make 'nothing'"):
        network('{ kind = "transformers", config = { model_type = "nothing" } }').build(5, 3)
