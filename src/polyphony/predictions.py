"""Any ensemble × split → Predictions: logits are made once, every number after that is a function of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polyphony import metrics
from polyphony.data import Split, pixels
from polyphony.devices import send
from polyphony.ensembles import Ensemble, evaluating


@dataclass(frozen=True, eq=False)
class Predictions:
    """Each member's logits [m n k] on a split, and the split's labels [n].

    Of one network that predicts a Dirichlet they are its log concentrations [1 n k], and `dirichlet` is true.
    Numbers about how predictions spread are methods here, so that nobody else has to ask which they are.
    """

    logits: Tensor
    labels: Tensor
    dirichlet: bool = False

    @property
    def members(self) -> int:
        """How many predictors these are the outputs of."""
        return len(self.logits)

    @property
    def varies(self) -> bool:
        """Whether there is anything to differ: several members, or draws from a Dirichlet."""
        return self.members > 1 or self.dirichlet

    def first(self, members: int) -> Predictions:
        """Those of the first members alone."""
        return replace(self, logits=self.logits[:members])

    def log_probs(self) -> Tensor:
        """Log of the mean prediction, of members or of the Dirichlet: what scores of quality read. [n k]"""
        return metrics.ensemble_log_probs(self.logits)

    def uncertainties(self, temperature: float = 1.0) -> metrics.Uncertainties:
        """Each example's; the temperature scales the mean prediction alone."""
        if self.dirichlet:
            return metrics.dirichlet_uncertainties(self.logits[0], temperature)
        return metrics.uncertainties(self.logits, temperature)

    def mean_kld(self) -> float:
        """Mean divergence of two members, or of two draws from the Dirichlet, in nats; 0 for one network."""
        if self.dirichlet:
            return float(metrics.dirichlet_kld(self.logits[0]).mean())
        return metrics.mean_kld(self.logits)

    def diversity_bins(self, bins: int = 15) -> metrics.DiversityBins:
        """The diversity plot, by the least confident member's confidence, or the Dirichlet's mean's."""
        if self.dirichlet:
            return metrics.dirichlet_bins(self.logits[0], bins)
        return metrics.diversity_bins(self.logits, bins)

    def spread(self) -> metrics.Spread:
        """What the health check judges."""
        measured = metrics.Spread.of(self.logits, self.labels)
        return replace(measured, kld=self.mean_kld(), distribution=True) if self.dirichlet else measured


def pool(predictions: Sequence[Predictions]) -> Predictions:
    """The examples of several predictions of one kind by equally many members as one, [m Σn k]."""
    if len({each.dirichlet for each in predictions}) != 1:
        raise ValueError("predictions of members and of Dirichlets cannot be pooled")
    logits = torch.cat([each.logits for each in predictions], dim=1)
    return replace(predictions[0], logits=logits, labels=torch.cat([each.labels for each in predictions]))


def detect_unknown(
    known: Predictions, unknown: Predictions, temperature: float = 1.0
) -> dict[str, metrics.Detection]:
    """How well each uncertainty tells unknown inputs from known ones."""
    return metrics.detect_unknown(known.uncertainties(temperature), unknown.uncertainties(temperature))


def unchanged(x: Tensor, y: Tensor) -> Tensor:
    """The inputs as they are."""
    return x


def predict(
    ensemble: Ensemble,
    split: Split,
    *,
    batch: int = 250,
    before: Callable[[Tensor, Tensor], Tensor] = unchanged,
) -> Predictions:
    """All members on every image, in eval mode and float32; `before` may change a batch's pixels first.

    The images go where the ensemble is; what comes out is on the CPU.
    """
    blocks = []
    with torch.no_grad(), evaluating(ensemble):
        for images, labels in zip(split.images.split(batch), split.labels.split(batch), strict=True):
            x = before(pixels(send(images, ensemble.device)), send(labels, ensemble.device))
            blocks.append(ensemble(x.expand(ensemble.members, *x.shape)).float().cpu())
    return Predictions(torch.cat(blocks, dim=1), split.labels.cpu(), ensemble.dirichlet)
