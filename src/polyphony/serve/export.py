"""A student as one file that other programs run, compared with the student before it is written."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from polyphony._util.files import atomic_path
from polyphony._util.text import extra
from polyphony.serve.graph import OUTPUTS, SET, ExportError, Levels, one_sentence, quiet, traced
from polyphony.serve.student import Answers, Student

if TYPE_CHECKING:
    import onnx
    import onnx_ir

BATCHES = (1, 2, 7)  # at which a file is compared with the student
TOLERANCE = 1e-5  # of every number; a temperature below one magnifies rounding, and so this
HALF_TOLERANCE = 1e-2  # the same of weights rounded to float16

Run = Callable[[Tensor], dict[str, Tensor]]  # what a file answers to images, uint8 [n c h w]


def export_student(
    student: Student, to: Path | str, images: Tensor, levels: Levels = "uint8", half: bool = False
) -> None:
    """Write a student as one file that takes any number of images: ONNX, or torch.export's .pt2.

    It takes `pixels` [b c h w], uint8 or float32 in [0, 1], and gives the four parts of `Answers` by name.
    For a student `with_sets` it also gives `set`, bool [b k]: which classes are in the prediction set.
    `half` stores weights as float16, in half the bytes; it computes in float32 all the same. The file is
    compared with the student on the images, uint8 [n c h w], in batches of 1, 2 and 7 before it is written.
    Raises an ExportError if a number differs by more than 1e-5 (with `half` 1e-2), divided by the temperature
    where that is below one.
    """
    makers = {".onnx": as_onnx, ".pt2": as_pt2}
    to = Path(to)
    if to.suffix not in makers:
        raise ExportError(f"{to} must end in {' or '.join(makers)}")
    check_images(student, images)
    data, run = makers[to.suffix](student, levels, half)
    compare(student, run, images, HALF_TOLERANCE if half else TOLERANCE)
    with atomic_path(to) as beside:
        beside.write_bytes(data)


def check_images(student: Student, images: Tensor) -> None:
    """Raise an ExportError for images that a student cannot be compared on."""
    shape = student.description.shape
    is_images = isinstance(images, Tensor) and images.dtype == torch.uint8 and images.shape[1:] == shape
    if not is_images or not len(images):
        sides = ", ".join(map(str, shape))
        raise ExportError(f"the images to compare on must be uint8 [n, {sides}], one or more")


def as_onnx(student: Student, levels: Levels, half: bool) -> tuple[bytes, Run]:
    """An ONNX file, and how it runs."""
    with one_sentence(student, "written as ONNX"):
        program, words = traced(student, levels, half), f"{student.words}, by Polyphony"
        data = onnx_model(program, metadata(student, levels), words).SerializeToString()
        return data, runs(data, levels)


def onnx_model(program: ExportedProgram, metadata: dict[str, str], words: str) -> onnx.ModelProto:
    """The program as an ONNX model with this metadata, in which every shared weight is stored once.

    A member's weight stays a product of its factors and the shared weight; onnxruntime computes the products
    when it loads the file. Exporters by themselves would store the products.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        from onnx_ir.passes.common import ClearMetadataAndDocStringPass
        from onnxscript.optimizer import optimize_ir
    except ImportError as error:
        raise ExportError(f"ONNX needs {error.name}, which is missing: {extra('export')}") from error
    with quiet():
        made: Any = torch.onnx.export(
            program,
            input_names=["pixels"],
            output_names=[*OUTPUTS, SET][: len(program.graph_signature.user_outputs)],
            dynamic_shapes=({0: "batch"},),
            optimize=False,
            verbose=False,
        )
        optimize_ir(made.model, should_fold=unless_weights)
    ClearMetadataAndDocStringPass()(made.model)  # where on this machine each line of the code is
    shorten_names(made.model.graph)
    made.model.metadata_props.update(metadata)
    made.model.doc_string = words
    proto: onnx.ModelProto = made.model_proto
    del proto.graph.value_info[:]  # shapes, which every runtime infers
    return proto


