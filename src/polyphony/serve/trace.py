"""A student's answers as a graph of PyTorch's operations, for any number of images."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from polyphony._util.text import UserError, first_line
from polyphony.serve.graph import AnswerGraph, Levels
from polyphony.serve.student import Student

# What a graph says of the code on this machine that it was traced from.
ORIGINS = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")


class ExportError(UserError, RuntimeError):
    """A student cannot be exported; the message says why, in one sentence."""


def traced(student: Student, levels: Levels, half: bool = False) -> ExportedProgram:
    """The student's graph, in which nothing is computed twice: layers that members share run once."""
    graph = AnswerGraph(student, levels, half)
    example = torch.zeros(2, *student.description.shape, dtype=getattr(torch, levels))
    with torch.no_grad(), quiet(), one_sentence(student, "traced for any number of images"):
        graph(example)  # what is decided by the first images is decided before
        program: ExportedProgram = torch.export.export(graph, (example,), dynamic_shapes=({0: Dim.DYNAMIC},))
        program = program.run_decompositions({torch.ops.aten.logaddexp.default: logaddexp})
    merge_equal_nodes(program.graph)
    program.graph_module.recompile()
    for node in program.graph.nodes:
        for origin in ORIGINS:
            node.meta.pop(origin, None)
    return program


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """log(eᵃ + eᵇ) that no large number breaks; ONNX's adds the exponentials."""
    return torch.maximum(a, b) + (-(a - b).abs()).exp().log1p()


def merge_equal_nodes(graph: fx.Graph) -> None:
    """Replace every node that computes what an earlier one did by that one."""
    first: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or not is_repeatable(node.target):
            continue
        leaves, form = pytree.tree_flatten((node.args, node.kwargs))
        key = (node.target, form, *((type(leaf), leaf) for leaf in leaves))
        earlier = first.setdefault(key, node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)


def is_repeatable(operation: torch._ops.OpOverload) -> bool:
    """Whether an operation gives the same each time and changes nothing."""
    return not operation._schema.is_mutable and torch.Tag.nondeterministic_seeded not in operation.tags


@contextmanager
def one_sentence(student: Student, what: str) -> Iterator[None]:
    """Raise an ExportError for whatever PyTorch raises, with the operation that it names, if any."""
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
    """Silence what PyTorch's exporters log and warn of."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
