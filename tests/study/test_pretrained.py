"""Pretrained teachers: checked and distilled, or rejected before anything is trained."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyphony import Options, load, load_student, predict
from polyphony.cli import main, sweep
from polyphony.cli.study import announce
from polyphony.data import DataError, files, pixels
from polyphony.execute.runner import Here
from polyphony.nn.weights import WeightsError
from polyphony.recipe import RecipeError, read_recipe
from polyphony.recipe.points import plan_sweep
from polyphony.runs.store import ChangedError
from polyphony.study.evaluation import check_trained
from polyphony.study.fingerprints import weights_hash
from polyphony.study.plan import Upto
from polyphony.study.pretrained import choices_of_weights, refuse_unfit, swapped
from polyphony.study.provenance import open_study
from polyphony.study.run import run_study
from polyphony.study.study import Study
from polyphony.study.trainings import TrainStudent
from polyphony.sweep.run import Sweep

MODULE = """
from torch import nn

class Mine(nn.Module):
    def __init__(self, classes, channels, width):
        super().__init__()
        self.conv, self.out = nn.Conv2d(channels, width, 3), nn.Linear(width * 36, classes)

    def forward(self, x):
        return {"logits": self.out(self.conv(x).relu().flatten(1))}

def make(classes, channels, width=6):
    return Mine(classes, channels, width)

def one_image(classes, channels):
    return Mine(classes, 1, 6)

def two(classes, channels):
    return Mine(2, channels, 6)

def pooled(classes, channels):
    return nn.Sequential(nn.ConvTranspose2d(channels, classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""
RECIPE = """
members = 2
[data]
name = "digits"
per_class = 10
valid = 200
test = 100
augment = { pad = 0, flip = false }
[teachers]
network = { kind = "python", name = "outside_nets:make", mean = [0.5], std = [0.25] }
weights = ["a.pt", "b.safetensors"]
[student]
epochs = 1
batch = 25
learning_rate = 0.05
[methods]
scratch = {}
kd = { perturb = "clean" }
"""
FORMS = (
    "batch_ensemble",
    "mimo",
    "hydra",
    "latent_be",
    "single",
    "dirichlet",
    "proxy_dirichlet",
    "separate",
    "low_rank",
    "dlf",
)
OF_ALL_FORMS = ", ".join(f"{form} = {{ perturb = 'clean', form = '{form}' }}" for form in FORMS)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A recipe, its module, and two networks trained by a loop that knows nothing of Polyphony."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "outside_nets.py").write_text(MODULE)
    (tmp_path / "own.toml").write_text(RECIPE)
    names: dict = {}
    exec(MODULE, names)
    digits = load("digits", Options(per_class=10, valid=200, test=100))
    x, y = (pixels(digits.train.images) - 0.5) / 0.25, digits.train.labels
    for j, name in enumerate(("a.pt", "b.safetensors")):
        torch.manual_seed(j)
        net = names["make"](10, 1)
        optimiser = torch.optim.Adam(net.parameters(), 0.01)
        for _ in range(25):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x)["logits"], y).backward()
            optimiser.step()
        save(net.state_dict(), tmp_path / name)
    yield tmp_path
    for name in ("outside_nets", "outside_blocks"):
        sys.modules.pop(name, None)


def save(weights: dict, path: Path) -> None:
    if path.suffix == ".pt":
        torch.save({"model": {f"module.{name}": value for name, value in weights.items()}}, path)
    else:
        from safetensors.torch import save_file

        save_file(weights, path)


class Board:
    """Names of jobs as they end."""

    def __init__(self):
        self.names: list[str] = []

    def started(self, name, epochs): ...
    def step(self, name, done, steps, row): ...
    def epoch(self, name, row): ...
    def warn(self, name, sentence): ...
    def finished(self, name):
        self.names.append(name)


def run(folder: Path, *overrides: str, name: str = "run", **how: Any) -> list[str]:
    study, board = Study(read_recipe(folder / "own.toml", overrides), folder / name), Board()
    run_study(study, Here(1), board, **how)
    return board.names


