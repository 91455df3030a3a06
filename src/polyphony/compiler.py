"""PyTorch's compiler, imported when something is asked of it.

PyTorch tells its compiler to leave some functions alone, for example those of optimisers, and imports it to
do so. That takes over a second of every process, whether anything is compiled or not. Only the command and
its worker processes do without: a program that uses the library keeps PyTorch as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType, SimpleNamespace
from typing import Any

COMPILER = "torch._dynamo"


def import_compiler_late() -> None:
    """From now on the compiler is imported at its first use, in the whole process."""
    if COMPILER not in sys.modules:
        sys.modules[COMPILER] = StandIn(COMPILER)
        sys.meta_path.insert(0, LoadedOnce())


class StandIn(ModuleType):
    """A module in the place of the compiler, which notes what is to be left alone, and gives way to it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.left_alone: list[tuple[Any, bool]] = []
        self.compiled_autograd = SimpleNamespace(_disable=nullcontext)  # of nothing that is compiled

    def disable(self, function: Any = None, recursive: bool = True, **how: Any) -> Callable[..., Any]:
        """The function itself: nothing is compiled before the compiler is there."""
        if not callable(function):
            return self.__getattr__("disable")(function, recursive, **how)  # type: ignore[no-any-return]
        self.left_alone.append((function, recursive))
        return function  # type: ignore[no-any-return]

    def graph_break(self, reason: str = "") -> None:
        """Nothing, which it is to all but the compiler: an optimiser says it at every step."""

    def __getattr__(self, name: str) -> Any:
        """What the compiler has of that name; a look at what a module is does not import it."""
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
            hand_over(self.left_alone, import_module(self.__name__))
        return getattr(sys.modules[self.__name__], name)


class LoadedOnce(MetaPathFinder, Loader):
    """Finds the compiler's modules that are loaded.

    A module of a package is looked for after its package was imported, which may have imported it, too: where
    the package was a stand-in until then, Python would load the module again.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_loaded = name.startswith(f"{COMPILER}.") and name in sys.modules
        return spec_from_loader(name, self) if is_loaded else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it is there."""


def hand_over(left_alone: Sequence[tuple[Any, bool]], compiler: Any) -> None:
    """Tell the compiler which functions it is to leave alone, where PyTorch looks for it."""
    for function, recursive in left_alone:
        if hasattr(function, "__dynamo_disable"):
            function.__dynamo_disable = compiler.disable(function, recursive, wrapping=False)
