"""kind = "python": networks, forms and perturbations of the user's own, and their faults in words."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from polyphony.cli import main
from polyphony.nn import MemberBatchNorm
from polyphony.perturb import ODS, Chain
from polyphony.recipe import Recipe, RecipeError, Surroundings, read_recipe, shipped
from polyphony.recipe.points import toml
from polyphony.recipe.python import PythonTable

MODULE = """
from dataclasses import dataclass
from typing import ClassVar
from torch import nn
from polyphony.ensembles import BatchEnsemble
from polyphony.perturb import Traits
from polyphony.recipe import FormTable

def make(classes, channels, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, width), nn.ReLU(), nn.Linear(width, classes))

@dataclass(frozen=True)
class Through:
    traits: ClassVar[Traits] = Traits(takes_step=True, needs_student=True)
    step_size: float
    student: object
    times: int = 1
    def __call__(self, x, y, teachers, temperature, rng):
        return x + self.times * self.step_size

class Normed(FormTable):
    def build(self, network, members, rng):
        return BatchEnsemble(network, members, rng=rng, member_norm=True)

number = 3
def three(**given):
    return 3

def broken(**given):
    raise OSError("no disk")
"""
NETWORK = 'teachers.network={ kind = "python", name = "own_parts:make", args = { width = 5 } }'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A recipe with its module beside it; nothing of it stays imported."""
    (tmp_path / "own.toml").write_text(shipped()["digits"].read_text(encoding="utf-8"))
    (tmp_path / "own_parts.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("own_parts", "raises_nets", "own_package", "own_package.nets"):
        sys.modules.pop(name, None)


def read(folder: Path, *overrides: str) -> Recipe:
    return read_recipe(folder / "own.toml", overrides)


def perturbed(times: int = 1) -> str:
    return (
        f'methods.kd.perturb={{ kind = "python", name = "own_parts:Through", args = {{ times = {times} }} }}'
    )


def test_a_network_is_made_for_the_data_and_by_the_stream_it_is_given(folder):
    table = read(folder, NETWORK).teachers.network
    before = torch.get_rng_state()
    one, same, other = (table.build(10, 1, torch.Generator().manual_seed(s)).network for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert [type(layer) for layer in one] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
    assert (one[1].out_features, one[3].out_features) == (5, 10)
    assert torch.equal(one[1].weight, same[1].weight)
    assert not torch.equal(one[1].weight, other[1].weight)


def test_a_perturbation_is_made_with_what_its_traits_ask_for(folder):
    recipe = read(folder, perturbed(3))
    assert recipe.methods["kd"].takes_step
    assert recipe.methods["kd"].needs_student
    student = object()
    made = recipe.distillation("kd").perturbation(Surroundings(0.25, student))
    assert (made.step_size, made.student, made.times) == (0.25, student, 3)
    chain = read(folder, perturbed().replace("={", "=[{").replace(" }", " }", 1) + ', "ods"]')
    made = chain.distillation("kd").perturbation(Surroundings(0.25, student))
    assert isinstance(made, Chain)
    assert made.perturbations[1] == ODS(0.25)
    assert chain.methods["kd"].label == "Through+ods"


def test_a_form_is_the_users_own(folder):
    recipe = read(folder, 'methods.kd.form={ kind = "python", name = "own_parts:Normed" }')
    student = recipe.form("kd").build(recipe.teachers.network.build(10, 1), 2, None)
    assert any(isinstance(module, MemberBatchNorm) for module in student.modules())
    assert recipe.form_table("kd").label == "Normed"


def test_what_the_module_says_is_part_of_the_key_and_where_it_lies_is_not(folder, tmp_path_factory):
    first = read(folder, NETWORK).teachers.network.spec()
    assert first["args"] == {"width": 5}
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("own.toml", "own_parts.py"):
        (elsewhere / name).write_text((folder / name).read_text())
    assert read(elsewhere, NETWORK).teachers.network.spec() == first
    (elsewhere / "own_parts.py").write_text(MODULE.replace("nn.ReLU", "nn.Tanh"))
    sys.modules.pop("own_parts")
    assert read(elsewhere, NETWORK).teachers.network.spec() != first


@pytest.mark.parametrize("file", ["own_parts.py", "own_package/nets.py", "own_package/nets/__init__.py"])
@pytest.mark.parametrize("regular", [True, False])
def test_of_modules_of_one_name_it_is_the_one_beside_the_recipe(tmp_path, file, regular):
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for width, folder in enumerate((tmp_path / "one", tmp_path / "other"), 1):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text(f"width = {width}")
        if regular:
            (folder / file).with_name("__init__.py").touch()
    tables = [
        PythonTable(kind="python", name=f"{module}:width", folder=str(tmp_path / name))
        for name in ("one", "other", "one")
    ]
    assert [table.load() for table in tables] == [1, 2, 1]
    assert tables[2].module() is tables[2].module()  # and is not imported again for nothing


def test_a_recipe_comes_back_from_its_json(folder):
    recipe = read(folder, NETWORK, perturbed(2))
    assert Recipe.model_validate_json(recipe.model_dump_json(exclude_none=True), strict=True) == recipe


def test_without_code_nothing_is_imported(folder):
    (folder / "own_parts.py").write_text("raise SystemExit('run')")
    recipe = read_recipe(folder / "own.toml", [NETWORK, perturbed()], code=False)
    assert "own_parts" not in sys.modules
    assert recipe.teachers.network.label == "make"
    with pytest.raises(RecipeError, match="'own_parts' cannot be imported \\(SystemExit: run\\)"):
        read(folder, perturbed())


def test_a_recipe_is_printed_without_its_code(folder, capsys):
    (folder / "own_parts.py").unlink()
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["show", str(folder / "own.toml"), "--no-code", "--set", perturbed(times=2)])
    shown = capsys.readouterr().out
    assert '"name": "own_parts:Through"' in shown
    assert '"perturb": "ods"' in shown  # by name where there is no more to say
    assert "own_parts" not in sys.modules


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere:make", "'nowhere' cannot be imported (ModuleNotFoundError: No module named 'nowhere')"),
        ("own_parts:mak", "'own_parts:mak' is not there: the module has no 'mak'"),
        ("own_parts:number", "'own_parts:number' raised TypeError: 'int' object is not callable"),
        ("own_parts:broken", "'own_parts:broken' raised OSError: no disk"),
        ("own_parts:three", "'own_parts:three' makes a int, not a torch.nn.Module"),
    ],
)
def test_a_network_that_cannot_be_made_is_one_sentence(folder, name, sentence):
    table = read(folder, NETWORK.replace("own_parts:make", name).replace("width = 5", "")).teachers.network
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        table.build(10, 1)


