"""An int8 student answers nearly as before, is calibrated again, and is written only if it is good."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from students import CLASSES, SHAPE, student_of
from torch import nn

from polyphony import BatchEnsemble, Hydra, LatentFactor, LoRAEnsemble, Separate, Single, Split, resnet
from polyphony.metrics import Predictions
from polyphony.metrics.conformal import two_parts
from polyphony.runs.samples import Samples
from polyphony.serve import ExportError, Student
from polyphony.serve.description import Thresholds
from polyphony.serve.int8 import Int8, may_be_slow, quantise_student


@pytest.fixture(scope="module")
def student() -> Student:
    """One with members, whose norms have seen images, so that activations have the usual sizes."""
    torch.manual_seed(0)
    ensemble = BatchEnsemble(resnet(8, CLASSES, width=16), 3, branch="stages.1").train()
    for _ in range(20):
        ensemble(torch.rand(3, 16, *SHAPE))
    return student_of(ensemble)


@pytest.fixture(scope="module")
def samples(student) -> Samples:
    """Random images with the labels that the student thinks likely."""
    rng = torch.Generator().manual_seed(1)

    def split(count):
        images = torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8, generator=rng)
        labels = torch.multinomial(student.predict(images).probabilities, 1, generator=rng)[:, 0]
        return Split(images, labels)

    return Samples(split(128), split(200), split(200))


@pytest.fixture(scope="module")
def quantised(student, samples) -> Int8:
    return quantise_student(student, samples)


def answers_of(quantised: Int8, split: Split) -> dict[str, np.ndarray]:
    """The outputs of a file by name."""
    session = onnxruntime.InferenceSession(quantised.data)
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, {"pixels": split.images.numpy()}), strict=True))


def test_its_answers_are_nearly_those_of_the_student(quantised, student, samples):
    outputs = answers_of(quantised, samples.test)
    expected = student.predict(samples.test.images)
    errors = np.abs(outputs["members"] - expected.members.numpy())
    assert 1e-4 < errors.max() < 0.1
    assert errors.mean() < 0.01
    kinds = {node.op_type for node in onnx.load_from_string(quantised.data).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    assert quantised.rank_correlation == pytest.approx(
        spearman(outputs["mutual_information"], expected.mutual_information), abs=1e-3
    )
    assert quantised.rank_correlation > 0.9


def spearman(first, second):
    ranks = [np.argsort(np.argsort(np.asarray(each))) for each in (first, second)]
    return np.corrcoef(*ranks)[0, 1]


def test_its_temperature_is_fitted_with_its_own_answers(quantised, samples):
    session = onnxruntime.InferenceSession(quantised.data)
    properties = session.get_modelmeta().custom_metadata_map
    (members,) = session.run(["members"], {"pixels": samples.valid.images.numpy()})
    logs = torch.from_numpy(members).double().log()
    best = Predictions(logs, samples.valid.labels).fit_temperature()
    assert float(properties["temperature"]) == pytest.approx(best, rel=1e-3)
    assert quantised.after.temperature == pytest.approx(best, rel=1e-3)
    probabilities, members = session.run(
        ["probabilities", "members"], {"pixels": samples.test.images.numpy()}
    )
    scaled = members.astype(np.float64).mean(0) ** (1 / best)
    np.testing.assert_allclose(probabilities, scaled / scaled.sum(-1, keepdims=True), atol=1e-4)
    right = probabilities[np.arange(200), samples.test.labels]
    assert quantised.after.nll == pytest.approx(-np.log(right).mean(), abs=1e-4)
    assert json.loads(properties["int8"])["images"] == 200
    assert properties["precision"] == "int8"


def test_its_sets_are_calibrated_with_its_own_answers(student, samples):
    """The threshold is of the int8 file: it holds exactly the wanted share of its calibration images."""
    elsewhere = Thresholds(
        coverages=(0.5, 0.99), confidences=(0.9, 0.1), scores=(1e-3, 1e-3), temperature=1.7
    )
    description = student.description.model_copy(update={"thresholds": elsewhere, "sets": 0.9})
    session = onnxruntime.InferenceSession(
        quantise_student(replace(student, description=description), samples).data
    )
    properties = session.get_modelmeta().custom_metadata_map
    own = Thresholds.model_validate_json(properties["thresholds"])
    pixels = {"pixels": samples.valid.images.numpy()}
    sets, members = session.run(["set", "members"], pixels)
    scaled = members.astype(np.float64).mean(0) ** (1 / own.temperature)
    scores = -np.log(scaled / scaled.sum(-1, keepdims=True))
    assert ((sets == (scores <= own.score(0.9))) | (np.abs(scores - own.score(0.9)) < 1e-4)).all()
    _, calibration = two_parts(200)
    held = sets[calibration, samples.valid.labels[calibration]].sum()
    assert held == pytest.approx(np.ceil(0.9 * 151), abs=1)  # the last one lies on the threshold
    assert json.loads(properties["sets"]) == 0.9


def test_it_is_smaller_and_the_classifier_keeps_its_precision(quantised):
    graph = onnx.load_from_string(quantised.data).graph
    kinds = {each.name: each.data_type for each in graph.initializer}
    (shares,) = {kinds.get(node.input[1]) for node in graph.node if node.op_type == "Gemm"}
    assert shares == onnx.TensorProto.FLOAT
    assert quantised.in_float == "the classifier"
    assert sum(kind == onnx.TensorProto.INT8 for kind in kinds.values()) >= 3 + 3 * 4


def test_its_weights_have_seven_bits_so_that_sums_of_two_products_fit_16_bits(quantised):
    weights = [
        onnx.numpy_helper.to_array(each)
        for each in onnx.load_from_string(quantised.data).graph.initializer
        if each.data_type == onnx.TensorProto.INT8
    ]
    largest = max(int(np.abs(weight.astype(int)).max()) for weight in weights)
    assert largest == 64
    assert 2 * 255 * largest < 2**15


def test_a_file_that_is_worse_is_not_written(quantised, tmp_path):
    worse = replace(quantised, after=replace(quantised.after, nll=quantised.before.nll + 0.015))
    with pytest.raises(
        ExportError, match=r"raises the calibrated NLL on test images by 0\.0150 .* 0\.01 is allowed"
    ):
        worse.write(tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []
    worse.write(tmp_path / "a.onnx", allow=0.02)
    assert (tmp_path / "a.onnx").read_bytes() == quantised.data


class Wide(nn.Module):
    """A network whose first layer int8 ruins: one channel is ten thousand times as large, and not used."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 8, 3, bias=False)
        self.classifier = nn.Linear(8, CLASSES, bias=False)
        self.first.weight.data[:, 0] = 0
        self.register_buffer("scale", torch.tensor([1e4, 1, 1])[:, None, None])

    def forward(self, x):
        return 50 * self.classifier(self.second(self.first((x - 0.5) * self.scale)).mean((2, 3)))


