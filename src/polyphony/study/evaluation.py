"""Inputs nobody was trained for: unknown classes and corrupted test images → saved predictions → tables.

Each function reads the run, predicts what is missing, writes its table and returns its rows; a second call
finds all of that done. A table keeps what it says of other data sets as long as the models are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from polyphony import metrics
from polyphony.execute.board import Board
from polyphony.execute.job import Graph, Job, Work, not_done
from polyphony.execute.runner import Runner
from polyphony.metrics import Predictions
from polyphony.runs.predictions import prediction_path
from polyphony.runs.rows import CorruptedScore, TableRow, UnknownScore
from polyphony.runs.scores import TEACHERS
from polyphony.runs.store import ChangedError, FileError, Stage, Trained, locked, spec_key
from polyphony.study.fingerprints import fingerprints
from polyphony.study.jobs import Predict, predicting
from polyphony.study.plan import plan, predictions_of
from polyphony.study.saved import SavedPredictions, SavedRows, load_rows, write_table
from polyphony.study.shifts import Corruptions, Shift, Unknown, corruptions, unknown
from polyphony.study.study import Study
from polyphony.training.fit import Watch
from polyphony.training.predict import predict

Kind = TypeVar("Kind", bound=TableRow)
CHOOSING = 5  # one unknown image in so many has a say in which score is the best
ANALYSIS_FORMAT = 1  # raised when what is measured of trained models changes, so that it is measured again


Model = tuple[str, int | None]  # "teachers" or a method, and a student's seed


@dataclass(frozen=True)
class ShiftedPredictions:
    """What one model predicted on the splits of a shift: a file for each."""

    files: dict[str, SavedPredictions]  # by split

    @property
    def key(self) -> str:
        return spec_key({split: file.key for split, file in self.files.items()})

    def is_done(self) -> bool:
        return all(file.is_done() for file in self.files.values())

    def load(self) -> dict[str, Predictions]:
        """Split → what was predicted on it."""
        return {split: file.load() for split, file in self.files.items()}


@dataclass(frozen=True)
class PredictShifted:
    """The logits of one model on all splits of a shift, saved; each split is done once."""

    study: Study
    model: str  # "teachers", or a method
    seed: int | None
    shift: Shift

    def job(self, prints: Mapping[str, str]) -> Job:
        """The job, for splits of these fingerprints."""
        study, weights = self.study, model_hashes(self.study, self.model, self.seed)
        files = {
            split: SavedPredictions(
                prediction_path(study.folder, self.model, self.seed, split),
                spec_key({"format": ANALYSIS_FORMAT, "weights": weights, "split": fingerprint}),
            )
            for split, fingerprint in prints.items()
        }
        name = predicting(self.model, self.seed, self.shift.name)
        return Job(name, (), ShiftedPredictions(files), self, len(files))

    def run(self, result: ShiftedPredictions, watch: Watch) -> None:
        model = self.study.load_model(self.model, self.seed, self.study.recipe.members)
        for split, file in result.files.items():
            if not file.is_done():
                file.save(predict(model, self.shift.images(split)))
            watch.epoch({})


def evaluate_unknown(
    study: Study, name: str, runner: Runner, board: Board, limit: int | None = None
) -> list[UnknownScore]:
    """How well each model tells another data set's classes from its own: analysis/ood.csv.

    `name` is a data set or a path; `limit` takes its first images only. Known are all test images of the run.
    """
    shift = unknown(study, name, limit)
    with locked(study.folder):
        jobs = shifted_jobs(study, shift)
        known = [job for job in plan(study, fingerprints(study)) if is_held_out(job.work)]
        runner.run(Graph(not_done([*known, *jobs.values()])), board)
        files = predictions_of(known).items()
        held_out = {((model, seed), split): file.load() for (model, seed, split), file in files}
        return keep(study, shift, jobs, UnknownScore, partial(unknown_scores, shift, held_out))


def is_held_out(work: Work) -> bool:
    """Whether a job predicts on validation or test images."""
    return isinstance(work, Predict) and work.images.name in ("valid", "test")


def evaluate_corrupted(
    study: Study, name: str, runner: Runner, board: Board, limit: int | None = None
) -> list[CorruptedScore]:
    """Each model on every corruption and severity of the test images: analysis/corrupted.csv.

    `name` is the run's data with "-c": the official images where they are, else those made here, which are
    called regenerated in files and rows. `limit` takes the first test images only.
    """
    shift = corruptions(study, name, limit)
    with locked(study.folder):
        jobs = shifted_jobs(study, shift)
        runner.run(Graph(not_done(jobs.values())), board)
        return keep(study, shift, jobs, CorruptedScore, partial(corrupted_scores, shift))


def unknown_scores(
    shift: Unknown,
    held_out: Mapping[tuple[Model, str], Predictions],
    model: Model,
    found: Mapping[str, Predictions],
) -> list[UnknownScore]:
    """One model's rows, one for each score that may tell unknown from known.

    The best is chosen with validation images and a part of the unknown ones; the numbers are those of test
    images and all unknown ones.
    """
    valid, known = (held_out[model, split] for split in ("valid", "test"))
    if model[0] == TEACHERS:
        valid, known = (each.first(shift.study.recipe.members) for each in (valid, known))
    (unknown,) = found.values()
    tried = valid.detect(unknown.every(CHOOSING))
    best = max(tried, key=lambda score: tried[score].auroc)
    surely, hardly = (float(metrics.entropy(p.log_probs()).mean()) for p in (known, unknown))
    return [
        UnknownScore(*model, shift.name, score, d.auroc, d.aupr, d.fpr95, surely, hardly, int(score == best))
        for score, d in known.detect(unknown).items()
    ]


def corrupted_scores(
    shift: Corruptions, model: Model, found: Mapping[str, Predictions]
) -> list[CorruptedScore]:
    """One model's rows, one for each corruption and severity."""
    rows = []
    name, seed = model
    for split, predictions in found.items():
        measured = predictions.quality()
        corruption, severity = shift.conditions[split]
        rows.append(CorruptedScore(name, seed, shift.name, corruption, severity, **measured))
    return rows


