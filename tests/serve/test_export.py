"""An exported student answers as in Python, at every batch, whatever form it has."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from students import CLASSES, SHAPE, student_of
from torch import nn

from polyphony import (
    MIMO,
    BatchEnsemble,
    Dirichlet,
    Hydra,
    LatentFactor,
    LoRAEnsemble,
    Separate,
    Single,
    load_student,
    resnet,
)
from polyphony.recipe import foreign_table
from polyphony.serve import ExportError, export_student, int8
from polyphony.serve.export import metadata
from polyphony.serve.int8 import FileScores, Int8


def network(copies: int = 1, extra: int = 0) -> nn.Module:
    """A convolution with a BatchNorm that is far from doing nothing, and a classifier."""
    norm = nn.BatchNorm2d(4)
    for values in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        nn.init.uniform_(values, 0.5, 1.5)
    return nn.Sequential(
        nn.Conv2d(3 * copies, 4, 3, 2), norm, nn.ReLU(), nn.Flatten(), nn.Linear(36, copies * CLASSES + extra)
    )


def moved(student: LoRAEnsemble) -> LoRAEnsemble:
    """With B away from zero, as after training."""
    for name, value in student.named_parameters():
        if name.endswith("up"):
            nn.init.normal_(value, std=0.1)
    return student


def extreme(student: Dirichlet) -> Dirichlet:
    """With log concentrations from −300 to 300, whose exponentials have no place in float32."""
    classifier = student.network[-1]
    nn.init.constant_(classifier.weight, 0.01)
    classifier.bias.data.copy_(torch.tensor([-300.0, -1.0, 3.0, 300.0, 298.0]))
    return student


FORMS = {
    "batch ensemble": lambda: BatchEnsemble(network(), 3),
    "mimo": lambda: MIMO(network(3), 3),
    "hydra": lambda: Hydra(network(), 3),
    "low rank": lambda: moved(LoRAEnsemble(network(), 3, rank=2)),
    "separate": lambda: Separate([network() for _ in range(3)]),
    "single": lambda: Single(network()),  # as which LatentBE predicts, too
    "dirichlet": lambda: Dirichlet(network()),
    "dlf": lambda: LatentFactor(network(extra=4), CLASSES, 2, factors=4, draws=3),
    "proxy": lambda: extreme(Dirichlet(network(), offset=1.0)),
}


@pytest.fixture(scope="module")
def pictures():
    return torch.randint(0, 256, (64, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def exported(pictures, tmp_path_factory):
    """form → (student, its ONNX file), each made once; the single network's takes floats."""

    @cache
    def export(form):
        torch.manual_seed(0)
        student, to = student_of(FORMS[form]()), tmp_path_factory.mktemp("onnx") / "student.onnx"
        export_student(student, to, pictures, "float32" if form == "single" else "uint8")
        return student, to

    return export


@pytest.mark.parametrize("form", FORMS)
def test_onnx_answers_as_python_does_at_every_batch(form, exported, pictures):
    student, to = exported(form)
    session = onnxruntime.InferenceSession(to)
    for batch in (1, 7, 64):
        some = pictures[:batch].numpy()
        given = {"pixels": some / np.float32(255) if form == "single" else some}
        outputs, expected = session.run(None, given), student.predict(some)
        for output, value in zip(session.get_outputs(), outputs, strict=True):
            np.testing.assert_allclose(value, getattr(expected, output.name), atol=1e-5, err_msg=output.name)


def test_an_onnx_file_says_what_it_is_and_nothing_of_this_machine(exported):
    student, to = exported("batch ensemble")
    session = onnxruntime.InferenceSession(to)
    properties = session.get_modelmeta().custom_metadata_map
    assert json.loads(properties["classes"]) == list(student.classes)
    assert float(properties["temperature"]) == student.temperature
    assert (properties["weights"], properties["recipe"], properties["levels"]) == ("w", "r", "uint8")
    assert json.loads(properties["scores"]) == {"acc": 0.5}
    assert [(each.name, each.shape) for each in session.get_outputs()] == [
        ("probabilities", ["batch", CLASSES]),
        ("entropy", ["batch"]),
        ("mutual_information", ["batch"]),
        ("members", [3, "batch", CLASSES]),
    ]
    kinds = {node.op_type for node in onnx.load(to).graph.node}
    assert "Conv" in kinds
    assert "BatchNormalization" not in kinds
    assert str(Path(__file__).parents[2]).encode() not in to.read_bytes()


