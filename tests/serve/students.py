"""Students made of any ensemble, without a run."""

from __future__ import annotations

from polyphony import Ensemble
from polyphony.serve import Student
from polyphony.serve.description import Description

CLASSES, SHAPE = 5, (3, 8, 8)


def student_of(ensemble: Ensemble, temperature: float = 1.7) -> Student:
    """The ensemble as a student of five classes."""
    config = {
        "network": {"kind": "resnet", "depth": 8},
        "form": {"kind": "batch_ensemble"},
        "members": ensemble.members,
        "classes": ["a", "b", "c", "d", "ü"],
        "shape": SHAPE,
        "temperature": temperature,
        "method": "kd",
        "seed": 0,
        "data": "own",
        "recipe": "r",
        "weights": "w",
        "scores": {"acc": 0.5},
    }
    return Student(ensemble.eval(), Description.read(config, "a test"))
