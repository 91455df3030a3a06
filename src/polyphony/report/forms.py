"""Which form a method's student takes, by the resolved recipe alone, and what people call it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from polyphony.recipe import Form

BATCH_ENSEMBLE = "batch_ensemble"
_WORDS = {
    BATCH_ENSEMBLE: "BatchEnsemble",
    "mimo": "MIMO",
    "hydra": "Hydra",
    "single": "one network",
    "latent_be": "LatentBE, merged",
    "dirichlet": "Dirichlet (EnD²)",
    "proxy_dirichlet": "Dirichlet (proxy)",
}


def form_of(recipe: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The form's table, with its kind: the method's own, else the student's, else BatchEnsemble's."""
    methods, student = recipe.get("methods") or {}, recipe.get("student") or {}
    form = (methods.get(method) or {}).get("form") or student.get("form") or {}
    return {"kind": BATCH_ENSEMBLE, **form} if isinstance(form, Mapping) else {"kind": str(form)}


def form_words(kind: str) -> str:
    """A form's name for people; one that is not known here keeps its own."""
    return _WORDS.get(kind, kind.replace("_", " "))


def predicts_as_one(kind: str) -> bool:
    """Whether students of this form predict as one network, by the recipe's own forms; not if unknown."""
    try:
        form: Form = TypeAdapter(Form).validate_python(kind)
    except ValidationError:
        return False
    return form.predictors(2) == 1