def unless_weights(node: onnx_ir.Node) -> bool | None:
    """Refuse to replace what is computed from weights by its result; otherwise onnxscript decides."""
    values = [value for value in node.inputs if value is not None and value.is_initializer()]
    return False if any(value.dtype.is_floating_point() for value in values if value.dtype) else None


def shorten_names(graph: onnx_ir.Graph) -> None:
    """Name weights by their layer alone and nodes not at all: names are much of a small file."""
    for node in graph:
        node.name = ""
    for name, value in list(graph.initializers.items()):
        shorter = name.removeprefix("ensemble.").removeprefix("networks.")
        if shorter not in graph.initializers:
            value.name = shorter


def runs(data: bytes, levels: Levels) -> Run:
    """How an ONNX file runs, on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]

    def run(images: Tensor) -> dict[str, Tensor]:
        answers = session.run(names, {"pixels": pixels_of(images, levels).numpy()})
        return {name: torch.from_numpy(each) for name, each in zip(names, answers, strict=True)}

    return run


def as_pt2(student: Student, levels: Levels, half: bool) -> tuple[bytes, Run]:
    """A file of torch.export, and how it runs."""
    buffer = io.BytesIO()
    with quiet():
        program = traced(student, levels, half)
        join_buffers(program.state_dict)
        extra_files = {"polyphony.json": json.dumps(metadata(student, levels))}
        torch.export.save(program, buffer, extra_files=extra_files)
        data = compressed(buffer)
        loaded = torch.export.load(io.BytesIO(data)).module()
    return data, lambda images: loaded(pixels_of(images, levels))


def join_buffers(tensors: dict[str, Tensor]) -> None:
    """Make all float32 buffers views of one tensor: an archive has an entry for each storage, with a header.

    A member's factors are a few numbers each, so that without this their headers are larger than they are.
    """
    buffers = {
        id(each): each
        for each in tensors.values()
        if each.dtype == torch.float32 and not isinstance(each, nn.Parameter)
    }
    joined = torch.cat([each.flatten() for each in buffers.values()])
    parts = dict(zip(buffers, joined.split([each.numel() for each in buffers.values()]), strict=True))
    for name, each in tensors.items():
        if id(each) in parts:
            tensors[name] = parts[id(each)].view(each.shape)


def compressed(archive: io.BytesIO) -> bytes:
    """The same ZIP archive, compressed: JSON that describes a small network is as large as its weights."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(archive) as source,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target,
    ):
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    return buffer.getvalue()


def pixels_of(images: Tensor, levels: Levels) -> Tensor:
    """Images, uint8 [n c h w], as a file takes them."""
    return images if levels == "uint8" else images.float() / 255


def metadata(student: Student, levels: Levels) -> dict[str, str]:
    """What a file says of itself, each value as text: JSON but for words."""
    told = student.description.to_config() | {"levels": levels}
    del told["proof"]  # which is for building the network again
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in told.items()}


def compare(student: Student, run: Run, images: Tensor, tolerance: float) -> None:
    """Raise an ExportError if a file does not answer as the student does."""
    allowed = tolerance / min(1.0, student.temperature)
    for batch in BATCHES:
        some = images[torch.arange(batch) % len(images)]
        expected = student.predict(some)
        for name, found in run(some).items():
            apart = difference(student, expected, name, found)
            if not apart <= allowed:
                raise ExportError(
                    f"the file's {name} differ from the student's by {apart:.1e} at a batch of {batch}, where"
                    f" {allowed:.0e} is rounding: nothing was written"
                )


def difference(student: Student, expected: Answers, name: str, found: Tensor) -> float:
    """The largest difference between an output of a file and the student's answer.

    For sets: how far the probability of a class that only one of them has is from the threshold.
    """
    if name != SET:
        return float((found - getattr(expected, name)).abs().max())
    scores, threshold = expected.set_scores(student.description.sets or 0.0)
    margins = ((-scores).exp() - math.exp(-threshold)).abs()
    return float((margins * (found != (scores <= threshold))).max())