def test_layers_that_hurt_stay_in_float(samples):
    torch.manual_seed(3)
    hurt = student_of(Single(Wide()))
    labelled = {
        name: Split(each.images, hurt.predict(each.images).labels) for name, each in vars(samples).items()
    }
    quantised = quantise_student(hurt, Samples(**labelled))
    assert quantised.in_float == "the classifier and the first layer"
    assert quantised.after.acc == pytest.approx(quantised.before.acc, abs=0.05)


class Nothing(nn.Module):
    """A network without weights."""

    def forward(self, x):
        return x.flatten(1)[:, :CLASSES]


@pytest.mark.parametrize(
    ("ensemble", "spoil", "message"),
    [
        (Single(Nothing()), {}, "that could become int8"),
        (Single(nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES))), {"train": 0}, "must be uint8"),
    ],
)
def test_what_cannot_be_int8_is_one_sentence(ensemble, spoil, message, samples):
    given = replace(samples, **{name: getattr(samples, name)[:count] for name, count in spoil.items()})
    with pytest.raises(ExportError, match=message):
        quantise_student(student_of(ensemble), given)


def test_quantisation_is_silent(student, samples, capfd, caplog):
    quantise_student(student, replace(samples, train=samples.train[:64]))
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("flags", "slow"), [("avx2", True), ("avx2 avx512_vnni", False), ("avx_vnni", False)]
)
def test_a_processor_without_vnni_is_known(flags, slow, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert may_be_slow(tmp_path / "cpuinfo") is slow
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert not may_be_slow(tmp_path / "cpuinfo")


def test_heads_that_are_one_stack_of_matrices_stay_in_float(samples):
    torch.manual_seed(4)
    heads = Hydra(resnet(8, CLASSES, width=2), 3)  # so large a part of it that they would be int8
    quantised = quantise_student(student_of(heads), samples)
    assert quantised.in_float == "the classifier"
    assert quantised.rank_correlation is not None


LATER = {
    "separate": lambda: Separate([resnet(8, CLASSES, width=8) for _ in range(3)]),
    "low_rank": lambda: LoRAEnsemble(resnet(8, CLASSES, width=16), 3, rank=2),
    "dlf": lambda: LatentFactor(resnet(8, CLASSES + 4, width=16), CLASSES, 3, factors=4, draws=3),
}


@pytest.mark.parametrize("form", LATER)
def test_later_students_answer_in_int8_nearly_as_before(form, samples):
    """Their weights have seen images, and those of low rank differ between members."""
    torch.manual_seed(0)
    ensemble = LATER[form]().train()
    for weight in ensemble.parameters():
        if not weight.any():
            torch.nn.init.normal_(weight, std=0.02)
    for _ in range(20):
        ensemble(torch.rand(3, 16, *SHAPE))
    student = student_of(ensemble)
    quantised = quantise_student(student, samples)
    outputs = answers_of(quantised, samples.test)
    expected = student.predict(samples.test.images).members.numpy()
    assert np.ptp(expected, axis=0).max() > 0.05
    errors = np.abs(outputs["members"] - expected)
    assert 1e-4 < errors.max() < 0.3
    assert errors.mean() < 0.01
    weights = [
        each for each in onnx.load_from_string(quantised.data).graph.initializer if len(each.dims) == 4
    ]
    assert weights
    assert {each.data_type for each in weights} == {onnx.TensorProto.INT8}
