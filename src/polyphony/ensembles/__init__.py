"""Whatever has members: maps [m b c h w] → [m b k], member j seeing row block j."""

from __future__ import annotations

from polyphony.ensembles.base import (
    Assignment,
    Ensemble,
    SameRows,
    ask,
    asking_by,
    evaluating,
    member_rows,
)
from polyphony.ensembles.batch_ensemble import BatchEnsemble, LatentBE
from polyphony.ensembles.deep import DeepEnsemble, Separate, Single
from polyphony.ensembles.dirichlet import Dirichlet
from polyphony.ensembles.hydra import Hydra
from polyphony.ensembles.latent_factor import LatentFactor
from polyphony.ensembles.low_rank import LoRAEnsemble
from polyphony.ensembles.mimo import MIMO

__all__ = [
    "MIMO",
    "Assignment",
    "BatchEnsemble",
    "DeepEnsemble",
    "Dirichlet",
    "Ensemble",
    "Hydra",
    "LatentBE",
    "LatentFactor",
    "LoRAEnsemble",
    "SameRows",
    "Separate",
    "Single",
    "ask",
    "asking_by",
    "evaluating",
    "member_rows",
]
