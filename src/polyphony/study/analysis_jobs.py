"""The jobs of analyses. For each kind, one function makes the job (its file and key), another measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from polyphony import analysis
from polyphony.compute.seeds import generator
from polyphony.data import Split, pixels
from polyphony.distill.perturb import ODS, Gaussian, Perturbation
from polyphony.execute.job import Job
from polyphony.nn import factor_distance
from polyphony.runs.predictions import prediction_path
from polyphony.runs.rows import FactorDistance, GradientSnr, JacobianCosine, TableRow
from polyphony.runs.scores import TEACHERS
from polyphony.runs.store import Spec, spec_key
from polyphony.study.evaluation import ANALYSIS_FORMAT, model_hashes, models_key, weights_of
from polyphony.study.jobs import TRAIN_SHOWN
from polyphony.study.saved import SavedRows, SavedTensors
from polyphony.study.study import Study
from polyphony.training.fit import Watch

Kind = TypeVar("Kind", bound=TableRow)
Saved = SavedRows[Any] | SavedTensors
SNR_BATCH, SNR_SAMPLES = 32, 50
SNR_STEPS = (1 / 4, 1 / 2, 1, 2, 4)  # times the recipe's ODS step size
NOISES: dict[str, Callable[[float], Perturbation]] = {
    "gaussian": lambda step_size: Gaussian(step_size=step_size),
    "ods": lambda step_size: ODS(step_size=step_size),
}
IMAGES_SHOWN = 8


@dataclass(frozen=True)
class Measure:
    """Measures trained models, and saves the result."""

    measure: Callable[[Watch], Any]  # returns what is saved; it must be picklable

    def run(self, result: Saved, watch: Watch) -> None:
        result.save(self.measure(watch))
        watch.epoch({})


def analysis_job(name: str, saved: Saved, measure: Callable[[Watch], Any], epochs: int = 1) -> Job:
    return Job(name, (), saved, Measure(measure), epochs)


def rows_of(study: Study, kind: type[Kind], spec: Spec, name: str = "") -> SavedRows[Kind]:
    """The file of one job's rows; `name` distinguishes jobs of the same table."""
    path = study.folder / "analysis" / "parts" / f"{Path(kind.file).stem}{name}.json"
    return SavedRows(path, spec_key({"format": ANALYSIS_FORMAT, **spec}), kind)


def hashes_with_teachers(study: Study, method: str, seed: int) -> list[list[str]]:
    return [model_hashes(study, TEACHERS, None), model_hashes(study, method, seed)]


def ods_setting(study: Study) -> tuple[float, float]:
    """Step size and temperature of the recipe's first method with ODS, or ConfODS, or of all students."""
    recipe = study.recipe
    for kind in ("ods", "confods"):
        for name, method in recipe.methods.items():
            settings = recipe.distillation(name)
            if method.label == kind and settings:
                done = study.student(name, recipe.seeds[0]).record()
                return float(done["step_size"]), settings.temperature
    step_size = recipe.student.step_size
    return 1 / 255 if step_size == "match" else step_size, recipe.student.temperature


def jacobians_job(study: Study, method: str, seed: int, examples: int) -> Job:
    """Cosines between Jacobians of members and their teachers, on training and validation images."""
    spec = {
        "weights": hashes_with_teachers(study, method, seed),
        "images": [split.fingerprint for split in images_compared(study, examples).values()],
    }
    saved = rows_of(study, JacobianCosine, spec, f"-{method}-{seed}")
    measure = partial(match_jacobians, study, method, seed, examples)
    return analysis_job(f"Jacobians of {method}, seed {seed}", saved, measure, epochs=2)


def images_compared(study: Study, examples: int) -> dict[str, Split]:
    return {"train": study.data().train.some(examples), "valid": study.data().valid.some(examples)}


def match_jacobians(
    study: Study, method: str, seed: int, examples: int, watch: Watch
) -> list[JacobianCosine]:
    rows: list[JacobianCosine] = []
    teachers, student = study.load_teachers(study.recipe.members), study.load_student(method, seed)
    for name, split in images_compared(study, examples).items():
        cosines = analysis.jacobian_cosines(teachers, student, split, watch=watch)
        for j, member in enumerate(cosines.tolist()):
            rows += [
                JacobianCosine(name, method, seed, j, i, round(cosine, 6)) for i, cosine in enumerate(member)
            ]
        if name == "train":
            watch.epoch({})
    return rows


