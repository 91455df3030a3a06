"""From a folder of pictures and files of weights to a recipe that runs, by the command alone."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from polyphony.cli import main
from polyphony.recipe import read_recipe

MODULE = """
from torch import nn

def make(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, classes),
    )
"""
COLOURS = {"bright": (185, 180, 175), "dark": (60, 65, 70), "middle": (120, 125, 115)}
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Pictures of three greys, in two sizes; two networks trained on them with ImageNet's statistics."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng, images, labels = np.random.default_rng(0), [], []
    for label, (name, colour) in enumerate(COLOURS.items()):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(30):
            side = 12 if i % 3 else 14
            noise = rng.integers(-40, 40, (side, side, 3))
            picture = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(picture).save(tmp_path / "pictures" / name / f"{i}.png")
            images.append(torch.from_numpy(picture[:12, :12]).permute(2, 0, 1) / 255)
            labels.append(label)
    (tmp_path / "draft_nets.py").write_text(MODULE)
    names: dict = {}
    exec(MODULE, names)
    x, y = torch.stack(images), torch.tensor(labels)
    x = (x - MEAN.view(3, 1, 1)) / STD.view(3, 1, 1)
    for j in range(2):
        torch.manual_seed(j)
        net = names["make"](3, 3)
        optimiser = torch.optim.Adam(net.parameters(), 0.02)
        for _ in range(30):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()
        torch.save(net.state_dict(), f"{j}.pt")
    yield tmp_path
    sys.modules.pop("draft_nets", None)


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


def test_what_can_be_found_out_is_found_out_and_the_recipe_runs(place, capsys):
    assert command("init", "pictures", "0.pt", "1.pt", "--network", "draft_nets:make") == 0
    said = capsys.readouterr().out
    assert "of 3 classes, 12×12 pixels" in said
    recipe = read_recipe("own.toml")
    assert recipe.members == 2
    assert recipe.data.resolution == 12
    assert recipe.teachers.network.mean == pytest.approx(MEAN.tolist())
    assert recipe.student.optimizer.kind == "sgd"
    shares = dict(re.findall(r"([\d.]+)% with ([^,.]+)", said))
    assert float({name: share for share, name in shares.items()}["ImageNet's"]) > 90
    Path("draft_nets.py").rename("away.py")
    sys.modules.pop("draft_nets")
    assert command("show", "own.toml", "--no-code") == 0
    assert "draft_nets:make" in capsys.readouterr().out
    assert command("show", "own.toml") == 2
    assert "'draft_nets' cannot be imported" in capsys.readouterr().err
    Path("away.py").rename("draft_nets.py")
    small = ("--set", "student.epochs=1", "--set", "student.batch=8", "--workers", "1")
    assert command("study", "own.toml", *small) == 0
    assert "own.toml runs code of its own: draft_nets:make." in capsys.readouterr().out
    assert Path("runs/own/report.html").exists()
    assert command("init", "pictures", "0.pt", "1.pt", "--network", "draft_nets:make") == 2
    assert "own.toml is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("pictures", "0.pt", "--network", "draft_nets:make"), "two networks or more, not 1 file"),
        (("nowhere", "0.pt", "1.pt", "--network", "draft_nets:make"), "no known data set"),
        (("pictures", "0.pt", "1.pt", "--network", "draft nets"), "names no network"),
        (("pictures", "0.pt", "1.pt", "--network", "draft_nets:mak"), "the module has no 'mak'"),
        (("pictures", "2.pt", "1.pt", "--network", "draft_nets:make"), "2.pt cannot be read"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(place, capsys, arguments, sentence):
    assert command("init", *arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
    assert not Path("own.toml").exists()