def models(study: Study) -> list[Model]:
    """(model, seed) of all that predicts: the teachers together, then every student."""
    return [(TEACHERS, None), *study.students]


def weight_hashes(study: Study) -> dict[Model, list[str]]:
    """The hashes of every model's weights; raises where something is not trained yet."""
    return {(model, seed): model_hashes(study, model, seed) for model, seed in models(study)}


def model_hashes(study: Study, model: str, seed: int | None) -> list[str]:
    """The hashes of one model's weights; raises where it is not trained yet."""
    return [weights_of(each) for each in study.trained(model, seed, study.recipe.members)]


def weights_of(trained: Trained) -> str:
    """The hash of the weights of a training; raises where it is not finished."""
    if not trained.is_there():
        raise FileError(trained.folder, "is not trained to the end")
    return str(trained.record()["weights"])


def check_trained(study: Study) -> None:
    """Raise unless every teacher and every student is trained to the end, and as the recipe says."""
    stages = [job.result for job in plan(study, fingerprints(study)) if isinstance(job.result, Stage)]
    for stage in stages:
        if words := stage.difference():
            raise ChangedError(f"{stage.folder} was made with another {words}")
        weights_of(Trained(stage.folder))


def shifted_jobs(study: Study, shift: Shift) -> dict[Model, Job]:
    """A job for every model of the study."""
    weight_hashes(study)  # says what is not trained, before anything is read
    prints = {split: shift.images(split).fingerprint for split in shift.splits}
    return {model: PredictShifted(study, *model, shift).job(prints) for model in models(study)}


def keep(
    study: Study,
    shift: Shift,
    jobs: Mapping[Model, Job],
    kind: type[Kind],
    score: Callable[[Model, Mapping[str, Predictions]], list[Kind]],
) -> list[Kind]:
    """The rows of one shift, made unless they are saved; the table then has all that these models made."""
    made_by, parts, table = models_key(study), study.folder / "analysis" / "parts", Path(kind.file).stem
    key = f"{made_by}-{spec_key({job.name: job.key for job in jobs.values()})}"
    saved = SavedRows(parts / f"{table}-{shift.name}.json", key, kind)
    rows = saved.load()
    if rows is None:
        rows = [row for model, job in jobs.items() for row in score(model, predictions_in(job))]
        saved.save(rows)
    found = [load_rows(path, made_by, kind) or [] for path in sorted(parts.glob(f"{table}-*.json"))]
    write_table(study.folder, kind, [row for each in found for row in each])
    return rows


def predictions_in(job: Job) -> dict[str, Predictions]:
    """What a job has predicted, by split."""
    assert isinstance(job.result, ShiftedPredictions), job.name
    return job.result.load()


def models_key(study: Study) -> str:
    """The hash of all weights, and of the images that are known."""
    weights = [[model, seed, hashes] for (model, seed), hashes in weight_hashes(study).items()]
    return spec_key({"format": ANALYSIS_FORMAT, "weights": weights, "test": study.data().test.fingerprint})
