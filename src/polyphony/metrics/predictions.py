"""Predictions: the logits of a model on a split, with all scores as methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from polyphony.metrics.calibration import (
    GroupScore,
    adaptive_ece,
    class_wise_ece,
    confidence,
    ece,
    group_scores,
)
from polyphony.metrics.conformal import SetMeasure, SetRule, lac
from polyphony.metrics.detection import Detection, detect, energy, max_logit
from polyphony.metrics.fidelity import Fidelity, rank_correlation, voices
from polyphony.metrics.probabilities import ensemble_log_probs, member_log_probs
from polyphony.metrics.quality import accuracy, brier, is_correct, nll
from polyphony.metrics.selective import Selective, images_at
from polyphony.metrics.temperature import fit_temperature, temper
from polyphony.metrics.uncertainty import (
    DiversityBins,
    dirichlet_information,
    dirichlet_kld,
    diversity_bins,
    entropy,
    information,
    pairwise_kld,
)


@dataclass(frozen=True, eq=False)
class Predictions:
    """The logits of each member [m n k] on a split, and the labels [n]; every score is a method.

    To measure how predictions differ, use the methods, not the logits: `DirichletPredictions` overrides them.

    Args:
        logits: `[m n k]`, floats.
        labels: `[n]`, integers.

    Examples:
        >>> answers = Predictions(torch.tensor([[[2.0, 0.0], [0.0, 3.0]]]), torch.tensor([0, 1]))
        >>> answers.scores()["acc"]
        1.0
        >>> answers.fit_temperature() < 1  # its predictions are correct, but not confident enough
        True
    """

    kind: ClassVar[str] = "members"  # its name in files

    logits: Tensor
    labels: Tensor

    @staticmethod
    def joined(parts: Sequence[Predictions]) -> Predictions:
        """Concatenate the predictions of the same members on several splits. [m Σn k]"""
        if len({part.kind for part in parts}) != 1:
            raise ValueError("predictions of members and of Dirichlets cannot be joined")
        logits = torch.cat([part.logits for part in parts], dim=1)
        return replace(parts[0], logits=logits, labels=torch.cat([part.labels for part in parts]))

    def first(self, members: int) -> Predictions:
        """The predictions of the first members."""
        return replace(self, logits=self.logits[:members])

    def every(self, step: int) -> Predictions:
        """Every `step`-th example, from the first on."""
        return replace(self, logits=self.logits[:, ::step], labels=self.labels[::step])

    def member(self, j: int) -> Predictions:
        """The predictions of member j alone."""
        return replace(self, logits=self.logits[j : j + 1])

    @property
    def members(self) -> int:
        """The number of members."""
        return len(self.logits)

    @property
    def varies(self) -> bool:
        """Whether there are several predictions of an image: from several members, or from a Dirichlet."""
        return self.members > 1

    # Quality

    def scores(self, temperature: float = 1.0) -> dict[str, float | None]:
        """All scores by name, at a temperature; kld, the mean-KLD of members, is always at temperature 1.

        For calibrated scores, pass the temperature that `fit_temperature` returns on validation images.
        """
        log_probs, selective = self.log_probs(temperature), self.selective(temperature)["doubt"]
        return {
            **self.quality(temperature),
            "kld": self.mean_kld(),
            "adaptive_ece": adaptive_ece(log_probs, self.labels),
            "class_wise_ece": class_wise_ece(log_probs, self.labels),
            **selective.scores(),
        }

    def quality(self, temperature: float = 1.0) -> dict[str, float]:
        """Scores of the mean prediction: acc, nll, bs (Brier, summed over classes) and ece."""
        log_probs, labels = self.log_probs(temperature), self.labels
        return {
            "acc": accuracy(log_probs, labels),
            "nll": nll(log_probs, labels),
            "bs": brier(log_probs, labels),
            "ece": ece(log_probs, labels),
        }

    def selective(self, temperature: float = 1.0) -> dict[str, Selective]:
        """The risk–coverage curve of each of the `uncertainties`."""
        errors = 1 - is_correct(self.log_probs(), self.labels)
        return {name: Selective(values, errors) for name, values in self.uncertainties(temperature).items()}

    def confidence_at(self, coverage: float, temperature: float = 1.0) -> float:
        """The lowest confidence among the ⌈coverage · n⌉ most confident images."""
        confidences = confidence(self.log_probs(temperature)).sort(descending=True).values
        return float(confidences[images_at(coverage, len(confidences)) - 1])

    def set_rule(self, score: SetMeasure = lac) -> SetRule:
        """The rule for prediction sets, calibrated on these images."""
        return SetRule.calibrated(self.log_probs(), self.labels, score)

    def groups(self, groups: Tensor, temperature: float = 1.0) -> dict[int, GroupScore]:
        """Scores by group; `groups` has the group of each image. [n]"""
        return group_scores(self.log_probs(temperature), self.labels, groups)

    def fit_temperature(self) -> float:
        """The temperature that minimises the NLL of the mean prediction on these images."""
        return fit_temperature(self.log_probs(), self.labels)

    def log_probs(self, temperature: float = 1.0) -> Tensor:
        """Log of the mean prediction at a temperature (default: 1, uncalibrated). [n k]"""
        mean = ensemble_log_probs(self.logits)
        return mean if temperature == 1 else temper(mean, temperature)

    # Diversity

    def mean_kld(self) -> float:
        """The paper's mean-KLD: the mean of `divergence` over examples."""
        return float(self.divergence().mean())

    def divergence(self) -> Tensor:
        """Mean KL divergence over pairs of members in nats; 0 for one member. [n]"""
        return pairwise_kld(member_log_probs(self.logits))

    def information(self) -> Tensor:
        """Mutual information of label and member: the uncertainty that comes from disagreement. [n]"""
        return information(member_log_probs(self.logits))

    def least_confidence(self) -> Tensor:
        """The confidence of the least confident member. [n]"""
        return confidence(member_log_probs(self.logits)).amin(0)

    def diversity_bins(self, bins: int = 15) -> DiversityBins:
        """The diversity plot: mean divergence in equal bins (low, high] of `least_confidence`."""
        return diversity_bins(self.least_confidence(), self.divergence(), bins)

    # Uncertainty, and comparison with other predictions

    def uncertainties(self, temperature: float = 1.0) -> dict[str, Tensor]:
        """Non-negative uncertainties by name, larger for less certain images. [n] each

        Entropy and doubt (1 − confidence) are of the mean prediction at a temperature. Mutual information is
        always at temperature 1; a single network has none.
        """
        mean = self.log_probs(temperature)
        doubt = mean.double().sort(-1).values[..., :-1].exp().sum(-1)  # not 1 − p, which is 0 for p near 1
        information = {"mutual_information": self.information()} if self.varies else {}
        return {"entropy": entropy(mean), **information, "doubt": doubt}

    def alarms(self) -> dict[str, Tensor]:
        """Scores that may detect unknown inputs: uncertainties, energy, maximum logit. [n] each"""
        return self.uncertainties() | {"energy": energy(self.logits), "max_logit": max_logit(self.logits)}

    def detect(self, unknown: Predictions) -> dict[str, Detection]:
        """How well each of the `alarms` separates unknown inputs from these."""
        others = unknown.alarms()
        return {name: detect(values, others[name]) for name, values in self.alarms().items()}

    def fidelity(self, teachers: Predictions) -> Fidelity:
        """How closely a student follows its own teachers; raises a ValueError if the images differ."""
        if not torch.equal(self.labels, teachers.labels):
            raise ValueError("a student and its teachers can be compared on the same images only")
        mine, theirs = self.divergence(), teachers.divergence()
        correlation = distance = own_kld = other_kld = None
        if self.varies:
            correlation, distance = rank_correlation(mine, theirs), float((mine - theirs).abs().mean())
        if self.members == teachers.members > 1:
            own_kld, other_kld = voices(member_log_probs(self.logits), member_log_probs(teachers.logits))
        return Fidelity(correlation, distance, own_kld, other_kld)


class DirichletPredictions(Predictions):
    """Log concentrations [1 n k] of one network that predicts a Dirichlet: infinitely many members.

    Their softmax is the mean of the Dirichlet. Divergence and information are those of random draws.
    """

    kind = "dirichlet"
    varies = True

    def divergence(self) -> Tensor:
        """Expected KL divergence of two draws in nats. [n]"""
        return dirichlet_kld(self.logits[0])

    def information(self) -> Tensor:
        """Mutual information of label and draw. [n]"""
        return dirichlet_information(self.logits[0])

    def least_confidence(self) -> Tensor:
        """The confidence of the mean prediction: there is no least confident draw. [n]"""
        return confidence(self.log_probs())