def test_they_are_kept_with_the_run_and_teach_a_student(folder):
    names = run(folder)
    assert names.index("teacher 1") < min(names.index("kd, seed 0"), names.index("scratch, seed 0"))
    done = json.loads((folder / "run" / "teachers" / "0" / "done.json").read_text())
    assert done["spec"]["kind"] == "given teacher"
    study = Study(read_recipe(folder / "own.toml"), folder / "run")
    teachers = study.load_teachers(2)
    digits = study.data()
    right = teachers(pixels(digits.test.images).expand(2, -1, -1, -1, -1)).argmax(-1) == digits.test.labels
    assert right.double().mean() > 0.7
    assert "teachers" in (folder / "run" / "scores.csv").read_text()
    assert run(folder) == []  # all is there
    network = torch.load(folder / "a.pt")["model"]
    torch.save({name: value + 0.01 for name, value in network.items()}, folder / "a.pt")
    with pytest.raises(Exception, match=re.escape("was made with another weights")):
        run(folder)


def test_pretrained_teachers_and_their_students_are_linked_from_another_run(folder):
    run(folder)
    methods = "methods={kd = {perturb = 'clean'}, kd-ods = {perturb = 'ods', step_size = 'search'}}"
    for name, trained in {"second": ["kd-ods, step size", "kd-ods, seed 0"], "third": []}.items():
        jobs = run(folder, methods, name=name)
        assert [each for each in jobs if not each.startswith("predict")] == trained


def test_a_student_of_another_network_depends_on_what_its_teachers_do_with_their_weights(folder, jobs_of):
    def spec(*overrides: str) -> dict[str, Any]:
        study = Study(read_recipe(folder / "own.toml", overrides), folder / "run")
        return jobs_of(study)["kd, seed 0"].result.spec

    small, turned = "student.network={kind='resnet', depth=8}", "teachers.network.mean=[0.4]"
    assert spec(small) != spec(small, turned)
    assert spec(small)["network"] == spec(small, turned)["network"]


def test_classes_in_another_order_are_noticed(folder):
    weights = torch.load(folder / "a.pt")["model"]
    turned = torch.arange(10).roll(1)
    for name in ("module.out.weight", "module.out.bias"):
        weights[name] = weights[name][turned]
    torch.save(weights, folder / "a.pt")
    with pytest.raises(WeightsError, match="it has the classes in another order"):
        run(folder)
    assert not list((folder / "run").rglob("weights.safetensors")), "something was trained"


def test_copies_of_one_network_are_no_two_teachers(folder):
    weights = torch.load(folder / "a.pt")["model"]
    torch.save({name.removeprefix("module."): value for name, value in weights.items()}, folder / "c.pt")
    assert (folder / "a.pt").read_bytes() != (folder / "c.pt").read_bytes()
    with pytest.raises(RecipeError, match=r"c\.pt holds the same weights as .*a\.pt; the networks"):
        run(folder, 'teachers.weights=["a.pt", "c.pt"]')
    copied = {
        name: nn.Parameter(value.to(memory_format=torch.channels_last) if value.dim() == 4 else value, False)
        for name, value in weights.items()
    }
    torch.save(copied, folder / "d.pt")
    with pytest.raises(RecipeError, match=r"d\.pt holds the same weights as .*a\.pt; the networks"):
        run(folder, 'teachers.weights=["a.pt", "d.pt"]')
    with pytest.raises(RecipeError, match=r"a\.pt is listed twice"):
        run(folder, 'teachers.weights=["a.pt", "a.pt"]')
    assert not list((folder / "run").rglob("weights.safetensors")), "something was trained"


