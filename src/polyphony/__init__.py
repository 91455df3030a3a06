"""Polyphony distils a deep ensemble into one network that keeps the ensemble's diversity.

Every public name is imported when it is first used, so that `import polyphony` and `polyphony --help` do not
wait for PyTorch. `__init__.pyi` says the same to type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODULES = {  # public name → module below polyphony
    "Adversarial": "distill.perturb",
    "Answers": "serve",
    "Augmentation": "data",
    "BatchEnsemble": "ensembles",
    "Chain": "distill.perturb",
    "Clean": "distill.perturb",
    "CrossEntropy": "distill",
    "DeepEnsemble": "ensembles",
    "Dirichlet": "ensembles",
    "Distill": "distill",
    "DistillDistribution": "distill",
    "DistillFactors": "distill",
    "DistillMean": "distill",
    "DistillProxy": "distill",
    "Diversify": "distill.perturb",
    "Ensemble": "ensembles",
    "Gaussian": "distill.perturb",
    "Hydra": "ensembles",
    "LatentBE": "ensembles",
    "LatentFactor": "ensembles",
    "LoRAEnsemble": "ensembles",
    "MIMO": "ensembles",
    "Mixup": "distill.perturb",
    "Normalize": "nn",
    "ODS": "distill.perturb",
    "Options": "data",
    "Perturbation": "distill.perturb",
    "Plan": "training.fit",
    "Predictions": "metrics",
    "Recipe": "recipe",
    "Separate": "ensembles",
    "Single": "ensembles",
    "Split": "data",
    "Splits": "data",
    "Student": "serve",
    "adapt": "nn",
    "add_members": "nn",
    "export_student": "serve",
    "fit": "training.fit",
    "load": "data",
    "load_student": "serve",
    "match_step_size": "distill",
    "predict": "training.predict",
    "read_recipe": "recipe",
    "resnet": "nn",
    "wide_resnet": "nn",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module 'polyphony' has no attribute '{name}'")
    return getattr(import_module(f"polyphony.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
