"""A student as an ONNX file, in which every shared weight is stored once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram

from polyphony._util.text import extra
from polyphony.serve.graph import OUTPUTS, SET
from polyphony.serve.trace import ExportError, quiet

if TYPE_CHECKING:
    import onnx
    import onnx_ir
    import onnxruntime


def onnx_model(program: ExportedProgram, metadata: dict[str, str], words: str) -> onnx.ModelProto:
    """The program as an ONNX model that says of itself what is in `metadata`.

    A member's weight stays a product of its factors with the shared weight, which onnxruntime computes once,
    when it loads the file: exporters by themselves would write these products instead.
    """
    require_runtime()
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    from onnxscript.optimizer import optimize_ir

    names = [*OUTPUTS, SET][: len(program.graph_signature.user_outputs)]
    with quiet():
        made: Any = torch.onnx.export(
            program,
            input_names=["pixels"],
            output_names=names,
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
    del proto.graph.value_info[:]  # which whoever loads it infers
    return proto


def unless_weights(node: onnx_ir.Node) -> bool | None:
    """Refuse to replace what is computed from weights by its result; otherwise onnxscript decides."""
    values = [value for value in node.inputs if value is not None and value.is_initializer()]
    return False if any(value.dtype.is_floating_point() for value in values if value.dtype) else None


def shorten_names(graph: onnx_ir.Graph) -> None:
    """Name weights by their layer alone and nodes not at all: a small file is not to be full of names."""
    for node in graph:
        node.name = ""
    for name, value in list(graph.initializers.items()):
        shorter = name.removeprefix("ensemble.").removeprefix("networks.")
        if shorter not in graph.initializers:
            value.name = shorter


def session(data: bytes) -> onnxruntime.InferenceSession:
    """The file as onnxruntime runs it, on the CPU."""
    import onnxruntime

    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def require_runtime() -> None:
    """Raise an ExportError that names what must be installed to write ONNX files."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401 (what torch.onnx writes with)
    except ImportError as error:
        raise ExportError(f"ONNX needs {error.name}, which is missing: {extra('export')}") from error
