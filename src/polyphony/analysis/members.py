"""Predictions on perturbed images: the paper's first figure, and directions from other networks (§4.2)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyphony.data import Split, pixels
from polyphony.distill.perturb import ODS, Perturbation, applied
from polyphony.ensembles import DeepEnsemble, Ensemble, evaluating
from polyphony.metrics import Predictions
from polyphony.training.predict import predict


def member_views(
    teachers: DeepEnsemble,
    students: Mapping[str, Ensemble],
    split: Split,
    perturb: Perturbation,
    temperature: float,
    rng: torch.Generator,
) -> dict[str, Tensor]:
    """Images and the probabilities of each member, by their names in the file.

    `images` and `perturbed` are uint8 [n c h w]. `teachers` and `students.NAME` are float32 [2 m n k]: on the
    images, then on the perturbed ones before these are rounded to uint8.
    """
    x = pixels(split.images.to(teachers.device))
    x_tilde = perturb(x, split.labels.to(teachers.device), teachers, None, temperature, rng)
    models: dict[str, Ensemble] = {"teachers": teachers}
    models |= {f"students.{name}": student for name, student in students.items()}
    views = {
        name: torch.stack([probabilities(model, x), probabilities(model, x_tilde)])
        for name, model in models.items()
    }
    perturbed = (255 * x_tilde).round().to(torch.uint8).cpu().contiguous()
    return {"images": split.images.cpu().contiguous(), "perturbed": perturbed, **views}


def probabilities(ensemble: Ensemble, x: Tensor) -> Tensor:
    """Each member's softmax. [b c h w] → [m b k]"""
    with torch.no_grad(), evaluating(ensemble):
        return ensemble.ask_all(x).float().softmax(-1).cpu()


def external_predictions(
    teachers: DeepEnsemble,
    source: DeepEnsemble,
    split: Split,
    step_size: float,
    temperature: float,
    rng: torch.Generator,
) -> Predictions:
    """The teachers' predictions on images that ODS perturbs with directions from `source`."""
    before = applied(ODS().build(step_size), source, None, temperature, rng)
    return predict(teachers, split, before=before)
