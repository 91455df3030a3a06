"""Polyphony distils a deep ensemble into one network that keeps the ensemble's diversity.

The public names are listed in `__all__`; each is imported when it is first used, so that `import polyphony`
and `polyphony --help` do not wait for PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyphony.data import Augmentation, Options, Split, Splits, load
    from polyphony.distill import (
        CrossEntropy,
        Distill,
        DistillDistribution,
        DistillMean,
        DistillProxy,
        match_step_size,
    )
    from polyphony.distill.perturb import (
        ODS,
        Adversarial,
        Chain,
        Clean,
        Diversify,
        Gaussian,
        Mixup,
        Perturbation,
    )
    from polyphony.ensembles import (
        MIMO,
        BatchEnsemble,
        DeepEnsemble,
        Dirichlet,
        Ensemble,
        Hydra,
        LatentBE,
        Single,
    )
    from polyphony.metrics import Predictions
    from polyphony.nn import Normalize, adapt, add_members, resnet, wide_resnet
    from polyphony.recipe import Recipe, read_recipe
    from polyphony.serve import Answers, Student, export_student, load_student
    from polyphony.training.fit import Plan, fit
    from polyphony.training.predict import predict

__version__ = "0.1.0"

__all__ = [
    "MIMO",
    "ODS",
    "Adversarial",
    "Answers",
    "Augmentation",
    "BatchEnsemble",
    "Chain",
    "Clean",
    "CrossEntropy",
    "DeepEnsemble",
    "Dirichlet",
    "Distill",
    "DistillDistribution",
    "DistillMean",
    "DistillProxy",
    "Diversify",
    "Ensemble",
    "Gaussian",
    "Hydra",
    "LatentBE",
    "Mixup",
    "Normalize",
    "Options",
    "Perturbation",
    "Plan",
    "Predictions",
    "Recipe",
    "Single",
    "Split",
    "Splits",
    "Student",
    "adapt",
    "add_members",
    "export_student",
    "fit",
    "load",
    "load_student",
    "match_step_size",
    "predict",
    "read_recipe",
    "resnet",
    "wide_resnet",
]

_MODULES = (
    "ensembles",
    "distill",
    "distill.perturb",
    "training.fit",
    "training.predict",
    "data",
    "nn",
    "recipe",
    "serve",
)


def __getattr__(name: str) -> Any:
    """A public name, from the module that has it."""
    if name not in __all__:
        raise AttributeError(f"module 'polyphony' has no attribute '{name}'")
    modules = (import_module(f"polyphony.{module}") for module in _MODULES)
    return next(getattr(module, name) for module in modules if name in vars(module))


def __dir__() -> list[str]:
    return __all__
