"""A student with int8 weights and activations: chosen, calibrated and judged before it is written."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
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
from polyphony.serve.export import Run, check_images, metadata, pixels_of, runs
from polyphony.serve.graph import Levels
from polyphony.serve.onnx_file import onnx_model, require_runtime
from polyphony.serve.quantise import as_int8, folded_model, layers_of
from polyphony.serve.student import Student
from polyphony.serve.thresholds import Thresholds
from polyphony.serve.trace import ExportError, one_sentence, traced

if TYPE_CHECKING:
    import onnx

ALLOWED = 0.01  # how far the calibrated NLL on test images may rise
HURTS = 0.002  # on validation images: from here on, fewer layers are made int8
BATCH = 64


class WorseError(ExportError):
    """An int8 file whose NLL has risen by more than is allowed."""


@dataclass(frozen=True)
class Judged:
    """A file's calibrated scores on images: accuracy, NLL, ECE, and the temperature."""

    acc: float
    nll: float
    ece: float
    temperature: float


@dataclass(frozen=True)
class Int8:
    """A student as an int8 file, and how it differs from the float32 file on test images."""

    data: bytes
    in_float: str  # what was left in float32, in words
    before: Judged
    after: Judged
    rank_correlation: float | None  # of the mutual information, image by image; none of one network
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


def quantise_student(student: Student, samples: Samples, levels: Levels = "uint8") -> Int8:
    """A student's ONNX file with int8 weights and activations, by onnxruntime's static quantisation.

    Activations' ranges are measured on the training images. The temperature and the thresholds of sets are
    fitted again on the validation images. Both files are judged on the test images. Where int8 raises the
    validation NLL by more than 0.002, the first layer and then all but the layers with weights stay in
    float32, and the best is taken.
    """
    require_runtime()
    for split in (samples.train, samples.valid, samples.test):
        check_images(student, split.images)
    with one_sentence(student, "written as int8"):
        program = traced(with_placeholders(student), levels)
        model = onnx_model(program, {}, f"{student.words}, int8, by Polyphony")
        plain = runs(model.SerializeToString())
        words, made = best_choice(folded_model(model), plain, samples, levels)
        return judged(student, words, made, plain, samples, levels)


def with_placeholders(student: Student) -> Student:
    """The student with other constants than any network has: `judged` sets them, and onnxruntime would merge
    those that are equal."""
    told = student.description
    sets = () if told.sets is None else (told.sets,)
    limits = Thresholds(
        coverages=sets, confidences=sets, scores=(1.7182818,) * len(sets), temperature=1.4142136
    )
    update = {"temperature": 1.1415927, "thresholds": limits if sets else None}
    return replace(student, description=told.model_copy(update=update))


def best_choice(
    model: onnx.ModelProto, plain: Run, samples: Samples, levels: Levels
) -> tuple[str, onnx.ModelProto]:
    """What is left in float32, and the int8 model: the first that does not hurt, else the best."""
    reference = judge(plain, samples.valid, levels).nll
    tried: list[tuple[float, str, onnx.ModelProto]] = []
    for words, nodes in layers_of(model).choices():
        made = as_int8(model, nodes, pixels_of(samples.train.images, levels))
        rise = judge(runs(made.SerializeToString()), samples.valid, levels).nll - reference
        if rise <= HURTS:
            return words, made
        tried.append((rise, words, made))
    _, words, made = min(tried, key=lambda each: each[0])
    return words, made


def judged(
    student: Student, words: str, made: onnx.ModelProto, plain: Run, samples: Samples, levels: Levels
) -> Int8:
    """The int8 file with its own temperature, and both files' scores on test images."""
    from onnx import helper

    quantised = runs(made.SerializeToString())
    valid, _ = answers(quantised, samples.valid, levels)
    found, told = valid.fit_temperature(), student.description
    sides = []
    for run, temperature in ((plain, student.temperature), (quantised, found)):
        predictions, information = answers(run, samples.test, levels)
        sides.append((score(predictions, temperature), information))
    (before, known), (after, new) = sides
    limits = Thresholds.of([*thresholds(told.method, told.seed, valid, found)])
    numbers = {"temperature": found}
    if limits and told.sets is not None:
        numbers |= {"set_temperature": limits.temperature, "set_log_prob": -limits.score(told.sets)}
    set_numbers(made, numbers)
    described = told.model_copy(update={"temperature": found, "thresholds": limits})
    said = metadata(replace(student, description=described), levels)
    alike = rank_correlation(known, new)
    facts = asdict(after) | {"rank_correlation": alike, "images": len(samples.test), "in_float": words}
    helper.set_model_props(made, said | {"precision": "int8", "int8": json.dumps(facts)})
    return Int8(made.SerializeToString(), words, before, after, alike, len(samples.test))


def set_numbers(model: onnx.ModelProto, numbers: Mapping[str, float]) -> None:
    """Replace constants of a model, named as the buffers of `AnswerGraph`."""
    from onnx import numpy_helper

    constants = {each.name: each for each in model.graph.initializer}
    for name, number in numbers.items():
        constants[name].CopyFrom(numpy_helper.from_array(np.array(number, np.float32), name))


def judge(run: Run, split: Split, levels: Levels) -> Judged:
    """A file's scores on images, at the temperature that suits them best."""
    predictions, _ = answers(run, split, levels)
    return score(predictions, predictions.fit_temperature())


def score(predictions: Predictions, temperature: float) -> Judged:
    """Calibrated scores."""
    quality = predictions.quality(temperature)
    return Judged(quality["acc"], quality["nll"], quality["ece"], temperature)


def answers(run: Run, split: Split, levels: Levels) -> tuple[Predictions, torch.Tensor]:
    """A file's predictions of images, and the mutual information of each."""
    found = [run(pixels_of(images, levels)) for images in split.images.split(BATCH)]
    members = torch.cat([each["members"] for each in found], 1).double()
    logs = members.clamp_min(torch.finfo(torch.float32).tiny).log()
    return Predictions(logs, split.labels), torch.cat([each["mutual_information"] for each in found])


def may_be_slow(flags: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor is known to lack the instructions that make int8 fast."""
    if platform.machine() not in ("x86_64", "AMD64") or not flags.is_file():
        return False
    return "vnni" not in flags.read_text()
