"""The saved result of a student's conversion check, so that loading it needs no second check."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import metadata

import torch
from pydantic import ValidationError

from polyphony import __version__
from polyphony._util.settings import Settings
from polyphony.ensembles import Ensemble
from polyphony.nn.conversion import Order
from polyphony.nn.members import order_of
from polyphony.recipe import Blueprint, FormTable
from polyphony.runs.stage import Record
from polyphony.runs.store import spec_key


class Proof(Settings):
    """How members run in the layers of a network, and the hash of everything that this depends on."""

    key: str
    order: Order

    @classmethod
    def of(cls, student: Ensemble, form: FormTable, blueprint: Blueprint) -> Proof | None:
        """The proof of a student that has run on images of this shape; None if it was not converted."""
        order = order_of(getattr(student, "network", None))
        return None if order is None else cls(key=proof_key(order, form, blueprint), order=order)

    @classmethod
    def read(cls, record: Record) -> Proof | None:
        """The proof in the record of a training; None in records of early versions."""
        with suppress(ValidationError):
            return cls.model_validate_json(json.dumps(record.get("proof")), strict=True)
        return None


def with_proof(blueprint: Blueprint, form: FormTable, proof: Proof | None) -> Blueprint:
    """The blueprint; if the proof is for this network, with its order, so that no check is needed."""
    if proof is None or proof.key != proof_key(proof.order, form, blueprint):
        return blueprint
    return replace(blueprint, proven=proof.order)


def proof_key(order: Order, form: FormTable, blueprint: Blueprint) -> str:
    """The hash of the order, the network, the form, the shape of the images and the versions of libraries."""
    versions = {"polyphony": __version__, "torch": torch.__version__}
    kind = getattr(blueprint.table, "kind", "")
    if kind in ("timm", "transformers"):  # the library of the network
        versions[kind] = metadata.version(kind)
    return spec_key(
        {
            "order": asdict(order),
            "network": blueprint.table.spec(),
            "form": form.spec(),
            "shape": list(blueprint.shape),
            "versions": versions,
        }
    )
