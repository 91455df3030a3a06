"""A student is loaded without the trial that its training has done, unless something changed."""

from __future__ import annotations

import json
import shutil
from unittest.mock import Mock

import pytest

from polyphony import load_student
from polyphony.execute.runner import Here
from polyphony.nn import members
from polyphony.recipe import read_recipe
from polyphony.runs.run import Run
from polyphony.serve.load import load_samples
from polyphony.serve.pack import Packing, pack_student
from polyphony.study.provenance import open_study
from polyphony.study.run import run_study
from polyphony.study.study import Study

RECIPE = """
members = 2
[data]
name = "digits"
per_class = 10
valid = 60
test = 70
augment = { pad = 0, flip = false }
[teachers]
network = { kind = "resnet", depth = 8, width = 2 }
epochs = 1
batch = 50
learning_rate = 0.05
[student]
epochs = 1
batch = 50
learning_rate = 0.05
[methods.front]
perturb = "clean"
form = { kind = "batch_ensemble", branch = 0.5, keep = ["stem"] }
[methods.latent]
perturb = "clean"
form = "latent_be"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proof")
    (folder / "r.toml").write_text(RECIPE)
    run_study(Study(read_recipe(str(folder / "r.toml")), folder / "run"), Here(1), Mock())
    return folder / "run"


@pytest.fixture
def trials(monkeypatch):
    """One entry for each trial of a conversion."""
    calls = []
    usual = members.try_order
    monkeypatch.setattr(members, "try_order", lambda *args: calls.append(args) or usual(*args))
    return calls


@pytest.mark.parametrize("method", ["front", "latent"])
def test_loading_tries_nothing(method, run, trials, monkeypatch):
    monkeypatch.setattr("polyphony.nn.trial.on_images", None)  # what a check of members would run
    images = open_study(run, None, "cpu").data().test.images
    student = load_student(run, method)
    answers = student.predict(images)
    assert trials == []
    monkeypatch.undo()
    record = Run.open(run).folder / "students" / method / "0" / "done.json"
    assert json.loads(record.read_text())["proof"]["order"]["front" if method == "front" else "dims"]
    tried = student.description.model_copy(update={"proof": None}).build()
    tried.load_state_dict(open_study(run, None, "cpu").student(method, 0).weights())
    rebuilt = student.description.form.trained(tried).eval()
    x = images.float() / 255
    assert (
        rebuilt(x.expand(rebuilt.members, *x.shape)).softmax(-1).allclose(answers.members.float(), atol=1e-6)
    )


def test_a_packed_student_tries_nothing(run, trials, tmp_path):
    pack_student(run, "front", None, tmp_path / "front", load_samples(run), Packing())
    load_student(tmp_path / "front")
    assert trials == []


@pytest.mark.parametrize("what", ["order", "torch", "without"])
def test_what_has_changed_is_tried_again(what, run, trials, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "students" / "front" / "0" / "done.json"
    record = json.loads(path.read_text())
    if what == "order":
        record["proof"]["order"]["dims"].popitem()
    elif what == "without":
        del record["proof"]
    else:
        monkeypatch.setattr("torch.__version__", "9.9")
    path.write_text(json.dumps(record))
    load_student(tmp_path / "run", "front")
    assert len(trials) == 1
