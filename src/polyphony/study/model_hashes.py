"""The hashes of trained models, from which the keys of evaluations and analyses are made."""

from __future__ import annotations

from polyphony.runs.stage import TrainingFolder
from polyphony.runs.store import FileError, spec_key
from polyphony.study.study import Model, Study

ANALYSIS_FORMAT = 1  # raise it when an analysis of trained models changes, so that old results are not used


def weight_hashes(study: Study) -> dict[Model, list[str]]:
    """The hashes of all models' weights; raises a FileError if a model is not trained yet."""
    return {(model, seed): model_hashes(study, model, seed) for model, seed in study.models}


def model_hashes(study: Study, model: str, seed: int | None) -> list[str]:
    """The hashes of one model's weights; raises a FileError if it is not trained yet."""
    if seed is not None:
        return [trained_hash(study.student(model, seed))]
    return [trained_hash(study.teacher(j)) for j in range(study.recipe.members)]


def trained_hash(trained: TrainingFolder) -> str:
    """The hash of the weights of a training; raises a FileError if it is not finished."""
    if not trained.is_finished():
        raise FileError(trained.folder, "is not fully trained")
    return str(trained.record()["weights"])


def models_key(study: Study) -> str:
    """The hash of the weights of all models and of the test images."""
    weights = [[model, seed, hashes] for (model, seed), hashes in weight_hashes(study).items()]
    return spec_key({"format": ANALYSIS_FORMAT, "weights": weights, "test": study.data().test.fingerprint})
