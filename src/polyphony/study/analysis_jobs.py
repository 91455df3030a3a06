"""The jobs of an analysis: each gives a run's models to `analysis` and keeps what comes out in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from polyphony import analysis
from polyphony.analysis import Progress
from polyphony.data import Split, pixels
from polyphony.ensembles import Ensemble
from polyphony.machine import processor
from polyphony.perturb import ODS, Gaussian, Perturbation
from polyphony.rows import FactorDistance, GradientSnr, JacobianCosine, Latency, TableRow
from polyphony.scores import TEACHERS
from polyphony.seeds import generator
from polyphony.store import Spec, prediction_path, spec_key
from polyphony.study.evaluation import ANALYSIS_FORMAT, model_hashes, models_key
from polyphony.study.jobs import TRAIN_SHOWN
from polyphony.study.runner import Job
from polyphony.study.saved import SavedRows, SavedTensors
from polyphony.study.score_table import parameter_counts
from polyphony.study.study import Study
from polyphony.study.subjects import ods_setting
from polyphony.train import Watch

Kind = TypeVar("Kind", bound=TableRow)
EXAMPLES = 500  # images of a split whose Jacobians are compared
SNR_BATCH, SNR_SAMPLES = 32, 50
SNR_STEPS = (1 / 4, 1 / 2, 1, 2, 4)  # times the recipe's ODS step size
NOISES: dict[str, Callable[[float], Perturbation]] = {"gaussian": Gaussian, "ods": ODS}
IMAGES_SHOWN = 8
LATENCY_BATCH = 64


def rows_of(study: Study, kind: type[Kind], spec: Spec, name: str = "") -> SavedRows[Kind]:
    """Where the rows of one job are kept; `name` tells it from others of the same table."""
    path = study.folder / "analysis" / "parts" / f"{Path(kind.file).stem}{name}.json"
    return SavedRows(path, spec_key({"format": ANALYSIS_FORMAT, **spec}), kind)


def hashes_with_teachers(study: Study, method: str, seed: int) -> list[list[str]]:
    """The hashes of the teachers' weights, and of a student's."""
    return [model_hashes(study, TEACHERS, None), model_hashes(study, method, seed)]


def told(watch: Watch) -> Progress:
    """Progress within an epoch, passed on to a watch."""
    return lambda done, total: watch.step(done, total, {})


class AnalysisJob(Job, Protocol):
    """A job that measures something of a run's models, and keeps it in a file."""

    @property
    def saved(self) -> Any:
        """The file, under the key of what is in it."""

    def measure(self, watch: Watch) -> Any:
        """What is kept."""

    def is_done(self) -> bool:
        return self.saved.load() is not None

    def run(self, watch: Watch) -> None:
        self.saved.save(self.measure(watch))
        watch.epoch({})


@dataclass(frozen=True)
class MatchJacobians(AnalysisJob):
    """Cosines of Jacobians of one student's members and their teachers, on training and validation images."""

    study: Study
    method: str
    seed: int
    examples: int
    epochs: int = 2

    @property
    def name(self) -> str:
        return f"Jacobians of {self.method}, seed {self.seed}"

    @property
    def splits(self) -> dict[str, Split]:
        """The first images of each."""
        splits = self.study.splits
        return {"train": splits.train.some(self.examples), "valid": splits.valid.some(self.examples)}

    @property
    def saved(self) -> SavedRows[JacobianCosine]:
        """The cosines of both splits."""
        spec = {
            "weights": hashes_with_teachers(self.study, self.method, self.seed),
            "images": [split.fingerprint for split in self.splits.values()],
        }
        return rows_of(self.study, JacobianCosine, spec, f"-{self.method}-{self.seed}")

    def measure(self, watch: Watch) -> list[JacobianCosine]:
        study, rows = self.study, list[JacobianCosine]()
        teachers = study.load_teachers(study.recipe.members)
        student = study.load_student(self.method, self.seed)
        for name, split in self.splits.items():
            cosines = analysis.jacobian_cosines(teachers, student, split, progress=told(watch))
            for j, member in enumerate(cosines.tolist()):
                rows += [
                    JacobianCosine(name, self.method, self.seed, j, i, round(cosine, 6))
                    for i, cosine in enumerate(member)
                ]
            if name == "train":
                watch.epoch({})
        return rows


@dataclass(frozen=True)
class MeasureSnr(AnalysisJob):
    """The gradient's signal-to-noise ratio for one perturbation and step size."""

    study: Study
    perturbation: str
    scale: float  # of the recipe's ODS step size
    student: tuple[str, int]  # whose gradients: method and seed
    epochs: int = 1

    @property
    def name(self) -> str:
        return f"gradient SNR of {self.perturbation} at {self.scale:g} × the step size"

    @property
    def saved(self) -> SavedRows[GradientSnr]:
        """One row."""
        spec = {
            "weights": hashes_with_teachers(self.study, *self.student),
            "images": self.study.splits.train.some(SNR_BATCH).fingerprint,
            "setting": [*ods_setting(self.study), self.scale, SNR_SAMPLES],
        }
        return rows_of(self.study, GradientSnr, spec, f"-{self.perturbation}-{self.scale:g}")

    def measure(self, watch: Watch) -> list[GradientSnr]:
        study, (base, temperature) = self.study, ods_setting(self.study)
        batch, step_size = study.splits.train.some(SNR_BATCH), self.scale * base
        found = analysis.gradient_snr(
            study.load_student(*self.student),
            study.load_teachers(study.recipe.members),
            pixels(batch.images.to(study.device)),
            batch.labels.to(study.device),
            NOISES[self.perturbation](step_size),
            temperature,
            generator("gradient samples", 0),  # the same draws at every step size
            SNR_SAMPLES,
            told(watch),
        )
        return [GradientSnr(self.perturbation, step_size, found, SNR_SAMPLES)]


