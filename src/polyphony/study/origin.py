"""Where a result comes from: the code that trained it, the versions it ran with, the machine."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polyphony
from polyphony.machine import processor
from polyphony.study.study import Study

NAMED = ("polyphony", "torch", "numpy", "scipy")  # packages whose versions are recorded
TRAINING = (
    "train",
    "losses",
    "distill",
    "perturb",
    "predictions",  # and metrics: which epoch is kept, and which step size is matched
    "metrics",
    "collapse",
    "ensembles",
    "nn",
    "data/batches",
    "data/splits",
    "devices",
    "parallel",
    "seeds",
    "recipe/forms",
    "recipe/methods",
    "recipe/networks",
    "recipe/perturbations",
    "recipe/schema",
    "study/study",
    "study/jobs",
)


@cache
def training_code() -> str:
    """The hash of all sources that decide which weights and which log a training ends with."""
    package, digest = Path(polyphony.__file__).parent, hashlib.sha256()
    for name in TRAINING:
        single = package / f"{name}.py"
        for path in [single] if single.exists() else sorted((package / name).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Of Python and the packages that matter."""
    return {"python": platform.python_version(), **{name: version(name) for name in NAMED}}


def machine(study: Study) -> dict[str, Any]:
    """What a study runs on."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "device": study.device,
        "threads": study.threads,
        "system": platform.platform(),
    }
