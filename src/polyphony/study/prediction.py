"""The job that predicts: it saves the logits of one model on some images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from polyphony.data import Split, Splits
from polyphony.runs.predictions import prediction_path
from polyphony.study.saved import SavedPredictions
from polyphony.study.study import TRAIN_SUBSET, Study
from polyphony.study.trainings import TrainStudent, TrainTeacher
from polyphony.training.fit import Watch
from polyphony.training.predict import predict


@dataclass(frozen=True)
class Images:
    """The images that a model predicts on: a split, perhaps with a method's perturbation."""

    split: Literal["train", "valid", "test", "unlabelled"]
    method: str | None = None

    @property
    def name(self) -> str:
        """Its name in files and tables."""
        return self.split if self.method is None else f"{self.split}+{self.method}"

    @property
    def is_held_out(self) -> bool:
        return self.split in ("valid", "test")

    def read(self, splits: Splits) -> Split:
        """The images without perturbation: a whole held-out split, or a subset of another one."""
        split: Split = getattr(splits, self.split)
        return split if self.is_held_out else split.some(TRAIN_SUBSET)


@dataclass(frozen=True)
class Predict:
    """Saves the logits of one model on some images."""

    study: Study
    model: str  # "teachers", or a method
    seed: int | None
    images: Images

    @property
    def name(self) -> str:
        return prediction_name(self.model, self.seed, self.images.name)

    @property
    def needs(self) -> Sequence[TrainTeacher | TrainStudent]:
        """The trainings of the model, and of the student whose perturbation is applied."""
        perturbing = [self.perturbing_student] if self.perturbing_student else []
        if self.seed is not None:
            return [TrainStudent(self.study, self.model, self.seed), *perturbing]
        return [*(TrainTeacher(self.study, j) for j in range(self.teacher_count)), *perturbing]

    @property
    def path(self) -> Path:
        return prediction_path(self.study.folder, self.model, self.seed, self.images.name)

    @property
    def perturbing_student(self) -> TrainStudent | None:
        """The student whose perturbation is applied to the images: the first seed of the method."""
        method = self.images.method
        return TrainStudent(self.study, method, self.study.recipe.seeds[0]) if method else None

    @property
    def teacher_count(self) -> int:
        """How many teachers predict: all on held-out images, for the DEE curve; else one for each member."""
        return self.study.teacher_count if self.images.is_held_out else self.study.recipe.members

    def run(self, result: SavedPredictions, watch: Watch) -> None:
        model = self.study.load_model(self.model, self.seed, self.teacher_count)
        student = self.perturbing_student
        before = student.trained_perturbation() if student else None
        result.save(predict(model, self.images.read(self.study.data()), before=before))
        watch.epoch({})


def prediction_name(model: str, seed: int | None, images: str) -> str:
    """The name of a job that predicts."""
    return f"predict {model}{'' if seed is None else f', seed {seed},'} on {images}"
