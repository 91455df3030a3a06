"""From a folder of pictures and files of weights to a student that answers in ONNX, by the command alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import nn

from polyphony import Options, load, load_student
from polyphony.cli import main
from polyphony.data import pixels
from polyphony.recipe import read_recipe
from polyphony.recipe.foreign import PythonNetwork
from polyphony.study.draft import toml_paths
from polyphony.study.pretrained import Networks

BLOCKS = """
from torch import nn

class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.down = nn.Conv2d(inputs, outputs, 1, 2, bias=False)

    def forward(self, x):
        return (self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + self.down(x)).relu()
"""
MODULE = """
from draft_blocks import Block, nn

def make(classes, channels):
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(Block(channels, 8), Block(8, 16), pool, nn.Flatten(), nn.Linear(16, classes))
"""
COLOURS = {"bright": (185, 180, 175), "dark": (60, 65, 70), "middle": (120, 125, 115)}
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Pictures of three greys, in two sizes; four networks trained on them with ImageNet's statistics."""
    folder = tmp_path_factory.mktemp("made")
    rng, images, labels = np.random.default_rng(0), [], []
    for label, (name, colour) in enumerate(COLOURS.items()):
        (folder / "pictures" / name).mkdir(parents=True)
        for i in range(30):
            side = 12 if i % 3 else 14
            noise = rng.integers(-40, 40, (side, side, 3))
            picture = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(picture).save(folder / "pictures" / name / f"{i}.png")
            images.append(torch.from_numpy(picture[:12, :12]).permute(2, 0, 1) / 255)
            labels.append(label)
    (folder / "draft_nets.py").write_text(MODULE)
    (folder / "draft_blocks.py").write_text(BLOCKS)
    names: dict = {}
    exec(BLOCKS + MODULE.replace("from draft_blocks", "# "), names)
    x, y = torch.stack(images), torch.tensor(labels)
    x = (x - MEAN.view(3, 1, 1)) / STD.view(3, 1, 1)
    for j in range(4):
        torch.manual_seed(j)
        net = names["make"](3, 3)
        optimiser = torch.optim.Adam(net.parameters(), 0.02)
        for _ in range(30):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()
        torch.save({"state_dict": net.state_dict()}, folder / f"{j}.pt")
    return folder


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """A copy of it to work in, where no module of it stays imported."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path
    forget_modules()


def forget_modules() -> None:
    for name in ("draft_nets", "draft_blocks"):
        sys.modules.pop(name, None)


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


def test_little_time_is_few_candidates_and_the_time_of_all_is_said(place, capsys):
    init = ("init", "pictures", "0.pt", "1.pt", "2.pt", "3.pt", "--network", "draft_nets:make")
    assert command(*init, "--minutes", "0.001") == 0
    said = capsys.readouterr().out
    assert re.search(r"^4 candidates with 1 seed: about .+ on this machine\.$", said, re.MULTILINE)
    assert re.search(r"^8 candidates with 3 seeds take .+: --minutes \d+\.$", said, re.MULTILINE)
    recipe = read_recipe("own.toml")
    assert (list(recipe.methods), recipe.seeds) == (["mean", "mean-ods", "kd", "ods-3"], (0,))
    assert command(*init, "--out", "other.toml", "--minutes", "0") == 2


def test_what_can_be_found_out_is_found_out_and_the_recipe_runs(place, capsys):
    init = ("init", "pictures", "0.pt", "1.pt", "2.pt", "3.pt", "--network", "draft_nets:make")
    init = (*init, "--minutes", "1000")
    assert command(*init) == 0
    said = capsys.readouterr().out
    assert "8 candidates with 3 seeds: about " in said
    assert "64 training, 8 validation and 18 test images of 3 classes, 12×12 pixels, colour." in said
    assert "No validation and test images were given" in said
    recipe = read_recipe("own.toml")
    assert recipe.members == 4
    assert recipe.data.resolution == 12
    assert recipe.teachers.network.mean == pytest.approx(MEAN.tolist())
    assert recipe.student.optimizer.kind == "sgd"
    assert recipe.data.augment.flip
    shares = {name: float(share) for name, share in re.findall(r"  (\S.*?) +([\d.]+)%", said)}
    assert shares["ImageNet"] == max(shares.values())
    assert {"none", "CIFAR-10", "training images"} <= shares.keys()
    assert "MNIST" not in shares
    assert f"If your own evaluation gave more than {shares['ImageNet']}%, preprocessing differs: give" in said
    assert re.search(r"all networks: 0\.pt [\d.]+%, 1\.pt [\d.]+%, 2\.pt [\d.]+%, 3\.pt [\d.]+%\.", said)
    assert list(recipe.methods) == [
        "mean",
        "mean-ods",
        "kd",
        "ods-3",
        "ods-12",
        "ods-wide",
        "kd-fresh",
        "ods-fresh",
    ]
    assert {recipe.form_table(name).branch for name in recipe.methods if "mean" not in name} == {0.5}
    assert recipe.seeds == (0, 1, 2)
    assert [recipe.starts_from_teacher(name) for name in recipe.methods] == [True] * 6 + [False] * 2
    Path("draft_nets.py").rename("away.py")
    sys.modules.pop("draft_nets")
    assert command("show", "own.toml", "--no-code") == 0
    assert "draft_nets:make" in capsys.readouterr().out
    assert command("show", "own.toml") == 2
    assert "'draft_nets' cannot be imported" in capsys.readouterr().err
    Path("away.py").rename("draft_nets.py")
    methods = "methods={ods-3={perturb='ods', step_size='3/255'}}"
    small = ("--set", "student.epochs=1", "--set", "seeds=[0]", "--set", methods, "--workers", "1")
    small = (*small, "--no-analyses")
    assert command("study", "own.toml", *small) == 0
    assert "own.toml runs code of its own: draft_nets:make." in capsys.readouterr().err
    assert Path("runs/own/report.html").exists()
    assert command(*init) == 2
    assert "own.toml exists" in capsys.readouterr().err
    pictures = [np.asarray(Image.open(path))[:12, :12] for path in sorted(Path("pictures").rglob("*.png"))]
    check_the_way_out(np.stack(pictures[:64]), capsys)


def check_the_way_out(pictures, capsys):
    """Pictures without labels get the same answers from the command, from Python and from the ONNX file."""
    Path("unlabelled").mkdir()
    for i, picture in enumerate(pictures[:3]):
        Image.fromarray(picture).save(f"unlabelled/{i}.png")
    student = load_student("runs/own", "ods-3")
    answers = student.predict(pictures)
    assert command("predict", "runs/own", "unlabelled", "--method", "ods-3", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    found = [list(row["probabilities"].values()) for row in told]
    np.testing.assert_allclose(found, answers.probabilities[:3], atol=1e-6)
    assert command("pack", "runs/own", "ods-3", "--out", "packed") == 0
    assert ", with its code, draft_blocks.py and draft_nets.py." in capsys.readouterr().out
    session = onnxruntime.InferenceSession("packed/model.onnx")
    for batch in (1, 7, 64):
        found = session.run(None, {"pixels": pictures[:batch].transpose(0, 3, 1, 2)})
        for output, value in zip(session.get_outputs(), found, strict=True):
            expected = getattr(answers, output.name)
            expected = expected[:, :batch] if output.name == "members" else expected[:batch]
            np.testing.assert_allclose(value, expected, atol=1e-5, err_msg=output.name)
    Path("draft_nets.py").unlink()
    Path("draft_blocks.py").unlink()
    forget_modules()
    packed = ("predict", "packed", "unlabelled", "--json")
    assert command(*packed) == 2
    assert "which runs only with code=True: give --code if you trust it" in capsys.readouterr().err
    assert command(*packed, "--code") == 0
    assert json.loads(capsys.readouterr().out) == told


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("pictures", "0.pt", "--network", "draft_nets:make"), "two networks or more, not 1 file"),
        (("nowhere", "0.pt", "1.pt", "--network", "draft_nets:make"), "not a known data set"),
        (("pictures", "0.pt", "1.pt", "--network", "draft nets"), "names no network"),
        (("pictures", "0.pt", "1.pt", "--network", "draft_nets:mak"), "the module has no 'mak'"),
        (("pictures", "4.pt", "1.pt", "--network", "draft_nets:make"), "4.pt cannot be read"),
        (("pictures", "0.pt", "0.pt", "--network", "draft_nets:make"), "0.pt is listed twice"),
        (("pictures", "0.pt", "1.pt", "--network", "draft_nets:make", "--size", "0"), "resolution"),
        (
            ("pictures", "0.pt", "1.pt", "--network", "draft_nets:make", "--out", "ü ä.toml"),
            "would name a rec",
        ),
        (("pictures", "0.pt", "1.pt", "--network", "draft_nets:make", "--out", "a\nb.toml"), "would name"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(place, capsys, arguments, sentence):
    assert command("init", *arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
    assert list(Path.cwd().glob("*.toml")) == []


def test_files_called_alike_are_told_apart_and_copies_are_refused(place, capsys):
    for j in (0, 1):
        Path(f"run{j}").mkdir()
        shutil.copy(f"{j}.pt", f"run{j}/best.pt")
    Path("pictures").rename("mnist")  # a folder that is called as a data set is
    network = ("--network", "draft_nets:make")
    assert command("init", "mnist", "run0/best.pt", "run1/best.pt", *network) == 0
    assert "Accuracy of all networks: run0/best.pt " in capsys.readouterr().out
    assert read_recipe("own.toml").data.name == str(Path("mnist").absolute())
    assert command("init", "mnist", "0.pt", "run0/best.pt", *network, "--out", "b.toml") == 2
    assert "run0/best.pt holds the same weights as 0.pt" in capsys.readouterr().err


def test_mirrored_images_are_shown_only_where_the_networks_know_them(place, capsys):
    """Of pictures brighter on one side a network that knows the side is always wrong when mirrored."""
    for side in ("left", "right"):
        (place / "sides" / side).mkdir(parents=True)
        for i in range(20):
            ramp = np.linspace(100 + i, 0, 8) if side == "left" else np.linspace(0, 100 + i, 8)
            Image.fromarray(np.tile(ramp.astype(np.uint8), (8, 1))).save(place / "sides" / side / f"{i}.png")
    make = "return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))"
    text = f"from torch import nn\ndef make(classes, channels):\n    {make}"
    (place / "draft_nets.py").write_text(text)
    left = torch.linspace(1, -1, 8).expand(3, 8, 8).flatten()
    for size, name in ((1.0, "a.pt"), (2.0, "b.pt")):
        torch.save({"1.weight": size * torch.stack([left, -left]), "1.bias": torch.zeros(2)}, name)
    assert command("init", "sides", "a.pt", "b.pt", "--network", "draft_nets:make") == 0
    lines = capsys.readouterr().out
    assert "a.pt on mirrored images: 0.0%, so students do not see mirrored images." in lines
    assert not read_recipe("own.toml").data.augment.flip
    assert "Members share no layers, since they cannot branch off in the middle:" in lines
    assert read_recipe("own.toml").form_table("kd").branch is None


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text there")
def test_a_path_that_is_no_text_is_one_sentence(place, capsys):
    shutil.copytree("pictures", os.fsdecode(b"odd \xe9"))
    init = ("init", os.fsdecode(b"odd \xe9"), "0.pt", "1.pt", "--network", "draft_nets:make")
    assert command(*init) == 2
    assert "odd ? is not UTF-8" in capsys.readouterr().err


def fitted_nets(place, source, channels=1, classes=10, normalise=lambda x: x) -> list[str]:
    """Two networks that have learnt the validation images of a data set, in files."""
    valid = load(source, Options(channels=channels)).valid
    table = PythonNetwork(kind="python", name="draft_nets:make", folder=str(place))
    for j, name in enumerate(("a.pt", "b.pt")):
        torch.manual_seed(j)
        net = table.make_network(classes, channels)
        optimiser = torch.optim.Adam(net.parameters(), 0.02)
        for _ in range(20):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(normalise(pixels(valid.images))), valid.labels).backward()
            optimiser.step()
        torch.save(net.state_dict(), name)
    return ["a.pt", "b.pt"]


def test_a_data_set_is_called_by_its_name_and_a_normalisation_of_colour_is_not_tried_on_grey(place, capsys):
    weights = fitted_nets(place, "digits")
    assert command("init", "digits", *weights, "--network", "draft_nets:make") == 0
    said = capsys.readouterr().out
    assert "  MNIST " in said
    assert "  ImageNet " not in said
    assert read_recipe("own.toml").data.name == "digits"
    assert read_recipe("own.toml").data.channels is None


def test_networks_at_chance_are_refused_before_a_recipe_is_written(place, capsys):
    table = PythonNetwork(kind="python", name="draft_nets:make", folder=str(place))
    for name in ("a.pt", "b.pt"):
        torch.save(table.make_network(10, 1).state_dict(), name)
    assert command("init", "digits", "a.pt", "b.pt", "--network", "draft_nets:make") == 2
    assert "a.pt is right on" in capsys.readouterr().err
    assert not Path("own.toml").exists()


def test_classes_in_another_order_are_refused(place, capsys):
    weights = torch.load("1.pt", weights_only=True)["state_dict"]
    for name in ("4.weight", "4.bias"):
        weights[name] = weights[name][[1, 0, 2]]
    torch.save(weights, "1.pt")
    assert command("init", "pictures", "0.pt", "1.pt", "--network", "draft_nets:make") == 2
    assert "1.pt is right on" in (said := capsys.readouterr().err)
    assert "classes in another order" in said


def test_images_without_labels_are_written_and_all_but_one_method_take_them(place, capsys):
    (place / "camera").mkdir()
    Image.new("RGB", (20, 20), (60, 65, 70)).save(place / "camera" / "a.png")
    init = ("init", "pictures", "0.pt", "1.pt", "--network", "draft_nets:make")
    assert command(*init, "--unlabelled", "camera") == 0
    assert "1 images without labels in camera" in capsys.readouterr().out
    recipe = read_recipe(place / "own.toml")
    assert recipe.data.unlabelled == str(place / "camera")
    shares = {name: recipe.distillation(name).share for name in recipe.methods}
    assert [name for name, share in shares.items() if share == 0] == ["ods-labelled"]
    assert set(shares.values()) == {0.0, 0.5}


def test_preprocessing_that_is_given_is_taken(place, capsys):
    own = ("--mean", "0.485,0.456,0.406", "--std", "0.2", "--order", "rgb", "--size", "10")
    init = ("init", "pictures", "0.pt#state_dict", "1.pt", "--network", "draft_nets:make")
    assert command(*init, *own) == 0
    said = capsys.readouterr().out
    assert "by normalisation" not in said
    assert "10×10 pixels" in said
    recipe = read_recipe("own.toml")
    assert recipe.data.resolution == 10
    assert recipe.teachers.weights == (str(place / "0.pt#state_dict"), str(place / "1.pt"))
    network = recipe.teachers.network
    assert (network.mean, network.std, network.order) == ((0.485, 0.456, 0.406), (0.2,), "rgb")
    for wrong, sentence in ((("--mean", "0.5"), "go together"), (("--std", "half"), "--std must be numbers")):
        assert command(*init, *wrong, "--out", "b.toml") == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(("channels", "written"), [(1, 1), (3, None)])
def test_grey_pictures_stay_grey_where_the_networks_take_them(place, capsys, channels, written):
    rng = np.random.default_rng(1)
    for name, level in (("dark", 60), ("light", 190)):
        (place / "grey" / name).mkdir(parents=True)
        for i in range(30):
            levels = np.clip(level + rng.integers(-30, 30, (8, 8)), 0, 255).astype(np.uint8)
            Image.fromarray(levels).save(place / "grey" / name / f"{i}.png")
    weights = fitted_nets(place, "grey", channels, classes=2)
    assert command("init", "grey", *weights, "--network", "draft_nets:make") == 0
    assert f"8×8 pixels, {'grey' if channels == 1 else 'colour'}." in capsys.readouterr().out
    recipe = read_recipe("own.toml")
    assert recipe.data.channels == written
    picture = np.asarray(Image.open(sorted((place / "grey" / "dark").glob("*.png"))[0]))
    splits = load(recipe.data.name, recipe.data)
    read = torch.cat([split.images for split in (splits.train, splits.valid, splits.test)]).numpy()
    assert read.shape[1] == channels
    assert any(np.array_equal(image[0], picture) for image in read)


def test_files_in_a_deep_folder_are_listed_one_a_line():
    paths = [f"/{'deep/' * 20}{j}.pt" for j in range(40)]
    text = toml_paths(paths)
    assert max(map(len, text.splitlines())) < 200
    assert tomllib.loads(f"weights = {text}")["weights"] == paths
    assert toml_paths(["a.pt", "b.pt"]) == '["a.pt", "b.pt"]'


class OfColour(PythonNetwork):
    """A network that says itself by what it normalises: three channels."""

    def expects(self, network):
        return {"mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2)}


def test_what_a_network_says_of_colour_is_not_tried_on_grey_images(place):
    weights = [Path(name) for name in fitted_nets(place, "digits")]
    table = OfColour(kind="python", name="draft_nets:make", folder=str(place))
    said: list[str] = []
    networks = Networks(table, weights, load("digits", Options(valid=50))).normalised(said.append)
    assert not any("none" in line for line in said)
    assert networks.table.mean is not None
