"""A student ready to use, and its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from polyphony import metrics
from polyphony._util.settings import Count, check
from polyphony._util.text import UserError, counted
from polyphony.ensembles import Ensemble, evaluating
from polyphony.metrics import Predictions, lac
from polyphony.metrics.temperature import temper
from polyphony.serve.description import Description, Thresholds
from polyphony.serve.pictures import Picture, batches_of
from polyphony.training.predict import batch_for

NO_THRESHOLDS = "this student has no thresholds from validation images: evaluate its run again"


class AnswerError(UserError, ValueError):
    """Raised if a network's output is not a prediction, or if thresholds are missing."""


@dataclass(frozen=True, eq=False)
class Answers:
    """A student's answers to n images; uncertainties in nats.

    The temperature τ, fitted on validation images, scales the log of the mean prediction p̄ and nothing else:
    `probabilities` and their `entropy` are calibrated, `members` and their `mutual_information` are as
    predicted. So mutual information is not a part of this entropy, but of H(p̄).
    """

    probabilities: Tensor
    """softmax(log p̄ / τ). [n k]"""
    entropy: Tensor
    """Entropy of the probabilities: the total uncertainty. [n]"""
    mutual_information: Tensor
    """H(p̄) − (1/m) Σ_j H(p_j): how much members disagree, 0 for one; for a Dirichlet, of its draws. [n]"""
    members: Tensor
    """The probabilities p_j of each member, with mean p̄; for a Dirichlet, its mean. [m n k]"""

    description: Description | None = field(default=None, repr=False)
    """The student's description, with the thresholds for `sets` and `certain`."""

    @classmethod
    def of(cls, predictions: Predictions, description: Description) -> Answers:
        """The answers from a student's logits."""
        log_probs = predictions.log_probs(description.temperature)
        members, information = predictions.logits.double().softmax(-1), predictions.information()
        return cls(log_probs.exp(), metrics.entropy(log_probs), information, members, description)

    def sets(self, coverage: float = 0.9) -> Tensor:
        """Whether each class is in the prediction set of an image. bool [n k]

        The set holds the true class with probability `coverage` or more if images are distributed like the
        validation images: on average over images, not for each class. A set may be empty.
        """
        scores, threshold = self.set_scores(coverage)
        return scores <= threshold

    def set_scores(self, coverage: float) -> tuple[Tensor, float]:
        """The score −log p of each class, and the largest score in a set. [n k]"""
        description, thresholds = self._thresholds()
        log_probs = temper(self.probabilities.log(), thresholds.temperature / description.temperature)
        return lac(log_probs), thresholds.score(coverage)

    def certain(self, coverage: float = 0.8) -> Tensor:
        """Whether the student is confident enough to answer itself. bool [n]

        It answers this share of images that are like the validation images; a person decides the others.
        """
        return self.confidence >= self._thresholds()[1].confidence(coverage)

    def _thresholds(self) -> tuple[Description, Thresholds]:
        if self.description is None or self.description.thresholds is None:
            raise AnswerError(NO_THRESHOLDS)
        return self.description, self.description.thresholds

    @property
    def labels(self) -> Tensor:
        """The most probable class of each image. [n]"""
        return self.probabilities.argmax(-1)

    @property
    def confidence(self) -> Tensor:
        """The probability of the most probable class. [n]"""
        return self.probabilities.amax(-1)


@dataclass(frozen=True, eq=False)
class Student:
    """A trained student that predicts, with its normalisation inside, and its description."""

    ensemble: Ensemble
    description: Description
    choice: str = ""  # why it was chosen, if the user did not name it

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of its outputs."""
        return self.description.classes

    @property
    def temperature(self) -> float:
        """The temperature that calibrates the mean prediction."""
        return self.description.temperature

    @property
    def words(self) -> str:
        """ "the student of kd-ods, seed 0 (batch_ensemble of 4 members, temperature 1.31)" """
        description, members = self.description, counted(self.ensemble.members, "member")
        form = f"{description.form.label} of {members}, temperature {self.temperature:.3g}"
        return f"the student of {description.method}, seed {description.seed} ({form})"

    def with_sets(self, coverage: float) -> Student:
        """The same student; a file exported from it has the output `set` with prediction sets.

        Raises an AnswerError if the run has no thresholds, a CoverageError if it has none for this coverage.
        """
        if self.description.thresholds is None:
            raise AnswerError(NO_THRESHOLDS)
        self.description.thresholds.score(coverage)
        return self.with_description(sets=coverage)

    def with_description(self, **changes: object) -> Student:
        """The same student with changes to its description."""
        return replace(self, description=self.description.model_copy(update=changes))

    def predict(self, images: Picture | Sequence[Picture], batch: int | None = None) -> Answers:
        """The answers to images: an array of several, one picture, or a list of pictures (`batches_of`).

        Raises an AnswerError if the network returns NaN, or another number of classes than the student has.
        """
        batch = batch_for(self.ensemble, self.description.shape) if batch is None else batch
        check(Count, batch=batch)
        with torch.no_grad(), evaluating(self.ensemble):
            shape, resize = self.description.shape, self.description.resize
            blocks = [self.logits(x) for x in batches_of(images, shape, batch, resize)]
        logits = torch.cat(blocks, dim=1)
        unlabelled = torch.full((logits.shape[1],), -1)
        return Answers.of(self.ensemble.predicts(logits, unlabelled), self.description)

    def logits(self, x: Tensor) -> Tensor:
        """The logits of every member for pixels in [0, 1]. [b c h w] → [m b k]"""
        rows, expected = x.to(self.ensemble.device), [len(x), len(self.classes)]
        logits = self.ensemble(rows.expand(self.ensemble.members, *x.shape)).float().cpu()
        if list(logits.shape[1:]) != expected:
            raise AnswerError(
                f"the network returns {list(logits.shape[1:])} for {len(x)} images, not {expected}"
            )
        if bool(logits.log_softmax(-1).isnan().any()):
            raise AnswerError("the network returns NaN for these images: its training has diverged")
        return logits