def test_init_says_which_set_of_weights_it_uses(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    weights = torch.load("a.pt")["model"]
    scaled = {name: 1.1 * value for name, value in weights.items()}
    torch.save({"model": weights, "ema": {"shadow": scaled}}, "a.pt")
    torch.save({"model": {name: 1.2 * value for name, value in weights.items()}}, "c.pt")
    init = ("digits", "--network", "outside_nets:make", "--mean", "0.5", "--std", "0.25", "--minutes", "0.01")
    for paths, is_said in ((("a.pt", "c.pt"), True), (("a.pt#model", "a.pt#ema.shadow"), False)):
        with pytest.raises(SystemExit) as end:
            main(["init", *init, *paths, "--out", f"own{is_said}.toml"])
        assert not end.value.code
        line = "a.pt: using the weights under 'model'; also in the file: 'ema.shadow'. To use others, write"
        assert (f"{line} a.pt#ema.shadow.\n" in capsys.readouterr().out) == is_said


def test_files_with_the_same_sets_of_weights_share_a_line(tmp_path):
    paths = [tmp_path / f"{j}.pt" for j in range(3)]
    for path in paths[:2]:
        torch.save({"state_dict": {"w": torch.ones(1)}, "ema_state_dict": {"w": torch.ones(1)}}, path)
    torch.save({"w": torch.ones(1)}, paths[2])
    assert choices_of_weights({path: path.name for path in paths}) == [
        "0.pt and 1.pt: using the weights under 'state_dict'; also in the file: 'ema_state_dict'."
        f" To use others, write {paths[0]}#ema_state_dict."
    ]


@pytest.mark.parametrize("odd", ["sparse", "without numbers", "conjugated"])
def test_weights_that_are_no_plain_numbers_are_one_sentence(folder, odd):
    weights = torch.load(folder / "a.pt")["model"]
    name = next(name for name, value in weights.items() if value.dim() == 2)
    weights[name] = {
        "sparse": weights[name].to_sparse(),
        "without numbers": torch.empty_like(weights[name], device="meta"),
        "conjugated": weights[name].to(torch.complex64).conj(),
    }[odd]
    torch.save(weights, folder / "a.pt")
    with pytest.raises(WeightsError, match="is not a plain tensor of real numbers"):
        run(folder)


@pytest.fixture
def turned(folder) -> tuple[str, str]:
    """Overrides for digits, and for the same images with their classes in another order."""
    digits = load("digits", Options(valid=200, test=100)).train
    for name, step in (("right", 0), ("turned", 1)):
        np.savez(folder / f"{name}.npz", images=digits.images, labels=(digits.labels + step) % 10)
    return f"data.name={folder / 'right.npz'}", f"data.name={folder / 'turned.npz'}"


def test_they_are_judged_again_where_the_images_are_others(folder, turned):
    right, wrong = turned
    run(folder, right, upto=Upto.TEACH)
    with pytest.raises(ChangedError, match="teachers/0 was made with another valid"):
        run(folder, wrong, upto=Upto.TEACH)
    with pytest.raises(WeightsError, match="it has the classes in another order"):
        run(folder, wrong, upto=Upto.TEACH, redo=True)


def test_classes_in_the_order_of_their_digits_are_noticed_although_some_agree():
    classes = sorted(map(str, range(12)))  # "0", "1", "10", "11", "2", …
    labels = torch.arange(12).repeat_interleave(20)
    answers = torch.tensor([int(name) for name in classes])[labels]
    answers[::20] = 0  # one in twenty is wrong
    with pytest.raises(WeightsError, match=r"another order \(it answers '8' for '10'\)"):
        refuse_unfit(answers, labels, classes, Path("a.pt"))
    mostly_right = torch.where(torch.arange(240) % 2 == 0, labels, answers)
    refuse_unfit(mostly_right, labels, classes, Path("a.pt"))


def swap(labels: torch.Tensor, names: dict[int, int], share: float) -> torch.Tensor:
    """The labels, with this share of the images of some classes called by other names."""
    drawn = torch.rand(len(labels), generator=torch.Generator().manual_seed(0)) < share
    renamed = torch.tensor([names.get(each, each) for each in labels.tolist()])
    return torch.where(drawn, renamed, labels)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({3: 7, 7: 3}, "it answers 'h' for 'd' and 'd' for 'h'); order its outputs"),
        ({1: 4, 4: 6, 6: 1}, "it answers 'e' for 'b', 'g' for 'e' and 'b' for 'g'); order its outputs"),
    ],
)
@pytest.mark.parametrize(("images", "share"), [(5, 1.0), (40, 0.8)])
def test_a_few_swapped_classes_among_many_are_named(names, said, images, share):
    labels = torch.arange(12).repeat(images)
    with pytest.raises(WeightsError, match=re.escape(said)):
        refuse_unfit(swap(labels, names, share), labels, "abcdefghijkl", Path("a.pt"))


def test_swapped_classes_of_a_poor_network_are_named():
    """The network calls half of one class by the other's name, and hardly any by its own."""
    labels = torch.arange(6).repeat_interleave(80)
    answers = labels.clone()
    answers[80:160] = torch.tensor([3] * 57 + [1] * 5 + [0] * 18)
    answers[240:320] = torch.tensor([1] * 40 + [3] * 2 + [5] * 38)
    with pytest.raises(WeightsError, match="most often it answers 'd' for 'b' and 'b' for 'd'"):
        refuse_unfit(answers, labels, "abcdef", Path("a.pt"))


