"""Networks of other people in a recipe: what they expect of pixels, and what is wrong with them in words."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from polyphony.recipe import RecipeError, foreign_table, read_recipe, shipped


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


def test_statistics_of_another_number_of_channels_are_rejected(mynets):
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


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('kind = "timm", name = "hf-hub:someone/model"', "'hf-hub:someone/model' is not a plain word"),
        ('kind = "timm", name = "local-dir:/tmp"', "is not a plain word"),
        (
            'kind = "timm", name = "x", args = { checkpoint_path = "a.pt" }',
            "checkpoint_path would make the library read other",
        ),
        (
            'kind = "timm", name = "x", args = { pretrained = true }',
            "pretrained would make the library read other files",
        ),
        (
            'kind = "timm", name = "x", args = { a = [{ b = "https://x" }] }',
            "b = 'https://x' is not a plain word",
        ),
        ('kind = "transformers", config = { model_type = "vit", auto_map = { A = "b" } }', "auto_map would"),
        (
            'kind = "transformers", config = { model_type = "x", attn_implementation = "a/b" }',
            "not a plain word",
        ),
    ],
)
def test_settings_that_read_files_or_run_code_are_rejected(table, sentence):
    with pytest.raises(RecipeError, match=sentence):
        network(f"{{ {table} }}")


def test_timm_provides_the_preprocessing(monkeypatch):
    calls = []

    def create_model(name, **settings):
        calls.append((name, settings))
        net = nn.Conv2d(3, 7, 1)
        net.pretrained_cfg = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.2, 0.2), "fixed_input_size": True}
        net.pretrained_cfg["input_size"] = (3, 12, 12)
        return net

    library = SimpleNamespace(create_model=create_model, get_pretrained_cfg=lambda name: fixed)
    fixed = SimpleNamespace(fixed_input_size=True)
    monkeypatch.setitem(sys.modules, "timm", library)
    built = network('{ kind = "timm", name = "tiny", args = { drop_rate = 0.1 } }').build(7, 3)
    settings = {"num_classes": 7, "in_chans": 3, "pretrained": False, "drop_rate": 0.1}
    assert calls.pop() == ("tiny", settings)
    assert built.size == (12, 12)
    small = network('{ kind = "timm", name = "tiny", args = { drop_rate = 0.1 }, size = 8 }').build(7, 3)
    assert calls.pop() == ("tiny", settings | {"img_size": 8})
    assert small.size == (8, 8)
    assert built.normalize.mean.flatten().tolist() == pytest.approx([0.4, 0.5, 0.6])


@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_a_missing_library_is_one_sentence(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(RecipeError, match=rf"pip install '\.\[{library}\]'"):
        network(f'{{ kind = "{library}", name = "x" }}').build(10, 1)


def test_timm_without_torchvision_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setattr(sys, "meta_path", [LacksTorchvision(), *sys.meta_path])
    with pytest.raises(
        RecipeError, match="needs the package torchvision, which is not installed: pip install t"
    ):
        network('{ kind = "timm", name = "x" }').build(10, 1)


class LacksTorchvision:
    """Finds timm, whose import then fails as it does where torchvision is missing."""

    def find_spec(self, name, path=None, target=None):
        if name == "timm":
            raise ModuleNotFoundError("No module named 'torchvision'", name="torchvision.transforms")


class Flat(nn.Module):
    """A network that remembers what it was made with."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.sizes = (inputs, outputs)
        self.body = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, outputs))

    def forward(self, x):
        return self.body(x)


class SmallCNN(Flat):
    def __init__(self, num_classes=10, in_chans=3):
        super().__init__(in_chans, num_classes)


def like_torchvision(*, weights=None, **settings):
    return SmallCNN(**settings)


