"""Losses in two parts, the draws and the rest, so that torch.compile can compile the rest as one graph.

A graph cannot draw from a generator that is an argument, nor choose one of several networks by a draw. So all
draws, perturbations included, happen before the graph. The network that gives a perturbation its direction,
with its backward pass to the pixels, is a graph of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from polyphony._util.text import SettingError, UserError, first_line
from polyphony.compute.parallel import Group
from polyphony.ensembles import Ensemble, ask, asking_by, evaluating

Drawn = tuple[Any, ...]  # tensors, and which rows members see (`ensembles.Seen`)

BACKEND = "inductor"  # of torch.compile
MOST_GRAPHS = 256  # graphs of one function: one for each size of batch and each kind of teacher


class CompileError(UserError, RuntimeError):
    """PyTorch cannot compile a training here; the message says why."""


class TwoPart:
    """A loss in two parts: what it draws for a batch, and a function of that.

    Networks that the second part needs besides the student are its field `teachers`, an ensemble.
    """

    def __call__(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        """The loss and other reports, means over members and examples."""
        return self.given(student, x, y, self.draw(student, x, y, rng))

    def draw(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> Drawn:
        """Everything that depends on draws, perturbed inputs included; without gradients."""
        raise NotImplementedError

    def given(self, student: Ensemble, x: Tensor, y: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        """The loss itself, without draws."""
        raise NotImplementedError


class Compiled:
    """A loss whose second part is one graph; results are equal to rounding.

    Make one for each training: it drops what was compiled for other models.
    """

    def __init__(self, loss: object, group: Group) -> None:
        if not isinstance(loss, TwoPart):
            raise SettingError(f"a {type(loss).__name__} cannot be compiled: only a TwoPart loss can")
        if group.size > 1:
            raise SettingError("a training of several processes cannot be compiled: leave out compile")
        torch.compiler.reset()
        self.loss, self.is_settled = loss, False
        self.graph, self.ask = as_graph(loss.given), as_graph(ask)

    def __call__(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        if not self.is_settled:
            self.settle(student, x)
        with compiling():
            with asking_by(self.ask, self.asked(student)):  # a perturbation uses them too
                drawn = self.loss.draw(student, x, y, rng)
            parts: dict[str, Tensor] = self.graph(student, x, y, drawn)
        return parts

    def settle(self, student: Ensemble, x: Tensor) -> None:
        """Let ensembles check their first images now: a graph cannot do it."""
        for ensemble in self.asked(student):
            with evaluating(ensemble):  # which changes nothing in it
                ensemble.ask_all(x)
        self.is_settled = True

    def asked(self, student: Ensemble) -> set[Ensemble]:
        """The ensembles that the loss uses: the student, its teachers, the source of its directions."""
        perturb = getattr(self.loss, "perturb", None)
        return {student, getattr(self.loss, "teachers", student), getattr(perturb, "source", student)}


def as_graph(function: Callable[..., Any]) -> Any:
    """Compile a function, one graph for each shape of its arguments; results do not depend on order."""
    return torch.compile(function, fullgraph=True, dynamic=False, backend=BACKEND)


@contextmanager
def compiling() -> Iterator[None]:
    """Allow many graphs, and report what PyTorch cannot compile as a CompileError."""
    import torch._dynamo as dynamo  # takes half a second
    import torch._functorch.config as functorch

    try:
        at_once = functorch.patch(force_non_lazy_backward_lowering=True)  # raises errors in gradients here
        with dynamo.config.patch(recompile_limit=MOST_GRAPHS), at_once, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The .grad attribute")  # PyTorch reads it
            yield
    except dynamo.exc.TorchDynamoException as error:
        why = first_line(getattr(error, "inner_exception", error))  # the compiler's message, if it has one
        raise CompileError(f"PyTorch cannot compile this training here ({why})") from error
