"""kind = "python": networks, forms and perturbations of the user's own, and their faults in words."""

from __future__ import annotations

import hashlib
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from polyphony.cli import main
from polyphony.distill.perturb import ODS, Chain, mixes_images
from polyphony.nn import MemberBatchNorm
from polyphony.recipe import Recipe, RecipeError, read_recipe, shipped
from polyphony.recipe.points import toml
from polyphony.recipe.python import PythonTable, report_user_errors
from polyphony.recipe.sources import changed_definition, copy_files, fingerprint

MODULE = """
from dataclasses import dataclass
from typing import ClassVar
from torch import nn
from polyphony.ensembles import BatchEnsemble
from polyphony.recipe import FormTable

def make(classes, channels, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, width), nn.ReLU(), nn.Linear(width, classes))

@dataclass(frozen=True)
class Through:
    needs_student: ClassVar[bool] = True
    step_size: float
    times: int = 1
    def __call__(self, x, y, teachers, student, temperature, rng):
        return x + self.times * self.step_size

def mixing():
    return Through(0.5)

mixing.mixes_images = True

class Normed(FormTable):
    def build(self, network, members, rng):
        return BatchEnsemble(network, members, rng=rng, member_norm=True)

number = 3
def three(**sizes):
    return 3

def broken(**sizes):
    raise OSError("no disk")
"""
OWN = {"own_parts", "raises_nets", "own_package", "own_blocks", "own_lib", "own_late"}
HELPERS = {  # what lies beside the module, and what of it the module imports
    "own_parts.py": "import json, own_blocks as b\ndef make(**_):\n    from own_lib.deep import late\n",
    "own_blocks.py": "import own_parts\nfrom own_lib import *\nwidth = 1\n",
    "own_lib/__init__.py": "from . import near\n",
    "own_lib/near.py": "from .sub.leaf import leaf\n",
    "own_lib/sub/leaf.py": "leaf = 1\n",
    "own_lib/deep/__init__.py": "",
    "own_lib/deep/late.py": "late = 1\n",
    "own_unused.py": "raise SystemExit\n",
    "own_lib/unused.py": "raise SystemExit\n",
}
NETWORK = 'teachers.network={ kind = "python", name = "own_parts:make", args = { width = 5 } }'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A recipe with its module beside it; nothing of it stays imported."""
    (tmp_path / "own.toml").write_text(shipped()["digits"].read_text(encoding="utf-8"))
    (tmp_path / "own_parts.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in OWN]:
        del sys.modules[name]


def read(folder: Path, *overrides: str) -> Recipe:
    return read_recipe(folder / "own.toml", overrides)


def perturbed(times: int = 1) -> str:
    return (
        f'methods.kd.perturb={{ kind = "python", name = "own_parts:Through", args = {{ times = {times} }} }}'
    )


def test_a_network_has_the_datas_sizes_and_depends_on_the_generator(folder):
    table = read(folder, NETWORK).teachers.network
    before = torch.get_rng_state()
    one, same, other = (table.build(10, 1, torch.Generator().manual_seed(s)).network for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert [type(layer) for layer in one] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
    assert (one[1].out_features, one[3].out_features) == (5, 10)
    assert torch.equal(one[1].weight, same[1].weight)
    assert not torch.equal(one[1].weight, other[1].weight)


def test_a_perturbation_gets_the_recipes_step_size_and_declares_its_needs(folder):
    recipe = read(folder, perturbed(3))
    assert recipe.methods["kd"].takes_step
    assert recipe.methods["kd"].needs_student
    assert not recipe.methods["kd"].perturb[0].takes_source
    perturbation = recipe.distillation("kd").perturbation(0.25)
    assert (perturbation.step_size, perturbation.times) == (0.25, 3)
    own = read(folder, perturbed(3).replace("times = 3", "step_size = 0.5"))
    assert not own.methods["kd"].takes_step
    assert own.distillation("kd").perturbation(0.25).step_size == 0.5
    chain = read(folder, perturbed().replace("={", "=[{").replace(" }", " }", 1) + ', "ods"]')
    perturbation = chain.distillation("kd").perturbation(0.25)
    assert isinstance(perturbation, Chain)
    assert perturbation.perturbations[1] == ODS(0.25)
    assert chain.methods["kd"].label == "Through+ods"


def test_a_function_may_say_that_its_perturbation_mixes_images(folder):
    recipe = read(folder, 'methods.kd.perturb=[{ kind = "python", name = "own_parts:mixing" }, "ods"]')
    assert recipe.methods["kd"].mixes_images
    first, _ = recipe.distillation("kd").perturbation(0.25).perturbations
    assert mixes_images(first)
    x, y = torch.rand(2, 1, 8, 8), torch.tensor([0, 1])
    assert torch.equal(first(x, y, None, None, 1.0, torch.Generator()), x + 0.5)


def test_a_form_is_the_users_own(folder):
    recipe = read(folder, 'methods.kd.form={ kind = "python", name = "own_parts:Normed" }')
    student = recipe.form("kd").build(recipe.teachers.network.build(10, 1), 2, None)
    assert any(isinstance(module, MemberBatchNorm) for module in student.modules())
    assert recipe.form_table("kd").label == "Normed"


def test_the_key_depends_on_the_modules_source_not_on_its_folder(folder, tmp_path_factory):
    first = read(folder, NETWORK).teachers.network.spec()
    assert first["args"] == {"width": 5}
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("own.toml", "own_parts.py"):
        (elsewhere / name).write_text((folder / name).read_text())
    assert read(elsewhere, NETWORK).teachers.network.spec() == first
    (elsewhere / "own_parts.py").write_text(MODULE.replace("nn.ReLU", "nn.Tanh"))
    sys.modules.pop("own_parts")
    assert read(elsewhere, NETWORK).teachers.network.spec() != first


@pytest.fixture
def helped(folder) -> PythonTable:
    """A module that imports others beside it, directly and through each other, at once and when called."""
    for name, text in HELPERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return PythonTable(kind="python", name="own_parts:make", folder=str(folder))


def test_the_files_are_those_that_python_imports(helped, folder):
    script = (
        "import sys, own_parts; own_parts.make();"
        "[print(getattr(module, '__file__', None)) for module in sys.modules.values()]"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    imported = {Path(line) for line in run.stdout.splitlines() if line.startswith(str(folder))}
    assert set(helped.files().values()) == imported
    assert PythonTable(kind="python", name="json:loads").files() == {}  # nor of what is installed
    assert PythonTable(kind="python", name="polyphony.nn:resnet").files() == {}  # also where it was written


def test_the_key_depends_on_imported_modules_of_the_same_folder(helped, folder):
    first = helped.spec()["source"]
    for name, text in HELPERS.items():
        (folder / name).write_text(f"{text}more = 1\n")
        assert (helped.spec()["source"] == first) is ("unused" in name), name
        (folder / name).write_text(text)
    assert helped.spec()["source"] == first
    (folder / "own_parts.py").write_text(MODULE)
    assert helped.first_version_source() == hashlib.sha256(MODULE.encode()).hexdigest()


def test_comments_layout_and_docstrings_do_not_change_the_key():
    text = "def make(classes):\n    return classes + 1\n"
    same = '"""Nets."""\n\n# one\ndef make(classes,):\n    """One more."""\n    return classes + 1  # two\n'
    assert fingerprint([text]) == fingerprint([same])
    assert fingerprint([text]) != fingerprint([text.replace("1", "2")])


def test_the_first_definition_that_differs_is_named(tmp_path):
    (tmp_path / "copy").mkdir()
    files = {"nets": tmp_path / "nets.py"}
    files["nets"].write_text("def make():\n    return 1\n\ndef other():\n    return 2\n")
    copy_files(files, tmp_path / "copy")
    assert changed_definition(files, tmp_path / "copy") is None
    files["nets"].write_text("# more\ndef make():\n    return 1\n\ndef other():\n    return 3\n")
    assert changed_definition(files, tmp_path / "copy") == "nets.py, 'other'"


def test_helpers_are_imported_from_the_modules_folder(tmp_path):
    for width, folder in enumerate((tmp_path / "one", tmp_path / "other"), 1):
        folder.mkdir()
        (folder / "own_parts.py").write_text("from own_blocks import width\nimport random")
        (folder / "own_blocks.py").write_text(f"width = {width}")
        (folder / "random.py").write_text("")  # is not put in the place of Python's own
    tables = [
        PythonTable(kind="python", name="own_parts:width", folder=str(tmp_path / name))
        for name in ("one", "other", "one")
    ]
    assert [table.load() for table in tables] == [1, 2, 1]
    assert sys.modules["random"] is random


@pytest.mark.parametrize("file", ["own_parts.py", "own_package/nets.py", "own_package/nets/__init__.py"])
@pytest.mark.parametrize("regular", [True, False])
def test_modules_are_imported_from_the_recipes_folder(tmp_path, file, regular):
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


def test_a_recipe_is_read_back_from_its_json(folder):
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
    output = capsys.readouterr().out
    assert '"name": "own_parts:Through"' in output
    assert '"perturb": "ods"' in output  # by name where there is no more to say
    assert "own_parts" not in sys.modules


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere:make", "'nowhere' cannot be imported (ModuleNotFoundError: No module named 'nowhere')"),
        ("own_parts.py:make", "cannot be imported: name the module without '.py' (ModuleNotFoundError: "),
        ("own_parts:mak", "'own_parts:mak' is not there: the module has no 'mak'"),
        ("own_parts:number", "'own_parts:number' failed (TypeError: 'int' object is not callable)"),
        ("own_parts:broken", "'own_parts:broken' failed (OSError: no disk)"),
        ("own_parts:three", "'own_parts:three' makes a int, not a torch.nn.Module"),
    ],
)
def test_a_network_that_cannot_be_made_is_one_sentence(folder, name, sentence):
    table = read(folder, NETWORK.replace("own_parts:make", name).replace("width = 5", "")).teachers.network
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        table.build(10, 1)


@pytest.mark.parametrize("name", ["make", "own_parts:", "own parts:make", "os.system('x'):y", ""])
def test_invalid_names_of_code_are_rejected(folder, name):
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
    ("what", "message", "workers"),
    [
        ("sys.exit(0)", "raised SystemExit: 0", "1"),
        ("sys.exit(0)", "raised SystemExit: 0", "2"),
        ("raise ValueError('boom\\n' * 99)", "raised ValueError: boom", "1"),
        ("self.forward(x)", "raised RecursionError: maximum recursion depth", "1"),
    ],
)
def test_a_network_that_fails_in_training_is_one_sentence_with_the_line(
    folder, capsys, what, message, workers
):
    (folder / "raises_nets.py").write_text(RAISES)
    (folder / "run").mkdir()  # where there is one, what it will cost is not measured
    network = {"kind": "python", "name": "raises_nets:Bad", "args": {"what": what}}
    options = ["--set", f"teachers.network={toml(network)}", "--out", str(folder / "run")]
    with pytest.raises(SystemExit, match="2"):
        main(["teach", str(folder / "own.toml"), *options, "--workers", workers, "--device", "cpu"])
    (line_of_error,) = [
        line for line in capsys.readouterr().err.splitlines() if "runs code of its own" not in line
    ]
    assert f"raises_nets.py, line 12, {message}" in line_of_error


def test_the_line_of_an_error_may_be_in_an_imported_module(folder):
    (folder / "raises_nets.py").write_text("from own_blocks import Bad")
    (folder / "own_blocks.py").write_text(RAISES)
    table = read(folder, 'teachers.network={ kind = "python", name = "raises_nets:Bad" }').teachers.network
    network = table.make(classes=2, channels=1, what="raise ValueError('boom')")
    with (
        pytest.raises(RecipeError, match=r"own_blocks\.py, line 12, raised ValueError: boom"),
        report_user_errors(),
    ):
        network(torch.zeros(1, 1, 8, 8))
    (folder / "own_blocks.py").write_text("def")
    del sys.modules["own_blocks"], sys.modules["raises_nets"]
    with pytest.raises(RecipeError, match=r"'raises_nets' cannot be imported \(SyntaxError.*own_blocks\.py"):
        table.spec()


def test_a_network_that_exits_in_its_test_is_one_sentence(folder):
    (folder / "raises_nets.py").write_text(RAISES)
    table = read(folder, 'teachers.network={ kind = "python", name = "raises_nets:exits" }').teachers.network
    with pytest.raises(RecipeError, match=r"'exits' cannot take images of 1 × 8 × 8 \(SystemExit: 0\)"):
        table.fitted(10, (1, 8, 8))