@dataclass(frozen=True)
class Transfer(AnalysisJob):
    """The teachers on training images perturbed by ODS with the directions of an extra teacher."""

    study: Study
    name: str = "teachers through an external one"
    epochs: int = 1

    @property
    def saved(self) -> SavedTensors:
        """The logits, under the hash of weights, images and step."""
        study = self.study
        source = study.teacher_stage(study.recipe.members).done()["weights"]
        spec: Spec = {
            "format": ANALYSIS_FORMAT,
            "weights": [*model_hashes(study, TEACHERS, None), source],
            "split": study.splits.train.some(TRAIN_SHOWN).fingerprint,
            "external": ods_setting(study),
        }
        path = prediction_path(study.folder, TEACHERS, None, "train+external")
        return SavedTensors(path, spec_key(spec))

    def measure(self, watch: Watch) -> dict[str, Tensor]:
        study, members = self.study, self.study.recipe.members
        teachers, source = study.load_teachers(members), study.load_teachers(1, first=members)
        rng = generator("perturbed training images", 0)
        images = study.splits.train.some(TRAIN_SHOWN)
        found = analysis.external_predictions(teachers, source, images, *ods_setting(study), rng)
        return {"logits": found.logits, "labels": found.labels}


@dataclass(frozen=True)
class ShowMembers(AnalysisJob):
    """A few training images, and what every teacher and member of the first seed says of them."""

    study: Study
    name: str = "predictions of members"
    epochs: int = 1

    @property
    def images(self) -> Split:
        """Training images drawn at random."""
        train = self.study.splits.train
        return train[torch.randperm(len(train), generator=generator("images shown", 0))[:IMAGES_SHOWN]]

    @property
    def saved(self) -> SavedTensors:
        """Images and probabilities, under the hash of weights, images and step."""
        spec = {"models": models_key(self.study), "images": self.images.fingerprint}
        path = self.study.folder / "analysis" / "members.safetensors"
        return SavedTensors(path, spec_key(spec | {"step": ods_setting(self.study)}))

    def measure(self, watch: Watch) -> dict[str, Tensor]:
        study, (step_size, temperature) = self.study, ods_setting(self.study)
        return analysis.member_views(
            study.load_teachers(study.recipe.members),
            {name: study.load_student(name, study.recipe.seeds[0]) for name in study.recipe.methods},
            self.images,
            ODS(step_size),
            temperature,
            generator("images shown", 1),
        )


@dataclass(frozen=True)
class MeasureLatency(AnalysisJob):
    """Milliseconds a batch of the teachers and of every method's student, on this machine."""

    study: Study
    name: str = "latency"
    epochs: int = 1

    @property
    def saved(self) -> SavedRows[Latency]:
        """A row for each model, made again on another machine."""
        study = self.study
        machine = [processor(), study.device, study.threads]
        images = list(study.splits.train.images.shape[1:])
        spec = {"machine": machine, "batch": [LATENCY_BATCH, *images], "params": parameter_counts(study)}
        return rows_of(study, Latency, spec)

    def measure(self, watch: Watch) -> list[Latency]:
        study, seed = self.study, self.study.recipe.seeds[0]
        models: dict[str, Ensemble] = {TEACHERS: study.load_teachers(study.recipe.members)}
        models |= {name: study.load_student(name, seed) for name in study.recipe.methods}
        shape = (LATENCY_BATCH, *study.splits.train.images.shape[1:])
        x = torch.rand(shape, generator=generator("latency", 0)).to(study.device)
        found = analysis.latencies(
            models, x.contiguous(memory_format=torch.channels_last), progress=told(watch)
        )
        params, threads = parameter_counts(study), torch.get_num_threads()
        return [Latency(name, params[name], ms, LATENCY_BATCH, threads) for name, ms in found.items()]


@dataclass(frozen=True)
class MeasureFactors(AnalysisJob):
    """How far apart the rank-one factors of some methods' members are."""

    study: Study
    methods: tuple[str, ...]
    name: str = "distances of factors"
    epochs: int = 1

    @property
    def saved(self) -> SavedRows[FactorDistance]:
        """A row for each student."""
        return rows_of(self.study, FactorDistance, {"models": models_key(self.study)})

    def measure(self, watch: Watch) -> list[FactorDistance]:
        rows = []
        students = [(method, seed) for method, seed in self.study.students if method in self.methods]
        for method, seed in students:
            distance = analysis.factor_distance(self.study.load_student(method, seed))
            rows.append(FactorDistance(method, seed, distance))
            watch.step(len(rows), len(students), {})
        return rows