MAKERS = {
    "a class": SmallCNN,
    "a function of ours": lambda classes, channels: Flat(channels, classes),
    "other names": lambda n_classes, in_channels=3: Flat(in_channels, n_classes),
    "classes alone": lambda num_classes: Flat(3, num_classes),
    "keywords": lambda **sizes: Flat(sizes["channels"], sizes["classes"]),
    "a name and keywords": lambda num_classes=10, **more: Flat(3, num_classes),
    "torchvision's": like_torchvision,
    "no arguments": lambda: Flat(3, 7),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_sizes_are_passed_under_the_usual_argument_names(mynets, kind):
    mynets.make = MAKERS[kind]
    built = network('{ kind = "python", name = "mynets:make" }').fitted(7, (3, 8, 8))
    assert built.network.sizes == (3, 7)


def test_args_override_sizes_and_a_missing_argument_is_named(mynets):
    mynets.make = lambda depth, num_classes: Flat(depth, num_classes)
    table = '{ kind = "python", name = "mynets:make", args = { depth = 3, num_classes = 2 } }'
    assert network(table).build(2, 3).network.sizes == (3, 2)
    with pytest.raises(
        RecipeError, match=r"'mynets:make' needs a value for 'depth': give it in args, or name"
    ):
        network('{ kind = "python", name = "mynets:make" }').build(7, 3)


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
    smaller = network(table.replace("} }", "}, size = 8 }")).build(5, 3)
    assert smaller.network.config.image_size == 8
    assert smaller(torch.rand(2, 3, 10, 10)).shape == (2, 5)
    with pytest.raises(RecipeError, match="transformers cannot make 'nothing'"):
        network('{ kind = "transformers", config = { model_type = "nothing" } }').build(5, 3)


@pytest.mark.parametrize(
    ("processor", "mean", "std"),
    [
        ({}, 0.0, 1.0),
        ({"image_mean": [0.3] * 3, "image_std": [0.2] * 3}, 0.3, 0.2),
        ({"image_mean": [0.3] * 3, "image_std": [0.2] * 3, "do_normalize": False}, 0.0, 1.0),
        ({"image_mean": 0.3, "image_std": [0.2] * 3}, 0.3, 0.2),
        ({"image_mean": None, "image_std": None, "rescale_factor": None}, 0.0, 1.0),
        ({"image_mean": [51.0] * 3, "image_std": [102.0] * 3, "do_rescale": False}, 0.2, 0.4),
        ({"image_mean": [1.0] * 3, "image_std": [1.0] * 3, "rescale_factor": 1 / 127.5}, 0.5, 0.5),
    ],
)
def test_transformers_provides_the_preprocessing(tmp_path, processor, mean, std):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic", num_labels=2
    )
    config.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps(processor | {"size": {"shortest_edge": 24}, "crop_size": 20, "do_center_crop": True})
    )
    table = network(f'{{ kind = "transformers", name = "{tmp_path}" }}')
    for each in (table, table.portable()):
        built = each.build(5, 3)
        assert built.size == (20, 20)
        assert built.normalize.mean.flatten().tolist() == pytest.approx([mean] * 3)
        assert built.normalize.std.flatten().tolist() == pytest.approx([std] * 3)
        assert built.network.config.hidden_sizes == [8]
        assert built(torch.rand(2, 3, 9, 9)).shape == (2, 5)
    assert str(tmp_path) not in table.portable().model_dump_json()


