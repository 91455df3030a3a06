"""Every program of docs/extend.md is short, runs as it stands there, and gives what the text says."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polyphony import Gaussian, Options, Splits, load, predict, read_recipe, resnet
from polyphony.cli import main
from polyphony.data.catalogue import DATASETS
from polyphony.recipe import shipped

DOCUMENT = Path(__file__).parents[1] / "docs" / "extend.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
NAMES = ("networks", "perturbation", "module", "student", "loss", "files", "arrays", "dataset", "score")
FOUND = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", TEXT, re.DOTALL)
PROGRAMS = dict(zip(NAMES, FOUND, strict=True))  # name → (program, what it prints)
NUMBER = re.compile(r"\d+\.\d+")

Names = dict[str, Any]


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder and cache to work in; afterwards generators and catalogues are as they were."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = DATASETS.copy()
    with torch.random.fork_rng():
        yield
    DATASETS.clear()
    DATASETS.update(before)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Names]:
    """Run a program to its end and compare what it prints with what is shown; its variables come out."""

    def run(name: str) -> Names:
        program, shown = PROGRAMS[name]
        path = tmp_path / f"{name}.py"
        path.write_text(program, encoding="utf-8")
        names = runpy.run_path(str(path), run_name="__main__")
        printed = capsys.readouterr().out
        assert NUMBER.sub("…", printed) == NUMBER.sub("…", shown)
        numbers = [[float(n) for n in NUMBER.findall(text)] for text in (printed, shown)]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.05)
        return names

    return run


def accuracy_of(logits: Tensor, labels: Tensor) -> float:
    """Of the members' mean prediction, in NumPy."""
    odds = np.exp(logits.double().numpy() - logits.double().numpy().max(-1, keepdims=True))
    return float(((odds / odds.sum(-1, keepdims=True)).mean(0).argmax(-1) == labels.numpy()).mean())


def command(main: Callable[[list[str]], None], *arguments: str) -> None:
    """Run a command that ends well."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert not end.value.code


def everything(splits: Splits) -> list[tuple[int, bytes]]:
    """Every image of all splits with its label, in an order of their own."""
    parts = (splits.train, splits.valid, splits.test)
    return sorted(
        (int(label), image.numpy().tobytes())
        for part in parts
        for image, label in zip(part.images, part.labels, strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_program_has_fewer_than_thirty_lines_that_fit_the_page(name: str):
    lines = PROGRAMS[name][0].splitlines()
    assert len(lines) < 30
    assert max(map(len, lines)) <= 110


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([^):]+)\)", TEXT))))
def test_what_the_page_points_to_is_there(path: str):
    assert (DOCUMENT.parent / path).exists()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:polyphony|data)/[\w/]+\.py)`", TEXT))))
def test_files_of_the_library_that_are_named_are_there(path: str):
    assert (DOCUMENT.parents[1] / "src" / "polyphony" / path.removeprefix("polyphony/")).is_file()


def test_networks_of_any_kind_teach_a_student_of_the_same_kind(run):
    names = run("networks")
    teachers, student, digits = names["teachers"], names["student"], names["digits"]
    assert not any(parameter.requires_grad for parameter in teachers.parameters())
    taught = accuracy_of(predict(teachers, digits.test).logits, digits.test.labels)
    learnt = predict(student, digits.test)
    assert min(taught, accuracy_of(learnt.logits, learnt.labels)) > 0.85
    assert names["scores"]["acc"] == accuracy_of(learnt.logits, learnt.labels)
    assert learnt.members == 4
    assert learnt.mean_kld() > 0.005
    size, of_one = (sum(p.numel() for p in m.parameters()) for m in (student, names["networks"][0]))
    assert of_one < size < 2 * of_one


def test_a_perturbation_parts_the_teachers_by_a_step_of_its_size(run):
    names = run("perturbation")
    apart, teachers, digits, rng = (names[name] for name in ("apart", "teachers", "digits", "rng"))
    noise = Gaussian(apart.step_size)
    noisy = predict(teachers, digits.train, before=lambda x, y: noise(x, y, teachers, None, 4.0, rng))
    assert names["moved"].mean_kld() > 2 * noisy.mean_kld() > names["clean"].mean_kld()
    x = digits.train.images / 255
    moved = apart(x, digits.train.labels, teachers, None, 4.0, rng)
    assert moved.min() >= 0
    assert moved.max() <= 1
    assert 0 < (moved - x).square().mean((1, 2, 3)).sqrt().max() <= 1.001 * apart.step_size
    assert accuracy_of(names["seen"].logits, names["seen"].labels) > 0.85


SMALL = (
    "data.per_class=5 data.valid=50 members=2 seeds=[0] teachers.extra=0 teachers.epochs=1 student.epochs=1"
)


def recipe_of(table: str) -> Path:
    """A recipe in the current folder: the demo's, with these methods, and short."""
    text = shipped()["digits"].read_text(encoding="utf-8")
    Path("mine.toml").write_text(text.partition("[methods]")[0] + table, encoding="utf-8")
    return Path("mine.toml")


