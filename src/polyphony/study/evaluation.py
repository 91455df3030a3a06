"""Inputs nobody was trained for: unknown classes and corrupted test images → saved predictions → tables.

Each function reads the run, predicts what is missing, writes its table and returns its rows; a second call
finds all of that done. A table keeps what it says of other data sets as long as the models are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from polyphony import metrics
from polyphony.metrics import Predictions
from polyphony.runs.predictions import load_predictions, prediction_path, save_predictions
from polyphony.runs.rows import CorruptedScore, TableRow, UnknownScore
from polyphony.runs.scores import TEACHERS
from polyphony.runs.store import FileError, Stage, locked, spec_key
from polyphony.study.jobs import Predict, predicting
from polyphony.study.runner import Board, Graph, Job, Runner
from polyphony.study.saved import SavedRows, load_rows, write_table
from polyphony.study.score_table import read
from polyphony.study.shifts import Corruptions, Shift, Unknown
from polyphony.study.study import Study
from polyphony.training.fit import Watch
from polyphony.training.predict import predict

Kind = TypeVar("Kind", bound=TableRow)
ANALYSIS_FORMAT = 1  # raised when what is measured of trained models changes, so that it is measured again


@dataclass(frozen=True)
class PredictShifted(Job):
    """The logits of one model on all splits of a shift, saved; each split is done once."""

    study: Study
    model: str  # "teachers", or a method
    seed: int | None
    shift: Shift
    fingerprints: tuple[str, ...]  # of the splits' images, taken once for all models

    @property
    def name(self) -> str:
        return predicting(self.model, self.seed, self.shift.name)

    @property
    def epochs(self) -> int:
        return len(self.fingerprints)

    @property
    def targets(self) -> list[tuple[str, Path, str]]:
        """(split, file, key) of every split."""
        weights = model_hashes(self.study, self.model, self.seed)
        return [
            (
                split,
                prediction_path(self.study.folder, self.model, self.seed, split),
                spec_key({"format": ANALYSIS_FORMAT, "weights": weights, "split": fingerprint}),
            )
            for split, fingerprint in zip(self.shift.splits, self.fingerprints, strict=True)
        ]

    def is_done(self) -> bool:
        return all(load_predictions(path, key) is not None for _, path, key in self.targets)

    def run(self, watch: Watch) -> None:
        study = self.study
        model = study.load_model(self.model, self.seed, study.recipe.members)
        for split, path, key in self.targets:
            if load_predictions(path, key) is None:
                save_predictions(path, predict(model, self.shift.images(split)), key)
            watch.epoch({})

    def read(self) -> dict[str, Predictions]:
        """Split → what was saved of it."""
        saved = {split: load_predictions(path, key) for split, path, key in self.targets}
        return {split: predictions for split, predictions in saved.items() if predictions is not None}


def evaluate_unknown(
    study: Study, name: str, runner: Runner, board: Board, limit: int | None = None
) -> list[UnknownScore]:
    """How well each model tells another data set's classes from its own: analysis/ood.csv.

    `name` is a data set or a path; `limit` takes its first images only. Known are all test images of the run.
    """
    shift = Unknown(study, name, limit)
    known = [Predict(study, model, seed, "test") for model, seed in models(study)]
    with locked(study.folder):
        jobs = shifted_jobs(study, shift)
        runner.run(Graph([*known, *jobs]), board)
        return keep(jobs, UnknownScore, unknown_scores)


def evaluate_corrupted(
    study: Study, name: str, runner: Runner, board: Board, limit: int | None = None
) -> list[CorruptedScore]:
    """Each model on every corruption and severity of the test images: analysis/corrupted.csv.

    `name` is the run's data with "-c": the official images where they are, else those made here, which are
    called regenerated in files and rows. `limit` takes the first test images only.
    """
    shift = Corruptions(study, name, limit)
    with locked(study.folder):
        jobs = shifted_jobs(study, shift)
        runner.run(Graph(jobs), board)
        return keep(jobs, CorruptedScore, partial(corrupted_scores, shift))


def unknown_scores(job: PredictShifted) -> list[UnknownScore]:
    """One model's rows, one for each uncertainty that may tell unknown from known."""
    known = read(Predict(job.study, job.model, job.seed, "test"))
    known = known.first(job.study.recipe.members) if job.model == TEACHERS else known
    (unknown,) = job.read().values()
    entropies = [float(metrics.entropy(p.log_probs()).mean()) for p in (known, unknown)]
    return [
        UnknownScore(job.model, job.seed, job.shift.name, score, d.auroc, d.aupr, d.fpr95, *entropies)
        for score, d in known.detect(unknown).items()
    ]


def corrupted_scores(shift: Corruptions, job: PredictShifted) -> list[CorruptedScore]:
    """One model's rows, one for each corruption and severity."""
    rows = []
    for split, predictions in job.read().items():
        measured = predictions.quality()
        corruption, severity = shift.conditions[split]
        rows.append(CorruptedScore(job.model, job.seed, shift.name, corruption, severity, **measured))
    return rows


def models(study: Study) -> list[tuple[str, int | None]]:
    """(model, seed) of all that predicts: the teachers together, then every student."""
    return [(TEACHERS, None), *study.students]


def weight_hashes(study: Study) -> dict[tuple[str, int | None], list[str]]:
    """The hashes of every model's weights; raises where something is not trained yet."""
    return {(model, seed): model_hashes(study, model, seed) for model, seed in models(study)}


def model_hashes(study: Study, model: str, seed: int | None) -> list[str]:
    """The hashes of one model's weights; raises where it is not trained yet."""
    return [stage_hash(stage) for stage in study.stages(model, seed, study.recipe.members)]


def check_trained(study: Study) -> None:
    """Raise unless every teacher and every student is trained to the end."""
    for j in range(study.teacher_count):
        stage_hash(study.teacher_stage(j))
    weight_hashes(study)


def stage_hash(stage: Stage) -> str:
    """The hash of a stage's weights."""
    if not stage.is_done():
        raise FileError(stage.folder, "is not trained to the end")
    return str(stage.done()["weights"])


def shifted_jobs(study: Study, shift: Shift) -> list[PredictShifted]:
    """A job for every model of the study."""
    weight_hashes(study)
    fingerprints = tuple(shift.images(split).fingerprint for split in shift.splits)
    return [PredictShifted(study, model, seed, shift, fingerprints) for model, seed in models(study)]


def keep(
    jobs: Sequence[PredictShifted], kind: type[Kind], score: Callable[[PredictShifted], list[Kind]]
) -> list[Kind]:
    """The rows of one shift, made unless they are saved; the table then has all that these models made."""
    study, shift, made_by = jobs[0].study, jobs[0].shift, models_key(jobs[0].study)
    key = f"{made_by}-{spec_key({'images': jobs[0].fingerprints, 'name': shift.name})}"
    parts, table = study.folder / "analysis" / "parts", Path(kind.file).stem
    saved = SavedRows(parts / f"{table}-{shift.name}.json", key, kind)
    rows = saved.load()
    if rows is None:
        rows = [row for job in jobs for row in score(job)]
        saved.save(rows)
    found = [load_rows(path, made_by, kind) or [] for path in sorted(parts.glob(f"{table}-*.json"))]
    write_table(study.folder, kind, [row for each in found for row in each])
    return rows


def models_key(study: Study) -> str:
    """The hash of all weights, and of the images that are known."""
    weights = [[model, seed, hashes] for (model, seed), hashes in weight_hashes(study).items()]
    return spec_key({"format": ANALYSIS_FORMAT, "weights": weights, "test": study.splits.test.fingerprint})
