"""Ensembles: modules with members that map [m b c h w] → [m b k]; member j sees row block j."""

from __future__ import annotations

from polyphony.ensembles.base import (
    Assignment,
    Ensemble,
    SameRows,
    call_network,
    evaluating,
    member_rows,
    networks_called_by,
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
    "call_network",
    "evaluating",
    "member_rows",
    "networks_called_by",
]