def test_a_module_beside_the_recipe_has_its_perturbations(tmp_path: Path):
    (table,) = re.findall(r"```toml\n(\[methods\]\nkd-dim.*?)```", TEXT, re.DOTALL)
    Path("mine.py").write_text(PROGRAMS["module"][0], encoding="utf-8")
    settings = [f"--set={key}" for key in SMALL.split()]
    command(main, "distill", str(recipe_of(table)), *settings, "--workers", "1")

    students = tmp_path / "runs" / "mine" / "students"
    said = {
        path.parts[-3]: json.loads(path.read_text())["spec"]["method"]
        for path in students.glob("*/0/done.json")
    }
    assert {name: method["step_size"] for name, method in said.items()} == {
        "kd-dim": 0,  # it takes no step
        "kd-checked": 24 / 255,
        "both": 24 / 255,
    }
    assert len({path.read_bytes() for path in students.glob("*/0/weights.safetensors")}) == 3
    mine = runpy.run_path("mine.py")
    x, rng = torch.rand(50, 1, 8, 8), torch.Generator().manual_seed(0)
    light = mine["Dim"]()(x, None, None, None, 4.0, rng) / x
    assert light.std((1, 2, 3)).max() < 1e-5
    assert 0.2 <= light.min() < 0.4 < 0.8 < light.max() <= 1 + 1e-6
    grey = torch.full((2, 3, 8, 8), 0.5)
    moved = (mine["Checked"](0.1)(grey, None, None, None, 4.0, rng) - grey) / 0.1
    naive = [[1.0 - 2 * ((i + j) % 2) for j in range(8)] for i in range(8)]
    torch.testing.assert_close(moved, torch.tensor(naive).expand(2, 3, 8, 8))


def test_a_student_is_its_members_and_what_is_saved_of_it(run):
    names = run("student")
    student, digits, seen = names["student"], names["digits"], names["seen"]
    assert accuracy_of(seen.logits, seen.labels) > 0.85
    assert seen.mean_kld() > 0.005

    x = torch.rand(4, 7, 1, 8, 8)
    of_others = x.clone()
    of_others[1:] = torch.rand(3, 7, 1, 8, 8)
    torch.testing.assert_close(student(of_others)[0], student(x)[0])
    again = names["Masked"](names["networks"][0], members=4)
    again.load_state_dict(student.state_dict())
    assert torch.equal(predict(again, digits.test).logits, seen.logits)


def test_a_form_builds_that_student_for_a_recipe():
    (snippet,) = re.findall(r"```py\n(from polyphony.recipe import FormTable.*?)```", TEXT, re.DOTALL)
    (table,) = re.findall(r"```toml\n(\[methods\]\nkd-masked.*?)```", TEXT, re.DOTALL)
    Path("masked.py").write_text(PROGRAMS["student"][0].split("torch.manual_seed")[0] + snippet)
    asked = read_recipe(recipe_of(table)).form("kd-masked")

    rng = torch.Generator().manual_seed(0)
    student = asked.build(resnet(8, classes=10, channels=1, rng=rng), 4, rng)
    assert student.masks.shape[-1] == 64
    assert (student.masks > 0).double().mean() == pytest.approx(0.7, abs=0.1)
    logits = student.eval()(torch.rand(4, 3, 1, 8, 8))
    assert not torch.isclose(logits[0], logits[1]).all()