@pytest.mark.parametrize("name", ["make", "own_parts:", "own parts:make", "os.system('x'):y", ""])
def test_a_name_is_a_module_and_what_is_in_it(folder, name):
    with pytest.raises(RecipeError, match=r"teachers\.network\.name"):
        read(folder, NETWORK.replace("own_parts:make", name))


RAISES = """
import sys
from torch import nn

class Bad(nn.Module):
    def __init__(self, classes, channels, what):
        super().__init__()
        self.layers, self.what = nn.Sequential(nn.Flatten(), nn.Linear(channels * 64, classes)), what

    def forward(self, x):
        if self.training:
            exec(self.what)
        return self.layers(x)

def exits(classes, channels):
    class Exits(Bad):
        def forward(self, x): sys.exit(0)
    return Exits(classes, channels, "")
"""


@pytest.mark.parametrize(
    ("what", "said", "workers"),
    [
        ("sys.exit(0)", "raised SystemExit: 0", "1"),
        ("sys.exit(0)", "raised SystemExit: 0", "2"),
        ("raise ValueError('boom\\n' * 99)", "raised ValueError: boom", "1"),
        ("self.forward(x)", "raised RecursionError: maximum recursion depth", "1"),
    ],
)
def test_a_network_that_fails_amid_its_training_is_one_sentence_with_the_line(
    folder, capsys, what, said, workers
):
    (folder / "raises_nets.py").write_text(RAISES)
    (folder / "run").mkdir()  # where there is one, what it will cost is not measured
    network = {"kind": "python", "name": "raises_nets:Bad", "args": {"what": what}}
    given = ["--set", f"teachers.network={toml(network)}", "--out", str(folder / "run")]
    with pytest.raises(SystemExit, match="2"):
        main(["teach", str(folder / "own.toml"), *given, "--workers", workers, "--device", "cpu"])
    found = capsys.readouterr().err
    assert f"raises_nets.py, line 12, {said}" in found
    assert found.count("\n") == 1


def test_a_network_that_exits_when_it_is_tried_is_one_sentence(folder):
    (folder / "raises_nets.py").write_text(RAISES)
    table = read(folder, 'teachers.network={ kind = "python", name = "raises_nets:exits" }').teachers.network
    with pytest.raises(RecipeError, match=r"'exits' cannot take images of 1 × 8 × 8 \(SystemExit: 0\)"):
        table.fitted(10, (1, 8, 8))
