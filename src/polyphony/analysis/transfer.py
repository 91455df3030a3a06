"""Do ODS directions of one network make other networks disagree (§4.2)?"""

from __future__ import annotations

import torch

from polyphony.data import Split
from polyphony.distill.perturb import ODS, applied
from polyphony.ensembles import DeepEnsemble
from polyphony.metrics import Predictions
from polyphony.training.predict import predict


def external_predictions(
    teachers: DeepEnsemble,
    source: DeepEnsemble,
    split: Split,
    step_size: float,
    temperature: float,
    rng: torch.Generator,
) -> Predictions:
    """The teachers' predictions on images perturbed by ODS with directions from `source`, other networks."""
    before = applied(ODS(step_size=step_size), source, None, temperature, rng)
    return predict(teachers, split, before=before)
