"""Whatever has members: maps [m b c h w] → [m b k], member j seeing row block j."""

from __future__ import annotations

from polyphony.ensembles.base import Ensemble
from polyphony.ensembles.batch_ensemble import BatchEnsemble
from polyphony.ensembles.deep import DeepEnsemble, Single

__all__ = ["BatchEnsemble", "DeepEnsemble", "Ensemble", "Single"]