def test_a_file_says_nothing_of_the_folder_that_a_model_lay_in(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic"}
    transformers.ResNetConfig(**sizes).save_pretrained(tmp_path / "mine")
    table = foreign_table(f"transformers:{tmp_path / 'mine'}", tmp_path)
    student = student_of(Single(network()))
    student = student.with_description(network=table)
    properties = metadata(student, "uint8")
    assert json.loads(properties["network"])["config"]["hidden_sizes"] == [8]
    assert str(tmp_path) not in json.dumps(properties)
    assert table.label == "mine"


def test_a_pt2_file_answers_as_python_does(pictures, tmp_path):
    student = student_of(BatchEnsemble(network(), 2), temperature=0.5)
    export_student(student, tmp_path / "student.pt2", pictures)
    files = {"polyphony.json": ""}
    module = torch.export.load(tmp_path / "student.pt2", extra_files=files).module()
    assert json.loads(files["polyphony.json"])["method"] == "kd"
    for batch in (1, 7, 64):
        expected = student.predict(pictures[:batch])
        for name, value in module(pictures[:batch]).items():
            np.testing.assert_allclose(value, getattr(expected, name), atol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def file_of(pictures, tmp_path_factory):
    """Where an ensemble is written, and to what it is as a file."""

    def write(ensemble, suffix=".onnx", **options):
        to = tmp_path_factory.mktemp("file") / f"student{suffix}"
        export_student(student_of(ensemble), to, pictures, **options)
        return to

    return write


class OwnLinear(nn.Linear):
    """A Linear with a forward of its own, as timm's."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


def test_half_takes_layers_with_a_forward_of_their_own(file_of):
    network = nn.Sequential(nn.Flatten(), nn.LazyLinear(32), nn.ReLU(), OwnLinear(32, CLASSES))
    network(torch.zeros(1, *SHAPE))
    assert file_of(BatchEnsemble(network, 2, size=SHAPE), ".onnx", half=True).is_file()


def test_a_pt2_file_has_one_entry_for_all_factors(file_of):
    """An entry's header is larger than the factors of a small layer."""
    student = BatchEnsemble(network(), 3)
    entries = zipfile.ZipFile(file_of(student, ".pt2")).namelist()
    shared = sum(isinstance(module, nn.Conv2d | nn.Linear) for module in student.network.modules())
    assert len([name for name in entries if "/weights/weight_" in name]) == shared + 1


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_file_holds_every_shared_weight_once(suffix, file_of):
    """A hundred thousand numbers and more, in layers of which some are smaller than exporters fold."""
    torch.manual_seed(0)
    one, four = Single(resnet(8, CLASSES, width=48)), BatchEnsemble(resnet(8, CLASSES, width=48), 4)
    sizes = [file_of(each, suffix).stat().st_size for each in (one, four)]
    assert sizes[1] <= 1.05 * sizes[0]
    half = file_of(four, suffix, half=True)
    assert half.stat().st_size <= 0.55 * sizes[0]


def test_members_are_written_as_factors_of_one_weight(exported):
    _, to = exported("batch ensemble")
    graph = onnx.load(to).graph
    sizes = [int(np.prod(each.dims)) for each in graph.initializer]
    assert sizes.count(4 * 3 * 3 * 3) == 1
    assert sizes.count(36 * CLASSES) == 1


@pytest.mark.parametrize("options", [{"branch": "stages.1"}, {"keep": ("stem", "stages.0")}])
def test_layers_before_the_first_members_run_once(options, file_of):
    """The stem and two convolutions of the first stage; four others for each of three members."""
    student = BatchEnsemble(resnet(8, CLASSES, width=4), 3, **options)
    nodes = onnx.load(file_of(student)).graph.node
    assert sum(node.op_type == "Conv" for node in nodes) == 3 + 3 * 4


class Does(nn.Module):
    """A classifier that does something else at its end."""

    def __init__(self, what):
        super().__init__()
        self.network, self.what = network(), what

    def forward(self, x):
        return self.what(self.network(x))


@pytest.mark.parametrize(
    ("what", "to", "message"),
    [
        (torch.digamma, "a.onnx", "ONNX does not support digamma; .pt2 does"),
        (lambda z: z.view(2, 5), "a.pt2", "cannot be traced for any number of images"),
        (lambda z: 2 * z if len(z) > 8 else z, "a.onnx", "its code depends on the number of images"),
        (lambda z: z if z.sum() > 0 else -z, "a.pt2", "cannot be traced for any number of images"),
        (lambda z: nn.functional.dropout(z, 0.5, training=True), "a.pt2", "differ from the student's by"),
        (lambda z: z, "a.tflite", "must end in .onnx or .pt2"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence_and_leaves_no_file(what, to, message, pictures, tmp_path):
    with pytest.raises(ExportError, match=re.escape(message)) as raised:
        export_student(student_of(Single(Does(what))), tmp_path / to, pictures)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_an_ensemble_is_no_student_to_export(pictures, tmp_path):
    with pytest.raises(ExportError, match="takes the student of load_student, not a Single"):
        export_student(Single(network()), tmp_path / "a.onnx", pictures)


class WrongAsAFile(nn.Module):
    """A classifier that answers otherwise in a file: its first class of image i has `off` more there."""

    def __init__(self, i, off):
        super().__init__()
        self.layer, self.i, self.off = nn.Linear(3 * 64, CLASSES), i, off

    def forward(self, x):
        here = (torch.arange(x.shape[0])[:, None] == self.i) * (torch.arange(CLASSES) == 0)
        return self.layer(x.flatten(1)) + here * (self.off if torch.compiler.is_exporting() else 0)


@pytest.mark.parametrize(
    ("i", "off", "to", "message"),
    [
        (0, 1e-3, "a.pt2", "at a batch of 1"),
        (5, 0.1, "a.pt2", "at a batch of 7"),
        (1, 1, "a.onnx", "batch of 2"),
    ],
)
def test_a_file_that_is_wrong_is_not_written(i, off, to, message, pictures, tmp_path):
    with pytest.raises(ExportError, match=f"differ from the student's by .* {message}"):
        export_student(student_of(Single(WrongAsAFile(i, off))), tmp_path / to, pictures)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named(pictures, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        ExportError, match=re.escape("needs onnxruntime, which is missing: pip install '.[export]'")
    ):
        export_student(student_of(Single(network())), tmp_path / "a.onnx", pictures)


def test_the_command_writes_a_file_that_answers(say, run, images, tmp_path, monkeypatch):
    monkeypatch.setattr("polyphony.study.study.load", lambda *_: pytest.fail("the data was read"))
    result = say("export", run, "single", "--to", tmp_path / "s.onnx", "--licence", "MIT")
    assert result.code == 0, result
    assert "the student of single, seed 0" in result.out
    session = onnxruntime.InferenceSession(tmp_path / "s.onnx")
    (probabilities,) = session.run(["probabilities"], {"pixels": images.images[:9].numpy()})
    np.testing.assert_allclose(
        probabilities, load_student(run, "single").predict(images.images[:9]).probabilities, atol=1e-5
    )
    assert session.get_modelmeta().custom_metadata_map["licence"] == "MIT"


def test_a_file_is_replaced_by_force_alone_and_the_best_student_is_named(say, refused, run, tmp_path):
    to = tmp_path / "s.pt2"
    to.write_text("mine")
    refused(say("export", run, "--out", to), "exists: give --out another name, or --force")
    assert to.read_text() == "mine"
    result = say("export", run, "--out", to, "--force")
    assert result.code == 0, result
    best = load_student(run)
    assert f"Chosen: {best.description.method}, seed 0: lowest calibrated validation NLL" in result.err
    assert to.stat().st_size > 1000


def test_int8_is_judged_before_it_is_written(say, refused, run, tmp_path, monkeypatch):
    to = tmp_path / "s.onnx"
    result = say("export", run, "be", "--out", to, "--int8", "--allow", "1")
    assert result.code == 0, result
    assert re.search(r"NLL +│ +\d\.\d{4} +│ +\d\.\d{4}", result.out)
    assert "70 test images; left in float32: " in result.out
    assert "Rank correlation of the mutual information with float32: " in result.out
    assert onnxruntime.InferenceSession(to).get_modelmeta().custom_metadata_map["precision"] == "int8"
    to.unlink()
    worse = Int8(b"", "nothing", FileScores(0.9, 0.3, 0.1, 1.0), FileScores(0.9, 0.4, 0.1, 1.0), None, 70)
    monkeypatch.setattr(int8, "quantise_student", lambda *_: worse)
    words = "and 0.01 is allowed: nothing was written: give --allow a larger number"
    refused(say("export", run, "be", "--out", to, "--int8"), words)
    assert not to.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "singel", "--to", "s.onnx"], "no method 'singel'; did you mean 'single'?"),
        (["nowhere", "single", "--to", "s.onnx"], "nowhere/recipe.json is not there"),
        (["RUN", "single", "--to", "s.h5"], "must end in .onnx or .pt2"),
        (["nowhere", "--to", "s.onnx", "--int8", "--allow", "-1"], "Must be >= 0"),  # before the run is read
        (["RUN", "single"], "--out"),
    ],
)
def test_what_the_command_cannot_do_is_one_sentence(say, refused, run, tmp_path, words, message):
    refused(say("export", *(word.replace("RUN", str(run)) for word in words)), message)
    assert not list(tmp_path.glob("s.*"))
