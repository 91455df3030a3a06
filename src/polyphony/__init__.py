"""Polyphony distils a deep ensemble into one network that keeps part of the ensemble's diversity.

`__init__.pyi` lists the public names and their modules, for type checkers and for `__getattr__` below, which
imports a name when it is first used: `import polyphony` and `polyphony --help` do not wait for PyTorch.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_MODULES = {  # public name → its module
    name.name: statement.module
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom) and statement.module
    for name in statement.names
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'polyphony' has no attribute '{name}'")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
