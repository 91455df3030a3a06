"""Files of a run folder, damaged; weights from elsewhere; settings of the library that make no sense."""

from __future__ import annotations

import io
from functools import cache
from math import inf, nan
from pathlib import Path
from random import Random

import safetensors.torch
import torch
from damage import damaged, number
from judge import Call, Kind

from polyphony import ODS, Adversarial, DeepEnsemble, Distill, Gaussian, Mixup, Plan, Predictions, resnet
from polyphony.data import DataError
from polyphony.distill import DistillMean
from polyphony.nn.weights import load_weights
from polyphony.runs.predictions import read_predictions, save_predictions, saved_key
from polyphony.runs.stage import Stage, TrainingFolder
from polyphony.runs.store import StoreError

ODD = (nan, inf, -inf, 0, -1, -0.0, 1e308, 1e-320, 2, 0.5, True)


@cache
def network() -> torch.nn.Module:
    return resnet(8, 3, width=2)


def stages(random: Random, folder: Path) -> Call:
    stage = Stage(folder / "teachers" / "0", {"plan": {"epochs": 3}, "seed": 1})
    stage.start()
    stage.save({"model": {"w": torch.arange(3.0)}, "log": [{"epoch": 0, "loss": 1.5}]})
    if finished := random.random() < 0.5:
        stage.finish({"w": torch.arange(3.0)}, {"code": "x"})
    names = ("done.json", "weights.safetensors") if finished else ("started.json", "resume.pt")
    file = stage.folder / random.choice(names)
    file.write_bytes(damaged(random, file.read_bytes()))

    def call() -> None:
        if stage.is_done():
            assert set(TrainingFolder(stage.folder).weights()) == {"w"}
        else:
            stage.difference()
            stage.load()

    return call


def predictions(random: Random, folder: Path) -> Call:
    file = folder / "predictions" / "teachers" / "test.safetensors"
    save_predictions(file, Predictions(torch.zeros(2, 4, 3), torch.tensor([0, 1, 2, 0])), "key")
    file.write_bytes(damaged(random, file.read_bytes()))

    def call() -> None:
        if saved_key(file) == "key":
            found = read_predictions(file)
            assert bool(found.logits.isfinite().all())
            assert 0 <= int(found.labels.min()) <= int(found.labels.max()) < found.logits.shape[2]

    return call


def weights(random: Random, folder: Path) -> Call:
    state, stream = network().state_dict(), io.BytesIO()
    torch.save(state, stream)
    packed = random.random() < 0.5
    content = safetensors.torch.save(state) if packed else stream.getvalue()
    file = folder / ("w.safetensors" if packed else "w.pt")
    file.write_bytes(damaged(random, content))
    return lambda: load_weights(resnet(8, 3, width=2), file)


def settings(random: Random, folder: Path) -> Call:
    teachers = DeepEnsemble([network()])
    value = random.choice(ODD) if random.random() < 0.7 else number(random)
    makers = (
        lambda: Plan(epochs=value),
        lambda: Plan(batch=value),
        lambda: Plan(learning_rate=value),
        lambda: Plan(weight_decay=value),
        lambda: Plan(clip=value),
        lambda: Distill(teachers, alpha=value),
        lambda: Distill(teachers, temperature=value),
        lambda: DistillMean(teachers, alpha=value),
        lambda: ODS(value),
        lambda: Gaussian(value),
        lambda: Adversarial(value),
        lambda: Mixup(value),
    )
    return random.choice(makers)


KINDS = (
    Kind("stages of a run", stages, (StoreError,)),
    Kind("predictions of a run", predictions, (StoreError,)),
    Kind("weights", weights, (DataError,)),
    Kind("settings", settings, (ValueError,)),
)
