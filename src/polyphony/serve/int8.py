"""Write a student with int8 weights and activations, after comparing its scores with float32."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from polyphony._util.files import atomic_path
from polyphony.data.splits import Split
from polyphony.metrics import Predictions
from polyphony.metrics.fidelity import rank_correlation
from polyphony.runs.samples import Samples
from polyphony.runs.scores import thresholds
from polyphony.serve.description import Thresholds
from polyphony.serve.export import FileRunner, check_images, metadata, onnx_model, onnx_runner, pixels_of
from polyphony.serve.graph import ExportError, InputType, one_sentence, traced
from polyphony.serve.quantise import as_int8, choices, folded_model
from polyphony.serve.student import Student

if TYPE_CHECKING:
    import onnx

ALLOWED = 0.01  # by how much the calibrated NLL on test images may rise
HURTS = 0.002  # if the NLL on validation images rises by more, fewer layers become int8
BATCH = 64  # images


class WorseError(ExportError):
    """Raised if the NLL of an int8 file has risen by more than is allowed."""


@dataclass(frozen=True)
class FileScores:
    """The calibrated scores of a file, and its temperature."""

    acc: float
    nll: float
    ece: float
    temperature: float

    @classmethod
    def of(cls, predictions: Predictions, temperature: float) -> FileScores:
        """The scores of predictions at a temperature."""
        quality = predictions.quality(temperature)
        return cls(quality["acc"], quality["nll"], quality["ece"], temperature)


@dataclass(frozen=True)
class Int8:
    """A student as an int8 file, and how it differs from the float32 file on test images."""

    data: bytes
    in_float: str  # the layers left in float32, in words
    before: FileScores  # of the float32 file
    after: FileScores
    rank_correlation: float | None  # of both files' mutual information over images; None for one network
    images: int  # test images

    def write(self, to: Path, allow: float = ALLOWED) -> None:
        """Write the file; raises a WorseError if the NLL has risen by more than is allowed."""
        rise = self.after.nll - self.before.nll
        if not rise <= allow:
            raise WorseError(
                f"int8 raises the calibrated NLL on test images by {rise:.4f} ({self.before.nll:.4f} to"
                f" {self.after.nll:.4f}), and {allow:g} is allowed: nothing was written"
            )
        with atomic_path(to) as beside:
            beside.write_bytes(self.data)


def quantise_student(student: Student, samples: Samples, levels: InputType = "uint8") -> Int8:
    """A student's ONNX file with int8 weights and activations, by onnxruntime's static quantisation.

    The ranges of activations are measured on training images. The temperature and the thresholds of sets are
    fitted again on validation images, and both files are scored on test images. If int8 raises the validation
    NLL by more than 0.002, further layers stay in float32: first the first layer, then all but the layers
    with weights. If none of these is good enough, the best is returned.

    Raises an ExportError if the student cannot be exported.
    """
    for split in (samples.train, samples.valid, samples.test):
        check_images(student, split.images)
    with one_sentence(student, "written as int8"):
        program = traced(with_placeholders(student), levels)
        model = onnx_model(program, {}, f"{student.words}, int8, by Polyphony")
        plain = onnx_runner(model.SerializeToString(), levels)
        in_float, quantised = best_choice(folded_model(model), plain, samples, levels)
        return finished_file(student, in_float, quantised, plain, samples, levels)


def with_placeholders(student: Student) -> Student:
    """The student with constants that `finished_file` replaces.

    Their values are unusual, because onnxruntime merges equal constants.
    """
    coverage = student.description.sets
    sets = () if coverage is None else (coverage,)
    limits = Thresholds(
        coverages=sets, confidences=sets, scores=(1.7182818,) * len(sets), temperature=1.4142136
    )
    return student.with_description(temperature=1.1415927, thresholds=limits if sets else None)


def best_choice(
    model: onnx.ModelProto, plain: FileRunner, samples: Samples, levels: InputType
) -> tuple[str, onnx.ModelProto]:
    """Which layers stay in float32, and the int8 model: the first that is good enough, else the best."""
    reference = fitted_nll(plain, samples.valid)
    tried: list[tuple[float, str, onnx.ModelProto]] = []
    for in_float, nodes in choices(model):
        quantised = as_int8(model, nodes, pixels_of(samples.train.images, levels))
        rise = fitted_nll(onnx_runner(quantised.SerializeToString(), levels), samples.valid) - reference
        if rise <= HURTS:
            return in_float, quantised
        tried.append((rise, in_float, quantised))
    _, in_float, quantised = min(tried, key=lambda choice: choice[0])
    return in_float, quantised


def finished_file(
    student: Student,
    in_float: str,
    model: onnx.ModelProto,
    plain: FileRunner,
    samples: Samples,
    levels: InputType,
) -> Int8:
    """The int8 file with its own temperature and thresholds, and both files' scores on test images."""
    from onnx import helper, numpy_helper

    quantised, description = onnx_runner(model.SerializeToString(), levels), student.description
    valid, _ = answers(quantised, samples.valid)
    temperature = valid.fit_temperature()
    limits = Thresholds.of([*thresholds(description.method, description.seed, valid, temperature)])
    numbers = {"temperature": temperature}
    if limits and description.sets is not None:
        numbers |= {"set_temperature": limits.temperature, "set_log_prob": -limits.score(description.sets)}
    constants = {each.name: each for each in model.graph.initializer}  # named like the buffers of AnswerGraph
    for name, number in numbers.items():
        constants[name].CopyFrom(numpy_helper.from_array(np.array(number, np.float32), name))
    (before, old), (after, new) = (answers(run, samples.test) for run in (plain, quantised))
    scores = FileScores.of(before, student.temperature), FileScores.of(after, temperature)
    correlation, images = rank_correlation(old, new), len(samples.test)
    facts = asdict(scores[1]) | {"rank_correlation": correlation, "images": images, "in_float": in_float}
    properties = metadata(student.with_description(temperature=temperature, thresholds=limits), levels)
    helper.set_model_props(model, properties | {"precision": "int8", "int8": json.dumps(facts)})
    return Int8(model.SerializeToString(), in_float, *scores, correlation, images)


def fitted_nll(run: FileRunner, split: Split) -> float:
    """The NLL of a file's predictions at the temperature that is fitted to them."""
    predictions, _ = answers(run, split)
    return predictions.quality(predictions.fit_temperature())["nll"]


def answers(run: FileRunner, split: Split) -> tuple[Predictions, torch.Tensor]:
    """A file's predictions on images, and the mutual information of each image."""
    batches = [run(images) for images in split.images.split(BATCH)]
    members = torch.cat([batch["members"] for batch in batches], 1).double()
    logs = members.clamp_min(torch.finfo(torch.float32).tiny).log()
    return Predictions(logs, split.labels), torch.cat([batch["mutual_information"] for batch in batches])


def may_be_slow(flags: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor is known to lack the instructions that make int8 fast."""
    if platform.machine() not in ("x86_64", "AMD64") or not flags.is_file():
        return False
    return "vnni" not in flags.read_text()
