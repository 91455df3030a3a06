"""`FORMAT` is raised by hand when trained weights change: what trainings of every kind gave is recorded.

If this fails, the code of a training gives other weights than before: in `polyphony/` training, distill,
ensembles, nn, compute, data/batches.py, recipe or study/trainings.py. If that is meant, raise `FORMAT` in
study/plan.py, so that no result of before passes for a new one, and record anew:

    python tests/study/test_format.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from polyphony.compute.devices import arithmetic
from polyphony.recipe import read_recipe
from polyphony.runs.stage import TrainingFolder
from polyphony.study.fingerprints import fingerprints
from polyphony.study.plan import FORMAT, plan
from polyphony.study.study import Study
from polyphony.training.fit import Unwatched

RECORD = Path(__file__).parent / "format.json"
METHODS = {
    "scratch": "{}",
    "matched": "{perturb='ods', step_size='match'}",
    "hydra": "{perturb='mixup+gaussian', form='hydra'}",
    "latent": "{perturb='diversify', form='latent_be'}",
    "mimo": "{perturb='adversarial', form='mimo'}",
    "dirichlet": "{perturb='confods', form='dirichlet', source='extra'}",
    "searched": "{perturb='ods', step_size='search', passes='one'}",
    "born": "{perturb='clean', start='teacher', passes='one'}",
}
OVERRIDES = (
    "members=2",
    "seeds=[0]",
    "data.per_class=5",
    "data.valid=40",
    "data.test=40",
    "data.augment={pad=1, flip=true}",
    "teachers={network={kind='resnet', depth=8, width=2}, extra=1, epochs=5, batch=25, learning_rate=0.1}",
    "teachers.warm_up=2",
    "student={epochs=5, batch=25, learning_rate=0.1, warm_up=2, weight_decay=1e-3}",
    "methods={" + ", ".join(f"{name}={table}" for name, table in METHODS.items()) + "}",
)


def trained(folder: Path) -> dict[str, dict[str, float]]:
    """What each training ends with: the last training loss, the norm of its weights."""
    study, results = Study(read_recipe("digits", OVERRIDES), folder), {}
    for job in plan(study, fingerprints(study)):
        if job.in_ranks:
            with arithmetic():
                job.run(Unwatched())
            log = (job.result.folder / "log.jsonl").read_text().splitlines()
            weights = [
                weight.double().flatten() for weight in TrainingFolder(job.result.folder).weights().values()
            ]
            results[job.name] = {
                "loss": json.loads(log[-1])["loss"],
                "norm": float(torch.cat(weights).norm()),
            }
    return results


def test_trainings_of_this_format_still_give_what_they_gave(tmp_path):
    before = json.loads(RECORD.read_text())
    assert before["format"] == FORMAT, "FORMAT was raised: record anew, as the head of this file says"
    now = trained(tmp_path)
    assert now.keys() == before["trained"].keys()
    for name, numbers in before["trained"].items():
        assert now[name] == pytest.approx(numbers, rel=5e-4), name


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        record = {"format": FORMAT, "trained": trained(Path(folder))}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    sys.stdout.write(f"recorded {len(record['trained'])} trainings of format {FORMAT}\n")