def test_a_loss_of_ones_own_compares_logits(run):
    names = run("loss")
    teachers, student, digits = names["loss"].teachers, names["student"], names["digits"]
    x = digits.train.images[:6] / 255
    assignment = torch.arange(6).expand(4, 6)
    logits = student(x.expand(4, *x.shape)).detach()
    expected = sum(
        float((logits[j, i] - teachers(x[i : i + 1].expand(4, 1, *x.shape[1:]))[j, 0]).square().sum())
        for j in range(4)
        for i in range(6)
    ) / (4 * 6 * 10 * 4.0**2)
    assert float(names["loss"].imitation(logits, x, assignment)) == pytest.approx(expected, rel=1e-4)


def test_a_form_of_a_recipe_has_that_loss(tmp_path: Path):
    (form,) = re.findall(r"```py\n(from polyphony.recipe.forms.*?)```", TEXT, re.DOTALL)
    (table,) = re.findall(r"```toml\n(\[methods\]\nmatch.*?)```", TEXT, re.DOTALL)
    program = PROGRAMS["loss"][0].partition("torch.manual_seed")[0]
    Path("matching.py").write_text(f"{program}\n{form}", encoding="utf-8")
    settings = [f"--set={key}" for key in SMALL.split()]
    command(main, "distill", str(recipe_of(table)), *settings, "--workers", "1")
    assert (tmp_path / "runs" / "mine" / "students" / "match" / "0" / "done.json").is_file()


def test_files_are_a_data_set_by_their_path(run):
    run("files")
    (table,) = re.findall(r"```toml\n(\[data\].*?)```", TEXT, re.DOTALL)
    arrays, folder = load(tomllib.loads(table)["data"]["name"]), load("mine")
    grey = [(label, image * 3) for label, image in everything(arrays)]  # pictures are read as RGB
    assert len(grey) == 400
    assert everything(folder) == grey


def test_arrays_are_splits_that_can_be_learnt(run):
    names = run("arrays")
    assert everything(names["mine"]) == everything(load("digits"))
    assert accuracy_of(names["seen"].logits, names["seen"].labels) > 0.6


def test_a_named_data_set_has_splits_cache_and_commands(run, tmp_path: Path, capsys):
    splits, same = run("dataset")["splits"], load("digits", Options(per_class=20))
    for part in ("train", "valid", "test"):
        assert getattr(splits, part).fingerprint == getattr(same, part).fingerprint
    assert list((tmp_path / "cache").rglob("optdigits-*"))
    data = read_recipe("digits", ["data.name=optdigits"]).data
    assert len(load(data.name, data, tmp_path).test) == data.test
    command(main, "data", "check", "optdigits", "--data", str(tmp_path))
    assert "complete by its counts" in capsys.readouterr().out


def test_a_score_reads_what_a_study_saved(run):
    names = run("score")
    saved, digits = names["saved"], names["digits"]
    assert torch.equal(saved.logits, torch.stack([predict_alone(net, digits) for net in names["networks"]]))
    found = [
        any(int(saved.logits[j, i].argmax()) == int(label) for j in range(4))
        for i, label in enumerate(digits.test.labels)
    ]
    assert names["oracle"](saved.logits, saved.labels) == pytest.approx(sum(found) / len(found))
    assert sum(found) / len(found) > saved.scores()["acc"] > 0.7


def predict_alone(network: torch.nn.Module, splits: Splits) -> Tensor:
    """A network's logits on all test images, in the batches of `predict`. [n k]"""
    with torch.no_grad():
        return torch.cat([network(images / 255) for images in splits.test.images.split(250)])
