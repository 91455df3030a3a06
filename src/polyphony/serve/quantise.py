"""An ONNX file with int8 weights and activations, by onnxruntime's static quantisation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from polyphony.serve.graph import ExportError, quiet

if TYPE_CHECKING:
    import onnx

WEIGHTED = ("Conv", "Gemm", "MatMul")  # operations with weights
OTHERS = ("Add", "Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool", "Slice", "Pad", "Concat")
SMALL_SHARE = 0.02  # of all weights: classifiers up to here stay in float32, which keeps logits exact
BATCH = 64  # images at a time that ranges of activations are measured on
END = np.iinfo(np.int32).max  # a Slice that ends here or later ends with its input


def folded_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as onnxruntime runs it: with the weights of every member, and with named nodes."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with TemporaryDirectory() as folder, quiet():
        source, target = Path(folder) / "model.onnx", Path(folder) / "folded.onnx"
        onnx.save(model, source)
        quant_pre_process(source, target, skip_symbolic_shape=True)
        folded = onnx.load(target)
    pool_for_slices(folded)
    for number, node in enumerate(folded.graph.node):
        node.name = f"n{number}"
    return folded


def choices(model: onnx.ModelProto) -> list[tuple[str, list[str]]]:
    """What to leave in float32, in words, and the nodes that then become int8: the most nodes first.

    Raises an ExportError if no layer can become int8.
    """
    nodes = model.graph.node
    shapes = {each.name: tuple(each.dims) for each in model.graph.initializer}
    weights = {
        node.name: shapes[node.input[1]]
        for node in nodes
        if node.op_type in WEIGHTED and node.input[1] in shapes
    }
    weighted = [name for name, shape in weights.items() if len(shape) != 3]  # onnxruntime takes no stacks
    if not weighted:
        raise ExportError("the network has no convolution or linear layer: there is nothing to make int8")
    before, after = reached_from(nodes, weights), reached_from(nodes, weights, backwards=True)
    first, last = weights.keys() - before, weights.keys() - after  # the last ones are classifiers
    between = [node.name for node in nodes if node.op_type in OTHERS and node.name in before & after]
    in_float = {
        "nothing": set[str](),
        "the classifier": last,
        "the classifier and the first layer": last | first,
        "all but the layers with weights": last | {*between},
    }
    share = sum(math.prod(weights[name]) for name in last) / sum(map(math.prod, weights.values()))
    if share <= SMALL_SHARE or not last <= {*weighted}:
        del in_float["nothing"]
    made = {words: [n for n in weighted + between if n not in left] for words, left in in_float.items()}
    return [(words, names) for words, names in made.items() if not {*weighted}.isdisjoint(names)]


def reached_from(nodes: Sequence[Any], names: Collection[str], backwards: bool = False) -> set[str]:
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


class Batches:
    """Pixels as onnxruntime's calibration reads them: a batch at each call, then None."""

    def __init__(self, pixels: Tensor) -> None:
        self.left = iter(pixels.split(BATCH))

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self.left, None)
        return None if batch is None else {"pixels": batch.numpy()}


def as_int8(model: onnx.ModelProto, nodes: Sequence[str], pixels: Tensor) -> onnx.ModelProto:
    """The model with these nodes in int8, calibrated on pixels [n c h w]: QDQ, weights per channel."""
    import onnx
    from onnxruntime import quantization as ort

    with TemporaryDirectory() as folder, quiet():
        source, target = Path(folder) / "folded.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, source)  # given a model itself, onnxruntime changes it
        ort.quantize_static(
            source,
            target,
            Batches(pixels),
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


def pool_for_slices(model: onnx.ModelProto) -> None:
    """Let one MaxPool of single pixels take every second pixel, where two Slices would.

    It computes the same. In int8, a MaxPool needs no change of layout, which makes it faster.
    """
    from onnx import helper

    graph = model.graph
    constants, made_by, uses = index(graph)
    ranks = {each.name: len(each.type.tensor_type.shape.dim) for each in graph.value_info}
    for columns in [node for node in graph.node if node.op_type == "Slice"]:
        rows = made_by.get(columns.input[0])
        if rows is None or uses[columns.input[0]] > 1 or ranks.get(rows.input[0]) != 4:
            continue
        strides = [stride(rows, 2, constants), stride(columns, 3, constants)]
        if all(strides):
            pool = helper.make_node("MaxPool", rows.input[:1], columns.output, kernel_shape=[1, 1])
            pool.attribute.append(helper.make_attribute("strides", strides))
            columns.CopyFrom(pool)
            graph.node.remove(rows)
    drop_unused(graph)


def stride(node: onnx.NodeProto, axis: int, constants: dict[str, np.ndarray]) -> int:
    """The step of a Slice that takes every `step`-th entry of an axis, else 0."""
    given = [constants.get(name) for name in node.input[1:]]
    if node.op_type != "Slice" or len(given) != 4 or any(each is None or each.size != 1 for each in given):
        return 0
    start, end, along, step = (int(each.item()) for each in given if each is not None)
    return step if start == 0 and end >= END and along == axis and step > 0 else 0


def pad_in_int8(model: onnx.ModelProto) -> None:
    """Pad quantised numbers as they are, where their scale is the same before and after: it is faster."""
    graph = model.graph
    constants, made_by, uses = index(graph)
    for quantise in [node for node in graph.node if node.op_type == "QuantizeLinear"]:
        pad = made_by.get(quantise.input[0])
        if pad is None or pad.op_type != "Pad" or len(pad.input) != 2 or uses[pad.output[0]] > 1:
            continue  # with a third input it pads with another number than zero
        source = made_by.get(pad.input[0])
        if source is None or source.op_type != "DequantizeLinear":
            continue
        pairs = zip(source.input[1:], quantise.input[1:], strict=True)
        if all(
            a in constants and b in constants and np.array_equal(constants[a], constants[b]) for a, b in pairs
        ):
            pad.input[0], pad.output[0] = source.input[0], quantise.output[0]
            pad.input.append(source.input[2])  # zero
            graph.node.remove(quantise)
            uses[source.output[0]] -= 1
            if not uses[source.output[0]]:
                graph.node.remove(source)
    drop_unused(graph)


def index(
    graph: onnx.GraphProto,
) -> tuple[dict[str, np.ndarray], dict[str, onnx.NodeProto], Counter[str]]:
    """A graph's constants by name, the node that makes each tensor, and how often each tensor is used."""
    from onnx import numpy_helper

    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    made_by = {name: node for node in graph.node for name in node.output}
    inputs = [name for node in graph.node for name in node.input]
    return constants, made_by, Counter([*inputs, *(each.name for each in graph.output)])


def drop_unused(graph: onnx.GraphProto) -> None:
    """Remove constants that nothing uses: onnxruntime would warn of them."""
    _, _, uses = index(graph)
    for each in [each for each in graph.initializer if not uses[each.name]]:
        graph.initializer.remove(each)
