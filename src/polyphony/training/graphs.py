"""Losses in two parts: random draws, then a computation that torch.compile compiles as one graph.

A graph cannot draw from a generator that is an argument, and it cannot choose a network by a draw. So all
draws, perturbations included, happen before the graph. If a perturbation needs gradients of a network, that
network with its backward pass to the pixels is a graph of its own.
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
from polyphony.ensembles import Ensemble, call_network, evaluating, networks_called_by

Draws = tuple[Any, ...]  # tensors or None, and which rows each member gets (`ensembles.Assignment`)

BACKEND = "inductor"  # of torch.compile
MAX_GRAPHS = 256  # of one function: one for each batch size and each kind of teacher


class CompileError(UserError, RuntimeError):
    """PyTorch cannot compile this training on this machine; the message says why."""


class TwoPart:
    """Base of losses in two parts: `draw` makes the random choices for a batch, `compute` uses them.

    The only networks that `compute` may use are the student and the field `teachers`, an ensemble.
    """

    def __call__(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        """The loss ("loss") and other terms for the log: means over members and examples."""
        return self.compute(student, x, y, self.draw(student, x, y, rng))

    def draw(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> Draws:
        """Everything random: perturbed inputs, and which rows each member gets. Without gradients."""
        raise NotImplementedError

    def compute(self, student: Ensemble, x: Tensor, y: Tensor, draws: Draws) -> dict[str, Tensor]:
        """The loss and other terms, given the draws."""
        raise NotImplementedError


class Compiled:
    """A loss whose `compute` is one graph of torch.compile; results differ only by rounding.

    Make one for each training: making one drops all graphs compiled before.
    """

    def __init__(self, loss: object, group: Group) -> None:
        if not isinstance(loss, TwoPart):
            raise SettingError(f"a {type(loss).__name__} cannot be compiled: only a TwoPart loss can")
        if group.size > 1:
            raise SettingError("a training of several processes cannot be compiled: leave out compile")
        torch.compiler.reset()
        self.loss, self.is_checked = loss, False
        self.graph, self.call = as_graph(loss.compute), as_graph(call_network)

    def __call__(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        if not self.is_checked:
            self.check_images(student, x)
        with compiling():
            with networks_called_by(self.call, self.ensembles(student)):  # perturbations run these too
                draws = self.loss.draw(student, x, y, rng)
            terms: dict[str, Tensor] = self.graph(student, x, y, draws)
        return terms

    def check_images(self, student: Ensemble, x: Tensor) -> None:
        """Run all ensembles once: they check the first images of a size, which a graph cannot do."""
        for ensemble in self.ensembles(student):
            with evaluating(ensemble):  # in eval mode a pass does not change the ensemble
                ensemble.ask_all(x)
        self.is_checked = True

    def ensembles(self, student: Ensemble) -> set[Ensemble]:
        """The ensembles that the loss uses: the student, the teachers, the source of the perturbation."""
        source = getattr(getattr(self.loss, "perturb", None), "source", None)
        return {student, getattr(self.loss, "teachers", student), source or student}


def as_graph(function: Callable[..., Any]) -> Any:
    """Compile a function: one graph for each shape, so that results do not depend on which came first."""
    return torch.compile(function, fullgraph=True, dynamic=False, backend=BACKEND)


@contextmanager
def compiling() -> Iterator[None]:
    """Allow many graphs, and raise a CompileError if PyTorch cannot compile one."""
    import torch._dynamo as dynamo  # takes half a second
    import torch._functorch.config as functorch

    try:
        eager_backward = functorch.patch(force_non_lazy_backward_lowering=True)  # so its errors occur here
        with dynamo.config.patch(recompile_limit=MAX_GRAPHS), eager_backward, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The .grad attribute")  # PyTorch itself reads it
            yield
    except dynamo.exc.TorchDynamoException as error:
        why = first_line(getattr(error, "inner_exception", error))  # the compiler's message, if it has one
        raise CompileError(f"PyTorch cannot compile this training here ({why})") from error