@pytest.mark.parametrize(
    ("names", "images", "share"),
    [
        ({3: 7}, 40, 1.0),  # confused one way
        ({3: 7, 7: 3}, 40, 0.5),  # that nobody can tell apart
        ({3: 7, 7: 3}, 4, 1.0),  # of too few images
        ({2: 3, 3: 7, 8: 7}, 40, 0.9),
    ],
)
def test_classes_that_are_confused_are_not_called_swapped(names, images, share):
    labels = torch.arange(12).repeat(images)
    refuse_unfit(swap(labels, names, share), labels, "abcdefghijkl", Path("a.pt"))


def test_classes_called_by_each_others_names_a_little_more_often_than_not_are_not_called_swapped():
    labels = torch.arange(12).repeat_interleave(40)
    answers = labels.clone()
    for one, other in ((3, 7), (7, 3)):
        answers[40 * one : 40 * one + 24] = other  # 24 of 40, which chance may do
    refuse_unfit(answers, labels, "abcdefghijkl", Path("a.pt"))


def test_honest_teachers_however_bad_have_no_swapped_classes():
    """Networks of few steps on few images, half of whose labels are wrong."""
    digits = load("digits", Options(per_class=10, valid=400, test=100))
    x, seen = pixels(digits.train.images).flatten(1), pixels(digits.valid.images).flatten(1)
    for seed in range(30):
        torch.manual_seed(seed)
        noise = torch.where(torch.rand(100) < 0.5, digits.train.labels, torch.randint(10, (100,)))
        net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        optimiser = torch.optim.Adam(net.parameters(), 0.01)
        for _ in range(seed):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x), noise).backward()
            optimiser.step()
        assert swapped(net(seen).argmax(-1), digits.valid.labels, 10) == []


def test_a_swap_in_a_trained_network_is_noticed(folder):
    weights = torch.load(folder / "a.pt")["model"]
    for name in ("module.out.weight", "module.out.bias"):
        weights[name][[2, 6]] = weights[name][[6, 2]]
    torch.save(weights, folder / "a.pt")
    with pytest.raises(WeightsError, match="it answers '6' for '2' and '2' for '6'"):
        run(folder)


def test_an_order_that_a_few_images_would_fit_by_chance_is_no_fault():
    labels = torch.arange(100)
    answers = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    answers[::5] = labels[::5]  # right on a fifth, where chance is a hundredth
    refuse_unfit(answers, labels, list(map(str, range(100))), Path("a.pt"))


@pytest.mark.parametrize(("rare", "n"), [(4, 40), (8, 80), (8, 800), (4, 9)])
def test_a_perfect_teacher_is_taken_however_rare_a_class_is(rare, n):
    labels = (torch.arange(n) < rare).long()
    refuse_unfit(labels, labels, ["a", "b"], Path("a.pt"))
    with pytest.raises(WeightsError, match="and chance is"):
        refuse_unfit(torch.zeros_like(labels), labels, ["a", "b"], Path("a.pt"))


def test_weights_under_a_key_of_a_file_are_a_teacher(folder):
    weights = torch.load(folder / "a.pt", weights_only=True)["model"]
    halves = {name: value / 2 for name, value in weights.items()}
    torch.save({"model": halves, "ema": weights}, folder / "a.pt")
    picked = ("methods={scratch={}}", "teachers.weights=['a.pt#ema', 'b.safetensors']")
    run(folder, *picked)
    kept = Study(read_recipe(folder / "own.toml", picked), folder / "run").load_teachers(1).networks[0]
    assert torch.equal(kept.network.out.bias, weights["module.out.bias"])
    assert weights_hash(folder / "a.pt#ema") != weights_hash(folder / "a.pt")
    (folder / "a.pt").unlink()
    assert run(folder, *picked) == []


def test_the_runs_copy_stands_for_a_file_that_is_gone(folder):
    run(folder, "methods={scratch={}}")
    kept = {path: path.read_bytes() for path in (folder / "run" / "teachers").rglob("*.safetensors")}
    (folder / "a.pt").unlink()
    check_trained(open_study(folder / "run", None, "cpu"))
    assert run(folder, "methods={scratch={}}") == []
    with pytest.raises(DataError, match=r"a\.pt cannot be read"):
        run(folder, "methods={scratch={}}", "teachers.network.mean=[0.4]", redo=True)
    assert {path: path.read_bytes() for path in kept} == kept


