"""Write a student as one file for other programs, after comparing the file with the student."""

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
from polyphony.serve.graph import OUTPUTS, SET, ExportError, InputType, one_sentence, quiet, traced
from polyphony.serve.student import Answers, Student

if TYPE_CHECKING:
    import onnx
    import onnx_ir

BATCHES = (1, 2, 7)  # batch sizes at which a file is compared with the student
TOLERANCE = 1e-5  # of every number; divided by a temperature below one, which magnifies rounding errors
HALF_TOLERANCE = 1e-2  # the same for weights in float16

# Runs an exported file on images, uint8 [n c h w]; returns its outputs by name.
FileRunner = Callable[[Tensor], dict[str, Tensor]]


def export_student(
    student: Student, to: Path | str, images: Tensor, levels: InputType = "uint8", half: bool = False
) -> None:
    """Write a student as one file that takes any number of images: ONNX, or torch.export's .pt2.

    The input is `pixels` [b c h w], uint8 or float32 in [0, 1]; the outputs are the tensors of `Answers`.
    For a student `with_sets` it also has the output `set`, bool [b k]: which classes are in the prediction
    set. `half` stores weights as float16, in half the bytes; the file still computes in float32. Before it is
    written, it is compared with the student on the images, uint8 [n c h w], in batches of 1, 2 and 7. Raises
    an ExportError if a number differs by more than 1e-5 (with `half` 1e-2), divided by the temperature if
    that is below one.
    """
    if not isinstance(student, Student):
        raise ExportError(f"export_student takes the student of load_student, not a {type(student).__name__}")
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
    """Raise an ExportError unless the images are uint8, one or more, of the student's shape."""
    shape = student.description.shape
    is_images = isinstance(images, Tensor) and images.dtype == torch.uint8 and images.shape[1:] == shape
    if not is_images or not len(images):
        sides = ", ".join(map(str, shape))
        raise ExportError(f"the images to compare on must be uint8 [n, {sides}], one or more")


def as_onnx(student: Student, levels: InputType, half: bool) -> tuple[bytes, FileRunner]:
    """An ONNX file, and a function that runs it."""
    with one_sentence(student, "written as ONNX"):
        program, words = traced(student, levels, half), f"{student.words}, by Polyphony"
        data = onnx_model(program, metadata(student, levels), words).SerializeToString()
        return data, onnx_runner(data, levels)


def onnx_model(program: ExportedProgram, metadata: dict[str, str], words: str) -> onnx.ModelProto:
    """The program as an ONNX model with this metadata. Every shared weight is stored once.

    A member's weight stays a product of its factors and the shared weight; onnxruntime computes the products
    when it loads the file. Without `unless_weights`, the exporter would store the products.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        from onnx_ir.passes.common import ClearMetadataAndDocStringPass
        from onnxscript.optimizer import optimize_ir
    except ImportError as error:
        raise ExportError(f"ONNX needs {error.name}, which is missing: {extra('export')}") from error
    with quiet():
        exported: Any = torch.onnx.export(
            program,
            input_names=["pixels"],
            output_names=[*OUTPUTS, SET][: len(program.graph_signature.user_outputs)],
            dynamic_shapes=({0: "batch"},),
            optimize=False,
            verbose=False,
        )
        optimize_ir(exported.model, should_fold=unless_weights)
    ClearMetadataAndDocStringPass()(exported.model)  # paths of this machine
    shorten_names(exported.model.graph)
    exported.model.metadata_props.update(metadata)
    exported.model.doc_string = words
    proto: onnx.ModelProto = exported.model_proto
    del proto.graph.value_info[:]  # shapes: every runtime infers them
    return proto


def unless_weights(node: onnx_ir.Node) -> bool | None:
    """False if a node computes with weights: onnxscript must not replace it by its result. Else None."""
    values = [value for value in node.inputs if value is not None and value.is_initializer()]
    return False if any(value.dtype.is_floating_point() for value in values if value.dtype) else None


def shorten_names(graph: onnx_ir.Graph) -> None:
    """Shorten the names of weights and remove those of nodes: names are a large part of a small file."""
    for node in graph:
        node.name = ""
    for name, value in list(graph.initializers.items()):
        shorter = name.removeprefix("ensemble.").removeprefix("networks.")
        if shorter not in graph.initializers:
            value.name = shorter


def onnx_runner(data: bytes, levels: InputType) -> FileRunner:
    """A function that runs an ONNX file on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(images: Tensor) -> dict[str, Tensor]:
        outputs = session.run(names, {"pixels": pixels_of(images, levels).numpy()})
        return {name: torch.from_numpy(output) for name, output in zip(names, outputs, strict=True)}

    return run


def as_pt2(student: Student, levels: InputType, half: bool) -> tuple[bytes, FileRunner]:
    """A file of torch.export, and a function that runs it."""
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

    The factors of a member are a few numbers each, less than such a header.
    """
    buffers = {
        id(tensor): tensor
        for tensor in tensors.values()
        if tensor.dtype == torch.float32 and not isinstance(tensor, nn.Parameter)
    }
    joined = torch.cat([buffer.flatten() for buffer in buffers.values()])
    parts = dict(zip(buffers, joined.split([buffer.numel() for buffer in buffers.values()]), strict=True))
    for name, tensor in tensors.items():
        if id(tensor) in parts:
            tensors[name] = parts[id(tensor)].view(tensor.shape)


def compressed(archive: io.BytesIO) -> bytes:
    """The same ZIP archive, compressed: the JSON of a small network is as large as its weights."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(archive) as source,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target,
    ):
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    return buffer.getvalue()


def pixels_of(images: Tensor, levels: InputType) -> Tensor:
    """Images, uint8 [n c h w], as the input of a file."""
    return images if levels == "uint8" else images.float() / 255


def metadata(student: Student, levels: InputType) -> dict[str, str]:
    """The metadata of a file. Values that are not strings become JSON."""
    config = student.description.to_config() | {"levels": levels}
    del config["proof"]  # only needed to build the network again
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in config.items()}


def compare(student: Student, run: FileRunner, images: Tensor, tolerance: float) -> None:
    """Raise an ExportError if the outputs of a file differ from the student's answers."""
    allowed = tolerance / min(1.0, student.temperature)
    for batch in BATCHES:
        some = images[torch.arange(batch) % len(images)]
        expected = student.predict(some)
        for name, output in run(some).items():
            error = difference(student, expected, name, output)
            if not error <= allowed:  # also if it is NaN
                raise ExportError(
                    f"the file's {name} differ from the student's by {error:.1e} at a batch of {batch}, where"
                    f" {allowed:.0e} is rounding: nothing was written"
                )


def difference(student: Student, expected: Answers, name: str, output: Tensor) -> float:
    """The largest difference between an output of a file and the student's answer.

    For sets: over the classes that only one of the two sets has, how far p is from the threshold.
    """
    if name != SET:
        return float((output - getattr(expected, name)).abs().max())
    scores, threshold = expected.set_scores(student.description.sets or 0.0)
    margins = ((-scores).exp() - math.exp(-threshold)).abs()
    return float((margins * (output != (scores <= threshold))).max())
