"""Predictions of each member before and after a perturbation (the paper's first figure)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyphony.data import Split, pixels
from polyphony.distill.perturb import Perturbation
from polyphony.ensembles import DeepEnsemble, Ensemble, evaluating


def member_views(
    teachers: DeepEnsemble,
    students: Mapping[str, Ensemble],
    split: Split,
    perturb: Perturbation,
    temperature: float,
    rng: torch.Generator,
) -> dict[str, Tensor]:
    """Images and the probabilities of each member, by the names in the file.

    `images` and `perturbed` uint8 [n c h w]; `teachers` and `students.NAME` float32 [2 m n k], on the images
    and then on the perturbed ones. Those probabilities are of the perturbed pixels before they are rounded.
    """
    x = pixels(split.images.to(teachers.device))
    x_tilde = perturb(x, split.labels.to(teachers.device), teachers, None, temperature, rng)
    named: dict[str, Ensemble] = {"teachers": teachers}
    named |= {f"students.{name}": student for name, student in students.items()}
    views = {
        name: torch.stack([probabilities(model, seen) for seen in (x, x_tilde)])
        for name, model in named.items()
    }
    perturbed = (255 * x_tilde).round().to(torch.uint8).cpu().contiguous()
    return {"images": split.images.cpu().contiguous(), "perturbed": perturbed, **views}


def probabilities(ensemble: Ensemble, x: Tensor) -> Tensor:
    """Each member's softmax. [b c h w] → [m b k]"""
    with torch.no_grad(), evaluating(ensemble):
        return ensemble(x.expand(ensemble.members, *x.shape)).float().softmax(-1).cpu()