def a_resnet(folder, **processor):
    """A folder of a model of transformers, with the image processor that it tells of."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic"}
    transformers.ResNetConfig(**sizes).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


def test_a_described_model_keeps_its_image_size(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.ViTConfig(image_size=16, patch_size=8, **small).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 24, "width": 24}}))
    for setting, side in (("", 16), (", size = 32", 32)):
        table = network(f'{{ kind = "transformers", name = "{tmp_path}"{setting} }}')
        here, there = table.build(5, 3), table.portable().build(5, 3)
        assert here.size == there.size == (side, side)
        assert here.network.config.image_size == there.network.config.image_size == side


@pytest.mark.parametrize("name", ["", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"])
def test_a_described_model_keeps_its_class(tmp_path, name):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.DeiTConfig(image_size=16, patch_size=8, **small)
    config.architectures = [name] if name else None
    config.save_pretrained(tmp_path)
    table = network(f'{{ kind = "transformers", name = "{tmp_path}" }}')
    here, there = (each.fitted(5, (3, 16, 16)) for each in (table, table.portable()))
    wanted = getattr(transformers, name or "DeiTForImageClassification")
    assert type(here.network) is type(there.network) is wanted


def test_window_sizes_of_a_pretrained_swin_are_allowed(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    small = {"embed_dim": 8, "depths": [1], "num_heads": [2], "image_size": 16, "window_size": 2}
    transformers.Swinv2Config(**small, pretrained_window_sizes=[3]).save_pretrained(tmp_path)
    table = network(f'{{ kind = "transformers", name = "{tmp_path}" }}')
    assert table.portable().config["pretrained_window_sizes"] == [3]


def test_a_model_that_needs_its_folder_is_one_sentence(tmp_path):
    a_resnet(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"teacher_url": "https://nowhere"}))
    with pytest.raises(
        RecipeError,
        match=r"described without its folder \(config: teacher_url would make the library read other",
    ):
        network(f'{{ kind = "transformers", name = "{tmp_path}" }}').portable()


def test_a_model_that_expects_bgr_gets_bgr(tmp_path):
    a_resnet(tmp_path, do_flip_channel_order=True, do_normalize=False)
    table, x = network(f'{{ kind = "transformers", name = "{tmp_path}" }}'), torch.rand(2, 3, 9, 9)
    for each in (table, table.portable()):
        built = each.build(5, 3).eval()
        torch.testing.assert_close(built(x), built.network(x[:, [2, 1, 0]]).logits)
        several = each.build(5, 6).eval()
        x_several = torch.cat([x, x + 1], 1)
        torch.testing.assert_close(
            several(x_several), several.network(x_several[:, [2, 1, 0, 5, 4, 3]]).logits
        )
    grey = table.build(5, 1).eval()
    torch.testing.assert_close(grey(x[:, :1]), grey.network(x[:, :1]).logits)
    in_rgb = network(f'{{ kind = "transformers", name = "{tmp_path}", order = "rgb" }}').build(5, 3).eval()
    torch.testing.assert_close(in_rgb(x), in_rgb.network(x).logits)


def test_a_key_depends_on_the_content_of_a_models_folder_not_on_its_path(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        a_resnet(folder, image_mean=[0.3] * 3, image_std=[0.2] * 3)

    def spec(folder):
        table = network(f'{{ kind = "transformers", name = "{folder}", size = 12 }}')
        assert table.spec() == json.loads(json.dumps(table.spec())) == table.portable().spec()
        return table.spec()

    first = spec(folders[0])
    assert first == spec(folders[1])
    assert str(tmp_path) not in json.dumps(first)
    a_resnet(folders[1], image_mean=[0.4] * 3, image_std=[0.2] * 3)
    assert spec(folders[1]) == first | {"mean": pytest.approx([0.4] * 3)}
    config = json.loads((folders[0] / "config.json").read_text())
    (folders[0] / "config.json").write_text(json.dumps(config | {"hidden_act": "tanh"}))
    assert spec(folders[0])["config"] == first["config"] | {"hidden_act": "tanh"}


def test_a_models_folder_is_relative_to_the_recipe(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    a_resnet(tmp_path / "model")
    (tmp_path / "own.toml").write_text(shipped()["digits"].read_text(encoding="utf-8"))
    table = 'teachers.network={ kind = "transformers", name = "model" }'
    model = read_recipe(tmp_path / "own.toml", [table]).teachers.network
    assert model.name == str(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    assert foreign_table("transformers:model", tmp_path / "elsewhere").name == str(tmp_path / "model")


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/model", "a/b/c", "model/"])
def test_a_missing_folder_is_not_requested_from_a_hub(name):
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(RecipeError, match=f"^there is no folder '{name}'"):
        network(f'{{ kind = "transformers", name = "{name}" }}').build(5, 3)
