"""A student as one file that other programs run, compared with the student before it is written."""

from __future__ import annotations

import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from polyphony._util.files import atomic_path
from polyphony._util.text import UserError, extra, first_line
from polyphony.serve.graph import AnswerGraph, Levels
from polyphony.serve.student import Answers, Student

BATCHES = (1, 2, 7)  # at which a file is compared with the student
TOLERANCE = 1e-5  # of every number; a temperature below one magnifies rounding, and so this

OUTPUTS = tuple(field.name for field in fields(Answers) if field.type == "Tensor")

Run = Callable[[Tensor], dict[str, Tensor]]


class ExportError(UserError, RuntimeError):
    """A student cannot be exported; the message says why, in one sentence."""


def export_student(student: Student, to: Path | str, images: Tensor, levels: Levels = "uint8") -> None:
    """Write a student as one file that takes any number of images: ONNX, or torch.export's .pt2.

    It takes `pixels` [b c h w], uint8 or float32 in [0, 1], and gives the four parts of `Answers` by name. It
    is asked about the images, uint8 [n c h w], in batches of 1, 2 and 7 before it is written: an ExportError
    if a number differs from the student's by more than 1e-5 (by 1e-5/τ at a temperature τ below one).
    """
    makers = {".onnx": as_onnx, ".pt2": as_pt2}
    to = Path(to)
    if to.suffix not in makers:
        raise ExportError(f"{to} must end in {' or '.join(makers)}, the forms there are")
    shape = student.description.shape
    if (
        not isinstance(images, Tensor)
        or images.dtype != torch.uint8
        or images.shape[1:] != shape
        or not len(images)
    ):
        raise ExportError(
            f"the images to compare on must be uint8 [n, {', '.join(map(str, shape))}], one or more"
        )
    data, run = makers[to.suffix](student, levels)
    compare(student, run, images, levels)
    with atomic_path(to) as beside:
        beside.write_bytes(data)


def as_onnx(student: Student, levels: Levels) -> tuple[bytes, Run]:
    """An ONNX file, and how it runs."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (what torch.onnx writes with)
    except ImportError as error:
        raise ExportError(f"ONNX needs {error.name}, which is missing: {extra('export')}") from error
    with quiet(), one_sentence(student, "written as ONNX"):
        made: Any = torch.onnx.export(
            without_logaddexp(traced(student, levels)),
            input_names=["pixels"],
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: "batch"},),
            external_data=False,
            verbose=False,
        )
        for node in made.model.graph.all_nodes():
            node.metadata_props.clear()  # where on this machine each line of the code is
        made.model.metadata_props.update(metadata(student, levels))
        made.model.doc_string = f"{student.words}, by Polyphony"
        data: bytes = made.model_proto.SerializeToString()
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(pixels: Tensor) -> dict[str, Tensor]:
        found = session.run(list(OUTPUTS), {"pixels": pixels.numpy()})
        return {name: torch.from_numpy(each) for name, each in zip(OUTPUTS, found, strict=True)}

    return data, run


def as_pt2(student: Student, levels: Levels) -> tuple[bytes, Run]:
    """A file of torch.export, and how it runs."""
    buffer = io.BytesIO()
    with quiet():
        program = traced(student, levels)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)
        torch.export.save(
            program, buffer, extra_files={"polyphony.json": json.dumps(metadata(student, levels))}
        )
        buffer.seek(0)
        loaded: Run = torch.export.load(buffer).module()
    return buffer.getvalue(), loaded


def traced(student: Student, levels: Levels) -> ExportedProgram:
    """The student's graph for any number of images."""
    graph = AnswerGraph(student, levels)
    example = torch.zeros(2, *student.description.shape, dtype=getattr(torch, levels))
    with torch.no_grad(), one_sentence(student, "traced for any number of images"):
        graph(example)  # what is decided by the first images is decided before
        return torch.export.export(graph, (example,), dynamic_shapes=({0: Dim.DYNAMIC},))


def without_logaddexp(program: ExportedProgram) -> ExportedProgram:
    """The same program with a log(eᵃ + eᵇ) that no large number breaks; ONNX's adds the exponentials."""
    operation = torch.ops.aten.logaddexp.default
    if all(node.target is not operation for node in program.graph.nodes):
        return program

    def stable(a: Tensor, b: Tensor) -> Tensor:
        return torch.maximum(a, b) + (-(a - b).abs()).exp().log1p()

    decomposed: ExportedProgram = program.run_decompositions({operation: stable})
    return decomposed


def metadata(student: Student, levels: Levels) -> dict[str, str]:
    """What a file says of itself, each value as text: JSON but for words."""
    told = student.description.to_config() | {"levels": levels}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in told.items()}


def compare(student: Student, run: Run, images: Tensor, levels: Levels) -> None:
    """An ExportError where a file answers otherwise than the student."""
    allowed = TOLERANCE / min(1.0, student.temperature)
    for batch in BATCHES:
        some = images[torch.arange(batch) % len(images)]
        answers = run(some if levels == "uint8" else some.float() / 255)
        expected = student.predict(some)
        for name, found in answers.items():
            apart = float((found - getattr(expected, name)).abs().max())
            if not apart <= allowed:
                raise ExportError(
                    f"the file's {name} differ from the student's by {apart:.1e} at a batch of {batch}, where"
                    f" {allowed:.0e} is rounding: nothing was written"
                )


@contextmanager
def one_sentence(student: Student, what: str) -> Iterator[None]:
    """Whatever PyTorch raises is an ExportError that names the operation, where it says one."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:  # a stranger's forward can make it raise anything
        network = student.description.network.label
        raise ExportError(f"the network '{network}' cannot be {what} ({reason(error)})") from error


def reason(error: Exception) -> str:
    """Why PyTorch's exporters have given up, in words."""
    lacking = re.search(r"op='\w+\.(\w+)", str(error))
    if lacking:
        return f"ONNX has nothing for {lacking[1]}; .pt2 has"
    by_count = str(error).startswith("Constraints violated")
    return "its code decides by how many images there are" if by_count else first_line(error)


@contextmanager
def quiet() -> Iterator[None]:
    """Meanwhile the user sees nothing of what PyTorch's exporters log and warn of."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
