"""Turn an ONNX model into int8 by onnxruntime's static quantisation."""

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
SMALL_SHARE = 0.02  # a classifier with up to this share of all weights stays in float32, for exact logits
BATCH = 64  # images in a calibration batch
END = np.iinfo(np.int32).max  # a Slice with this end or a larger one reaches the end of its input


def folded_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as onnxruntime runs it: with the weights of every member, and with named nodes."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with TemporaryDirectory() as folder, quiet():
        source, target = Path(folder) / "model.onnx", Path(folder) / "folded.onnx"
        onnx.save(model, source)
        quant_pre_process(source, target, skip_symbolic_shape=True)
        folded = onnx.load(target)
    convolve_shortcuts(folded)
    for number, node in enumerate(folded.graph.node):
        node.name = f"n{number}"
    return folded


def choices(model: onnx.ModelProto) -> list[tuple[str, list[str]]]:
    """What stays in float32, in words, and the nodes that become int8. The choice with most nodes is first.

    Raises an ExportError if no layer can become int8.
    """
    nodes = model.graph.node
    shapes = {each.name: tuple(each.dims) for each in model.graph.initializer}
    weights = {
        node.name: shapes[node.input[1]]
        for node in nodes
        if node.op_type in WEIGHTED and node.input[1] in shapes
    }
    # onnxruntime cannot quantise stacked weights.
    weighted = [name for name, shape in weights.items() if len(shape) != 3]
    if not weighted:
        raise ExportError("the network has no convolution or linear layer that could become int8")
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
    in_int8 = {words: [n for n in weighted + between if n not in left] for words, left in in_float.items()}
    return [(words, names) for words, names in in_int8.items() if not {*weighted}.isdisjoint(names)]


def reached_from(nodes: Sequence[Any], names: Collection[str], backwards: bool = False) -> set[str]:
    """The nodes that depend on the named ones, or on which these depend; `nodes` are sorted."""
    tensors: set[str] = set()
    reached: set[str] = set()
    for node in reversed(nodes) if backwards else nodes:
        inputs, outputs = (node.output, node.input) if backwards else (node.input, node.output)
        if not tensors.isdisjoint(inputs):
            reached.add(node.name)
        if node.name in reached or node.name in names:
            tensors.update(outputs)
    return reached


class Batches:
    """Batches of pixels for onnxruntime's calibration: one at each call, then None."""

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
        onnx.save(model, source)  # a file: onnxruntime would change a model in memory
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
            reduce_range=True,  # 7 bits: without VNNI, sums of two products overflow 16 bits
            extra_options={"MatMulConstBOnly": True},
        )
        quantised: onnx.ModelProto = onnx.load(target)
    del quantised.graph.value_info[:]
    return quantised


def convolve_shortcuts(model: onnx.ModelProto) -> None:
    """Replace the parameter-free shortcuts of a ResNet, two Slices and a Pad, by 1×1 convolutions.

    A shortcut takes every second pixel and appends channels of zeros. The convolution computes the same. In
    int8 it is faster: it needs no change of layout and no copy.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    constants, producers, uses = index(graph)
    channels = {
        each.name: each.type.tensor_type.shape.dim[1].dim_value
        for each in graph.value_info
        if len(each.type.tensor_type.shape.dim) == 4
    }
    for pad in [node for node in graph.node if node.op_type == "Pad"]:
        columns = producers.get(pad.input[0])
        rows = producers.get(columns.input[0]) if columns else None
        if not columns or not rows or uses[pad.input[0]] > 1 or uses[columns.input[0]] > 1:
            continue
        strides = [stride(rows, 2, constants), stride(columns, 3, constants)]
        around = appended(pad, constants)
        if all(strides) and around and (inputs := channels.get(rows.input[0])):
            weight = np.eye(around[0] + inputs + around[1], inputs, -around[0], np.float32)[..., None, None]
            name = f"shortcut{len(graph.initializer)}"
            graph.initializer.append(numpy_helper.from_array(weight, name))
            pad.CopyFrom(helper.make_node("Conv", [rows.input[0], name], pad.output, strides=strides))
            graph.node.remove(rows)
            graph.node.remove(columns)
    drop_unused(graph)


def appended(pad: onnx.NodeProto, constants: dict[str, np.ndarray]) -> tuple[int, int] | None:
    """How many channels of zeros a Pad adds before and after the others; None if it does anything else."""
    sizes = constants.get(pad.input[1])
    if len(pad.input) != 2 or pad.attribute or sizes is None or len(sizes) != 8:
        return None  # a third input is another padding value than zero
    before, after = int(sizes[1]), int(sizes[5])
    only = [0, before, 0, 0, 0, after, 0, 0]
    return (before, after) if min(before, after) >= 0 and sizes.tolist() == only else None


def stride(node: onnx.NodeProto, axis: int, constants: dict[str, np.ndarray]) -> int:
    """The step of a Slice that takes every `step`-th entry of an axis; 0 for any other node."""
    numbers = [constants.get(name) for name in node.input[1:]]
    if (
        node.op_type != "Slice"
        or len(numbers) != 4
        or any(each is None or each.size != 1 for each in numbers)
    ):
        return 0
    start, end, along, step = (int(each.item()) for each in numbers if each is not None)
    return step if start == 0 and end >= END and along == axis and step > 0 else 0


def index(
    graph: onnx.GraphProto,
) -> tuple[dict[str, np.ndarray], dict[str, onnx.NodeProto], Counter[str]]:
    """A graph's constants by name, the node that computes each tensor, and how often each tensor is used."""
    from onnx import numpy_helper

    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}
    inputs = [name for node in graph.node for name in node.input]
    return constants, producers, Counter([*inputs, *(each.name for each in graph.output)])


def drop_unused(graph: onnx.GraphProto) -> None:
    """Remove unused constants: onnxruntime would warn about them."""
    _, _, uses = index(graph)
    for each in [each for each in graph.initializer if not uses[each.name]]:
        graph.initializer.remove(each)