def snr_job(study: Study, noise: str, scale: float, student: tuple[str, int]) -> Job:
    """The SNR of a student's gradient under a perturbation with `scale` times the recipe's ODS step size."""
    spec = {
        "weights": hashes_with_teachers(study, *student),
        "images": study.data().train.some(SNR_BATCH).fingerprint,
        "setting": [*ods_setting(study), scale, SNR_SAMPLES],
    }
    saved = rows_of(study, GradientSnr, spec, f"-{noise}-{scale:g}")
    measure = partial(measure_snr, study, noise, scale, student)
    return analysis_job(f"gradient SNR of {noise} at {scale:g} × the step size", saved, measure)


def measure_snr(
    study: Study, noise: str, scale: float, student: tuple[str, int], watch: Watch
) -> list[GradientSnr]:
    base, temperature = ods_setting(study)
    batch, step_size = study.data().train.some(SNR_BATCH), scale * base
    found = analysis.gradient_snr(
        study.load_student(*student),
        study.load_teachers(study.recipe.members),
        pixels(batch.images.to(study.device)),
        batch.labels.to(study.device),
        NOISES[noise](step_size),
        temperature,
        generator("gradient samples", 0),  # the same draws at every step size
        SNR_SAMPLES,
        watch,
    )
    return [GradientSnr(noise, step_size, found, SNR_SAMPLES)]


def transfer_job(study: Study) -> Job:
    """The teachers on training images perturbed by ODS with directions of an extra teacher."""
    spec: Spec = {
        "format": ANALYSIS_FORMAT,
        "weights": [
            *model_hashes(study, TEACHERS, None),
            weights_of(study.teacher(study.recipe.members)),
        ],
        "split": study.data().train.some(TRAIN_SHOWN).fingerprint,
        "external": ods_setting(study),
    }
    saved = SavedTensors(prediction_path(study.folder, TEACHERS, None, "train+external"), spec_key(spec))
    return analysis_job("teachers through an external one", saved, partial(measure_transfer, study))


def measure_transfer(study: Study, watch: Watch) -> dict[str, Tensor]:
    members, rng = study.recipe.members, generator("perturbed training images", 0)
    teachers, source = study.load_teachers(members), study.load_teachers(1, first=members)
    images = study.data().train.some(TRAIN_SHOWN)
    found = analysis.external_predictions(teachers, source, images, *ods_setting(study), rng)
    return {"logits": found.logits, "labels": found.labels}


def members_job(study: Study) -> Job:
    """Some training images with the answers of every teacher, and of every member for the first seed."""
    images = images_shown(study).fingerprint
    spec = {"models": models_key(study), "images": images, "step": ods_setting(study)}
    saved = SavedTensors(study.folder / "analysis" / "members.safetensors", spec_key(spec))
    return analysis_job("predictions of members", saved, partial(show_members, study))


def images_shown(study: Study) -> Split:
    train = study.data().train
    return train[torch.randperm(len(train), generator=generator("images shown", 0))[:IMAGES_SHOWN]]


def show_members(study: Study, watch: Watch) -> dict[str, Tensor]:
    step_size, temperature = ods_setting(study)
    first = study.recipe.seeds[0]
    return analysis.member_views(
        study.load_teachers(study.recipe.members),
        {name: study.load_student(name, first) for name in study.recipe.methods},
        images_shown(study),
        ODS(step_size=step_size),
        temperature,
        generator("images shown", 1),
    )


def factors_job(study: Study, methods: Sequence[str]) -> Job:
    """Distances between the rank-one factors of the members of some methods' students."""
    saved = rows_of(study, FactorDistance, {"models": models_key(study)})
    return analysis_job("distances of factors", saved, partial(measure_factors, study, tuple(methods)))


def measure_factors(study: Study, methods: Sequence[str], watch: Watch) -> list[FactorDistance]:
    rows: list[FactorDistance] = []
    students = [(method, seed) for method, seed in study.students if method in methods]
    for method, seed in students:
        rows.append(FactorDistance(method, seed, factor_distance(study.load_student(method, seed))))
        watch.step(len(rows), len(students), {})
    return rows
