"""PyTorch's compiler, imported when something is asked of it.

PyTorch tells its compiler to leave some functions alone, for example those of optimisers, and imports it to
do so. That takes over a second of every process, whether anything is compiled or not. Only the command and
its worker processes do without: a program that uses the library keeps PyTorch as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"


def import_compiler_late() -> None:
    """From now on the compiler is imported at its first use, in the whole process."""
    if COMPILER not in sys.modules:
        sys.modules[COMPILER] = StandIn(COMPILER)


class StandIn(ModuleType):
    """A module in the place of the compiler, which notes what is to be left alone, and gives way to it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.left_alone: list[tuple[Any, bool]] = []

    def disable(self, function: Any = None, recursive: bool = True, **how: Any) -> Callable[..., Any]:
        """The function itself: nothing is compiled before the compiler is there."""
        if not callable(function):
            return self.__getattr__("disable")(function, recursive, **how)  # type: ignore[no-any-return]
        self.left_alone.append((function, recursive))
        return function  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        """What the compiler has of that name; a look at what a module is does not import it."""
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
            hand_over(self.left_alone, import_module(self.__name__))
        return getattr(sys.modules[self.__name__], name)


def hand_over(left_alone: Sequence[tuple[Any, bool]], compiler: Any) -> None:
    """Tell the compiler which functions it is to leave alone, where PyTorch looks for it."""
    for function, recursive in left_alone:
        if hasattr(function, "__dynamo_disable"):
            function.__dynamo_disable = compiler.disable(function, recursive, wrapping=False)