@pytest.mark.parametrize("edited", ["outside_nets.py", "outside_blocks.py"])
def test_a_student_answers_with_the_code_it_was_trained_with(folder, edited):
    (folder / "outside_nets.py").write_text("from outside_blocks import *")
    (folder / "outside_blocks.py").write_text(MODULE)
    run(folder, "methods={scratch={}}")
    images = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    before = load_student(folder / "run").predict(images).probabilities
    with (folder / edited).open("a") as file:
        file.write("\n# a comment changes nothing\n")
    assert run(folder, "methods={scratch={}}") == []
    with (folder / edited).open("a") as file:
        file.write("\nMine.forward = lambda self, x: self.out(self.conv(x).tanh().flatten(1))\n")
    for name in ("outside_nets", "outside_blocks"):
        sys.modules.pop(name, None)
    assert torch.equal(load_student(folder / "run").predict(images).probabilities, before)
    sentence = rf"another network\.source .*; changed since: {edited}, statements outside of functions"
    with pytest.raises(ChangedError, match=sentence):
        run(folder, "methods={scratch={}}")


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "teachers.network.args={ width = 7 }",
            "'conv.weight' is [6, 1, 3, 3], but the network's is [7, 1, 3, 3]",
        ),
        ("teachers.network.mean=[40.0]", "and chance is"),
    ],
)
def test_a_teacher_that_does_not_fit_is_one_sentence(folder, override, sentence):
    with pytest.raises(WeightsError, match=re.escape(sentence)):
        run(folder, override)


def test_they_teach_students_of_every_form_which_networks_allow(folder):
    names = run(folder, f"methods={{ {OF_ALL_FORMS} }}")
    assert {f"{form}, seed 0" for form in FORMS} < set(names)
    rows = list(csv.DictReader((folder / "run" / "scores.csv").read_text().splitlines()))
    on_test = {row["model"]: float(row["nll"]) for row in rows if row["split"] == "test"}
    assert set(on_test) == {"teachers", "best teacher", *FORMS}
    assert all(nll < math.log(10) for form, nll in on_test.items() if form != "mimo"), on_test


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("teachers.network.size=12", "'make' cannot take images of 1 × 8 × 8 (RuntimeError: "),
        ("methods.kd.form=mimo", "'one_image' cannot take images of 2 × 8 × 8 (RuntimeError: "),
        ("teachers.network.name=outside_nets:two", "answers 2 images with [2, 2], not with [2, 10]"),
        ("teachers.network.name=outside_nets:pooled", "own: methods.kd: no members for layer 'network.0' (t"),
        (
            "methods.kd.form={ kind = 'hydra', head = 'fc' }",
            "the network has no layer 'fc' to replace by heads",
        ),
    ],
)
def test_a_network_that_does_not_fit_is_one_sentence(folder, override, sentence):
    of_one = ["teachers.network.name=outside_nets:one_image"] if override.endswith("mimo") else []
    study = Study(read_recipe(folder / "own.toml", [override, *of_one]), folder / "run")
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        study.blank_student("kd")


def test_weights_of_any_size_have_a_hash(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 10)
    (tmp_path / "a.pt").write_bytes(b"more than ten bytes")
    assert weights_hash(tmp_path / "a.pt") == hashlib.sha256(b"more than ten bytes").hexdigest()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("members=3", "teachers.weights has 2 entries, but members are 3"),
        ("teachers.extra=1", "members and extra teachers together are 3"),
        ("teachers.epochs=3", "teachers has no key 'epochs'"),
        ("teachers.networks=[{ kind = 'resnet', depth = 8 }]", "give network, one for all teachers"),
    ],
)
def test_numbers_that_do_not_agree_are_one_sentence(folder, override, sentence):
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        read_recipe(folder / "own.toml", [override])


def test_each_teacher_may_have_a_network_of_its_own(folder):
    text = RECIPE.replace(
        'network = { kind = "python", name = "outside_nets:make", mean = [0.5], std = [0.25] }',
        """networks = [{ kind = "python", name = "outside_nets:make", mean = [0.5], std = [0.25] },
                       { kind = "python", name = "outside_nets:make", args = { width = 9 } }]""",
    )
    (folder / "own.toml").write_text(text)
    with pytest.raises(RecipeError, match=r"student\.network is required"):
        read_recipe(folder / "own.toml")
    network = "student.network={ kind = 'resnet', depth = 8, width = 4 }"
    recipe = read_recipe(folder / "own.toml", [network])
    study = Study(recipe, folder / "run")
    built = [study.network(recipe.teachers.network_of(j)) for j in range(2)]
    assert [net.network.conv.out_channels for net in built] == [6, 9]


