"""The exported graph: from pixels to answers, in operations that every runtime has."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from polyphony._util.text import UserError, first_line
from polyphony.ensembles import Ensemble
from polyphony.metrics import DirichletPredictions
from polyphony.nn.rank_one import is_plain
from polyphony.serve.student import Answers, Student

InputType = Literal["uint8", "float32"]  # of the pixels that a file takes

OUTPUTS = tuple(field.name for field in fields(Answers) if field.type == "Tensor")
SET = "set"  # output of a student `with_sets`: whether each class is in the prediction set, bool [b k]
STEPS = 8  # added to the argument of a digamma, so that its series is accurate
# Keys of a traced graph's metadata that hold paths and code of this machine.
ORIGINS = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")


class ExportError(UserError, RuntimeError):
    """Raised if a student cannot be exported; the message says why in one sentence."""


class AnswerGraph(nn.Module):
    """A student's answers from pixels [b c h w] of its size: uint8, or float32 in [0, 1].

    It computes the `Answers` of `Student.predict` in float32. BatchNorm is folded; normalisation and
    temperature are part of the graph. With `half`, weights are stored as float16.
    """

    temperature: Tensor
    set_temperature: Tensor  # of p in the sets
    set_log_prob: Tensor  # the smallest log p in a set

    def __init__(self, student: Student, levels: InputType, half: bool = False) -> None:
        super().__init__()
        self.ensemble = student.ensemble.folded().cpu().eval().requires_grad_(False)
        if half:
            store_as_half(self.ensemble)
        self.register_buffer("temperature", torch.tensor(student.temperature))
        self.dirichlet = student.ensemble.predicts is DirichletPredictions
        self.scale = 255 if levels == "uint8" else 1
        sets, thresholds = student.description.sets, student.description.thresholds
        self.has_sets = sets is not None and thresholds is not None
        if sets is not None and thresholds is not None:
            self.register_buffer("set_temperature", torch.tensor(thresholds.temperature))
            self.register_buffer("set_log_prob", torch.tensor(-thresholds.score(sets)))

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """The outputs by name, in the order of `Answers`."""
        x = pixels.float() / self.scale
        logits = self.ensemble.ask_all(x).float()
        log_members = logits.log_softmax(-1)
        mean = log_members.logsumexp(0) - math.log(self.ensemble.members)
        scaled = (mean / self.temperature).log_softmax(-1)
        probabilities, members = scaled.exp(), log_members.exp()
        if self.dirichlet:
            information = dirichlet_information(logits[0])
        else:
            information = (members * (log_members - mean)).sum(-1).mean(0)  # (1/m) Σ_j KL(p_j ‖ p̄)
        answers = {
            "probabilities": probabilities,
            "entropy": -(probabilities * scaled).sum(-1),
            "mutual_information": information.clamp_min(0),
            "members": members,
        }
        if self.has_sets:
            answers[SET] = (mean / self.set_temperature).log_softmax(-1) >= self.set_log_prob
        return answers


def store_as_half(ensemble: Ensemble) -> None:
    """Store all weights except vectors as float16, and convert them to float32 where they are used.

    A Conv2d or Linear subclass with its own forward keeps float32: members replace its weight.
    """
    halves: dict[nn.Parameter, nn.Parameter] = {}  # so that shared weights stay shared
    for module in list(ensemble.modules()):
        if isinstance(module, nn.Conv2d | nn.Linear) and not is_plain(module):
            continue
        for name, weight in list(module.named_parameters(recurse=False)):
            if weight.dtype == torch.float32 and weight.dim() > 1:
                parametrize.register_parametrization(module, name, Widened(), unsafe=True)
                stored: Any = module.parametrizations[name]  # type: ignore[index]
                stored.original0 = halves.setdefault(weight, stored.original0)


class Widened(nn.Module):
    """A parametrization: the weight is stored as float16 and used as float32."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.float()

    def right_inverse(self, weight: Tensor) -> tuple[Tensor]:
        return (weight.half(),)  # PyTorch allows another dtype only in a tuple


def dirichlet_information(log_alpha: Tensor) -> Tensor:
    """`metrics.dirichlet_information` without a digamma, which ONNX lacks. [n k] → [n]"""
    log_total = log_alpha.logsumexp(-1, keepdim=True)
    mean = (log_alpha - log_total).exp()
    return (mean * (above_log(log_alpha) - above_log(log_total))).sum(-1)


def above_log(log_a: Tensor) -> Tensor:
    """ψ(a + 1) − log a from log a: ψ(a + 1) = ψ(x) − Σ_{i=1..8} 1/(a + i) with x = a + 9, and ψ's series."""
    a = log_a.exp()
    gap = log_a - math.log(1 + STEPS)
    log_ratio = (-gap).clamp_min(0) + (-gap.abs()).exp().log1p()  # log x − log a, for any a
    x = a + 1 + STEPS
    r = 1 / (x * x)
    series = 0.5 / x + r * (1 / 12 - r * (1 / 120 - r / 252))
    steps = (1 / (a[..., None] + torch.arange(1, STEPS + 1))).sum(-1)
    return log_ratio - series - steps


def traced(student: Student, levels: InputType, half: bool = False) -> ExportedProgram:
    """The traced graph of a student. Nothing is computed twice: layers that members share run once.

    Raises an ExportError if PyTorch cannot trace it.
    """
    graph = AnswerGraph(student, levels, half)
    example = torch.zeros(2, *student.description.shape, dtype=getattr(torch, levels))
    with torch.no_grad(), quiet(), one_sentence(student, "traced for any number of images"):
        graph(example)  # some networks set themselves up at their first images
        program: ExportedProgram = torch.export.export(graph, (example,), dynamic_shapes=({0: Dim.DYNAMIC},))
        program = program.run_decompositions({torch.ops.aten.logaddexp.default: logaddexp})
    merge_equal_nodes(program.graph)
    program.graph_module.recompile()
    for node in program.graph.nodes:
        for origin in ORIGINS:
            node.meta.pop(origin, None)
    return program


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """log(eᵃ + eᵇ) without overflow; the exporter's own version adds the exponentials."""
    return torch.maximum(a, b) + (-(a - b).abs()).exp().log1p()


def merge_equal_nodes(graph: fx.Graph) -> None:
    """Replace every node that repeats the computation of an earlier one by that one."""
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
    """Whether an operation has the same result at each call and no side effects."""
    return not operation._schema.is_mutable and torch.Tag.nondeterministic_seeded not in operation.tags


@contextlib.contextmanager
def one_sentence(student: Student, what: str) -> Iterator[None]:
    """Turn any exception into an ExportError with one sentence: the network cannot be `what`, and why."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:  # the user's network can raise anything
        network = student.description.network.label
        raise ExportError(f"the network '{network}' cannot be {what} ({reason(error)})") from error


def reason(error: Exception) -> str:
    """Why PyTorch's exporters failed."""
    unsupported = re.search(r"op='\w+\.(\w+)", str(error))
    if unsupported:
        return f"ONNX does not support {unsupported[1]}; .pt2 does"
    if str(error).startswith("Constraints violated"):
        return "its code depends on the number of images"
    return first_line(error)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings and the output of exporters; errors are still logged."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
