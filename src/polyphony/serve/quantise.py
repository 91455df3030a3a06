"""An ONNX file with int8 weights and activations, by onnxruntime's static quantisation."""

from __future__ import annotations

import contextlib
import io
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from torch import Tensor

from polyphony.serve.rewrite import pad_in_int8, pool_for_slices
from polyphony.serve.trace import ExportError, quiet

if TYPE_CHECKING:
    import onnx

WEIGHTED = ("Conv", "Gemm", "MatMul")  # operations with weights
OTHERS = ("Add", "Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool", "Slice", "Pad", "Concat")
SMALL_SHARE = 0.02  # of all weights: classifiers up to here stay in float32, which keeps logits exact
BATCH = 64  # images at a time that ranges of activations are measured on


@dataclass(frozen=True)
class Layers:
    """The nodes of a graph that may become int8, by name."""

    weighted: tuple[str, ...]
    first: tuple[str, ...]  # of these, layers that nothing weighted runs before
    last: tuple[str, ...]  # and layers that nothing weighted runs after: classifiers
    others: tuple[str, ...]  # what runs between weighted layers
    keep_last: bool  # whether classifiers stay in float32 in any case

    def choices(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """What to leave in float32, in words, and the nodes that become int8: the most first."""
        everything = self.weighted + self.others
        left: dict[str, set[str]] = {
            "nothing": set(everything),
            "the classifier": set(everything) - {*self.last},
            "the classifier and the first layer": set(everything) - {*self.last, *self.first},
            "all but the layers with weights": set(self.weighted) - {*self.last},
        }
        if self.keep_last:
            del left["nothing"]
        for words, nodes in left.items():
            if not nodes.isdisjoint(self.weighted):
                yield words, tuple(name for name in everything if name in nodes)


def folded_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as onnxruntime runs it: with the weights of every member, and with named nodes."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with TemporaryDirectory() as folder, silent():
        source, target = Path(folder) / "model.onnx", Path(folder) / "folded.onnx"
        onnx.save(model, source)
        quant_pre_process(source, target, skip_symbolic_shape=True)
        folded = onnx.load(target)
    pool_for_slices(folded)
    for number, node in enumerate(folded.graph.node):
        node.name = f"n{number}"
    return folded


def layers_of(model: onnx.ModelProto) -> Layers:
    """What can become int8; an ExportError where there is nothing."""
    graph = model.graph
    shapes = {each.name: tuple(each.dims) for each in graph.initializer}
    weights = {
        node.name: shapes[node.input[1]]
        for node in graph.node
        if node.op_type in WEIGHTED and node.input[1] in shapes
    }
    stacked = {name for name, shape in weights.items() if len(shape) == 3}  # onnxruntime takes one matrix
    if weights.keys() <= stacked:
        raise ExportError("the network has no convolution or linear layer: there is nothing to make int8")
    before = reached_from(graph.node, weights)
    after = reached_from(graph.node, weights, backwards=True)
    first = tuple(name for name in weights if name not in before)
    last = tuple(name for name in weights if name not in after)
    others = tuple(n.name for n in graph.node if n.op_type in OTHERS and n.name in before and n.name in after)
    share = sum(math.prod(weights[name]) for name in last) / sum(map(math.prod, weights.values()))
    keep_last = share <= SMALL_SHARE or not stacked.isdisjoint(last)
    return Layers(tuple(name for name in weights if name not in stacked), first, last, others, keep_last)


def reached_from(nodes: Sequence[Any], names: Any, backwards: bool = False) -> set[str]:
    """The nodes that come after those named, or before them, in a sorted list of nodes."""
    tensors: set[str] = set()
    found: set[str] = set()
    for node in reversed(nodes) if backwards else nodes:
        inputs, outputs = (node.output, node.input) if backwards else (node.input, node.output)
        if not tensors.isdisjoint(inputs):
            found.add(node.name)
        if node.name in found or node.name in names:
            tensors.update(outputs)
    return found


def as_int8(model: onnx.ModelProto, nodes: Sequence[str], pixels: Tensor) -> onnx.ModelProto:
    """The model with these nodes in int8, calibrated on pixels [n c h w]: QDQ, weights per channel."""
    import onnx
    from onnxruntime import quantization as ort

    class Batches(ort.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(pixels.split(BATCH))

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.left, None)
            return None if batch is None else {"pixels": batch.numpy()}

    with TemporaryDirectory() as folder, silent():
        source, target = Path(folder) / "folded.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, source)  # given a model itself, onnxruntime changes it
        ort.quantize_static(
            source,
            target,
            Batches(),
            quant_format=ort.QuantFormat.QDQ,
            op_types_to_quantize=[*WEIGHTED, *OTHERS],
            nodes_to_quantize=list(nodes),
            per_channel=True,
            activation_type=ort.QuantType.QUInt8,
            weight_type=ort.QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
        made: onnx.ModelProto = onnx.load(target)
    pad_in_int8(made)
    del made.graph.value_info[:]
    return made


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep what onnxruntime's quantisation prints and logs from the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with quiet(), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