@pytest.mark.parametrize("kind", ["batch_ensemble", "hydra"])
def test_a_student_that_starts_from_a_teacher_has_its_weights_times_the_papers_factors(folder, kind):
    run(folder, "methods={scratch={}}")
    recipe = read_recipe(folder / "own.toml", ["student.start=teacher", f"student.form={kind}"])
    study = Study(recipe, folder / "run")
    student = study.fresh_student("kd", torch.Generator().manual_seed(0))
    taught = study.load_teachers(1).networks[0].network.out.weight
    weights = torch.stack([student.member(j).network.out.weight for j in range(2)])
    if kind == "hydra":
        factors = (weights / taught).flatten()
    else:
        layer = student.network.network.out
        assert torch.equal(layer.shared.weight, taught)
        factors = torch.cat([layer.r.flatten(), layer.s.flatten()])
    assert abs(float(factors.detach().mean()) - 1) < 0.1
    assert abs(float(factors.detach().std()) - 0.5) < 0.1


def test_where_a_student_starts_is_part_of_its_key(folder, jobs_of):
    run(folder, "methods={scratch={}}")
    small = "student.form={ kind = 'batch_ensemble', factor_std = 0.02 }"
    changes = [[], ["student.start=teacher"], ["student.start=teacher", small], [small]]
    recipes = [read_recipe(folder / "own.toml", change) for change in changes]
    assert len({jobs_of(Study(recipe, folder / "run"))["kd, seed 0"].key for recipe in recipes}) == 4


def test_a_method_may_have_a_start_of_its_own(folder, jobs_of):
    run(folder, "methods={scratch={}}")
    methods = "methods={ born = { perturb = 'clean', start = 'teacher' }, kd = { perturb = 'clean' } }"
    mixed = Study(read_recipe(folder / "own.toml", [methods]), folder / "run")
    fresh = Study(read_recipe(folder / "own.toml"), folder / "run")
    born = Study(read_recipe(folder / "own.toml", ["student.start=teacher"]), folder / "run")
    assert jobs_of(mixed)["kd, seed 0"].key == jobs_of(fresh)["kd, seed 0"].key
    assert jobs_of(mixed)["born, seed 0"].key == jobs_of(born)["kd, seed 0"].key
    assert [len(TrainStudent(mixed, name, 0).needs) for name in ("born", "kd")] == [2, 2]
    drawn = [
        study.fresh_student(name, torch.Generator().manual_seed(0)).state_dict()
        for study, name in ((mixed, "born"), (born, "kd"), (mixed, "kd"), (fresh, "kd"))
    ]
    same = [all(torch.equal(a[key], b[key]) for key in a) for a, b in itertools.pairwise(drawn)]
    assert same == [True, False, True]


def test_students_of_every_form_that_may_begin_as_good_as_the_teacher_do(folder):
    run(folder, "methods={scratch={}}")
    started = [form for form in FORMS if form not in ("mimo", "separate", "dlf")]
    small = dict.fromkeys(("batch_ensemble", "hydra", "low_rank"), ", factor_std = 0.02")
    methods = ", ".join(
        f"{form} = {{ perturb = 'clean', form = {{ kind = '{form}'{small.get(form, '')} }} }}"
        for form in started
    )
    recipe = read_recipe(folder / "own.toml", ["student.start=teacher", f"methods={{ {methods} }}"])
    study = Study(recipe, folder / "run")
    test = study.data().test

    def right(model) -> float:
        return float((predict(model, test).logits.argmax(-1) == test.labels).double().mean())

    teacher = right(study.load_teachers(1))
    for form in started:
        assert right(study.fresh_student(form, torch.Generator().manual_seed(0))) > teacher - 0.05, form


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("student.network={ kind = 'resnet', depth = 8 }", "needs the network of the first teacher"),
        ("methods.kd.form=mimo", "a mimo student cannot start from a teacher's weights"),
    ],
)
def test_a_start_that_cannot_be_is_one_sentence(folder, override, sentence):
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        read_recipe(folder / "own.toml", ["student.start=teacher", override])


def test_students_and_points_of_given_teachers_are_announced(folder, capsys):
    recipe = read_recipe(folder / "own.toml")
    study = Study(recipe, folder / "run")
    announce(study, "EVALUATE", Here(1))
    sweep.announce(Sweep(plan_sweep(recipe, "kd", {"alpha": "0.5,0.9"}), folder / "swept"), None, Here(1))
    said = capsys.readouterr().out
    assert "own: 2 teachers, then 2 students (scratch, kd)." in said
    assert "own-sweep: 2 teachers, then 2 points of kd, 1 seed each." in said
