"""Unknown classes and corrupted test images → saved predictions → tables.

Each function reads the run, predicts what is missing, writes its table and returns its rows; a second call
reuses the predictions. A table keeps its rows of other data sets while the models stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
from polyphony.runs.scores import BEST_TEACHER, TEACHERS
from polyphony.runs.stage import Stage, Trained, locked
from polyphony.runs.store import ChangedError, FileError, spec_key
from polyphony.study.fingerprints import fingerprints
from polyphony.study.jobs import Predict, predicting
from polyphony.study.plan import plan, predictions_of
from polyphony.study.saved import SavedPredictions, SavedRows, load_rows, write_table
from polyphony.study.score_table import Saved, best_member, with_best_teacher
from polyphony.study.shifts import Corruptions, Shift, Unknown, corruptions, unknown
from polyphony.study.study import Study
from polyphony.training.fit import Watch
from polyphony.training.predict import predict

Kind = TypeVar("Kind", bound=TableRow)
CHOOSING = 5  # every fifth unknown image helps to choose the best score
ANALYSIS_FORMAT = 1  # raise it when a measurement of trained models changes, so that it is repeated
ROWS_FORMAT = 1  # raise it when tables get other rows from the same predictions


Model = tuple[str, int | None]  # "teachers" or a method, and a student's seed


@dataclass(frozen=True)
class ShiftedPredictions:
    """The predictions of one model on the splits of a shift, one file for each."""

    files: dict[str, SavedPredictions]  # by split

    @property
    def key(self) -> str:
        return spec_key({split: file.key for split, file in self.files.items()})

    def is_done(self) -> bool:
        return all(file.is_done() for file in self.files.values())

    def load(self) -> dict[str, Predictions]:
        """Split → predictions."""
        return {split: file.load() for split, file in self.files.items()}


@dataclass(frozen=True)
class PredictShifted:
    """Saves the logits of one model on all splits of a shift; splits that are done are skipped."""

    study: Study
    model: str  # "teachers", or a method
    seed: int | None
    shift: Shift

    def job(self, prints: Mapping[str, str]) -> Job:
        """The job, for splits with these fingerprints."""
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
    """How well each model distinguishes the classes of another data set from its own: analysis/ood.csv.

    `name` is a data set or a path; `limit` takes its first images only. All test images of the run are known.
    """
    shift = unknown(study, name, limit)
    with locked(study.folder):
        jobs = shifted_jobs(study, shift)
        known = [job for job in plan(study, fingerprints(study)) if is_held_out(job.work)]
        runner.run(Graph(not_done([*known, *jobs.values()])), board)
        found = {key: file.load() for key, file in predictions_of(known).items()}
        saved = with_best_teacher(found, study.recipe.members)
        best = next((seed for model, seed, _ in saved if model == BEST_TEACHER), None)
        return keep(study, shift, jobs, UnknownScore, partial(unknown_scores, shift, saved), best)


def is_held_out(work: Work) -> bool:
    return isinstance(work, Predict) and work.images.name in ("valid", "test")


def is_teachers_valid(work: Work) -> bool:
    """Whether a job has the teachers predict on validation images."""
    return isinstance(work, Predict) and (work.model, work.images.name) == (TEACHERS, "valid")


def evaluate_corrupted(
    study: Study, name: str, runner: Runner, board: Board, limit: int | None = None
) -> list[CorruptedScore]:
    """Each model on every corruption and severity of the test images: analysis/corrupted.csv.

    `name` is the run's data with "-c": the official images if they are there, else those made here, which
    files and rows call regenerated. `limit` takes the first test images only.
    """
    shift = corruptions(study, name, limit)
    with locked(study.folder):
        jobs, members = shifted_jobs(study, shift), study.recipe.members
        valid = [job for job in plan(study, fingerprints(study)) if is_teachers_valid(job.work)]
        runner.run(Graph(not_done([*valid, *jobs.values()])), board)
        (teachers,) = (file.load() for file in predictions_of(valid).values())
        best = best_member(teachers.first(members)) if members > 1 else None
        return keep(study, shift, jobs, CorruptedScore, partial(corrupted_scores, shift), best)


def unknown_scores(
    shift: Unknown,
    saved: Saved,
    model: Model,
    found: Mapping[str, Predictions],
) -> list[UnknownScore]:
    """One row of a model for each score that may tell unknown from known images.

    Validation images and some of the unknown ones choose the best score; the numbers are of test images and
    all unknown ones.
    """
    valid, known = (saved[*model, split] for split in ("valid", "test"))
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
    """One row of a model for each corruption and severity."""
    rows = []
    name, seed = model
    for split, predictions in found.items():
        measured = predictions.quality()
        corruption, severity = shift.conditions[split]
        rows.append(CorruptedScore(name, seed, shift.name, corruption, severity, **measured))
    return rows


def models(study: Study) -> list[Model]:
    """(model, seed) of everything that predicts: the teachers together, then every student."""
    return [(TEACHERS, None), *study.students]


def weight_hashes(study: Study) -> dict[Model, list[str]]:
    """The hashes of all models' weights; raises if something is not trained yet."""
    return {(model, seed): model_hashes(study, model, seed) for model, seed in models(study)}


def model_hashes(study: Study, model: str, seed: int | None) -> list[str]:
    """The hashes of one model's weights; raises if it is not trained yet."""
    return [weights_of(each) for each in study.trained(model, seed, study.recipe.members)]


def weights_of(trained: Trained) -> str:
    """The hash of the weights of a training; raises if it is not finished."""
    if not trained.is_there():
        raise FileError(trained.folder, "is not fully trained")
    return str(trained.record()["weights"])


def check_trained(study: Study) -> None:
    """Raise unless every teacher and every student is trained as the recipe says."""
    stages = [job.result for job in plan(study, fingerprints(study)) if isinstance(job.result, Stage)]
    for stage in stages:
        if words := stage.difference():
            raise ChangedError(f"{stage.folder} was made with another {words}")
        weights_of(Trained(stage.folder))


def shifted_jobs(study: Study, shift: Shift) -> dict[Model, Job]:
    weight_hashes(study)  # raises if something is not trained, before images are read
    prints = {split: shift.images(split).fingerprint for split in shift.splits}
    return {model: PredictShifted(study, *model, shift).job(prints) for model in models(study)}


def keep(
    study: Study,
    shift: Shift,
    jobs: Mapping[Model, Job],
    kind: type[Kind],
    score: Callable[[Model, Mapping[str, Predictions]], list[Kind]],
    best: int | None,
) -> list[Kind]:
    """The rows of one shift, made if they are not saved; the table gets all rows of these models.

    `best` is the number of the best teacher, which has rows of its own.
    """
    made_by, parts, table = models_key(study), study.folder / "analysis" / "parts", Path(kind.file).stem
    key = f"{made_by}-{spec_key({job.name: job.key for job in jobs.values()} | {'rows': ROWS_FORMAT})}"
    saved = SavedRows(parts / f"{table}-{shift.name}.json", key, kind)
    if not saved.is_done():
        saved.save(row for model, found in predicted(jobs, best) for row in score(model, found))
    files = sorted(parts.glob(f"{table}-*.json"))
    write_table(study.folder, kind, [row for path in files for row in load_rows(path, made_by, kind)])
    return saved.load()


def predicted(
    jobs: Mapping[Model, Job], best: int | None
) -> Iterator[tuple[Model, Mapping[str, Predictions]]]:
    """The predictions of each model by split; after the teachers the best one, if there are several."""
    for model, job in jobs.items():
        assert isinstance(job.result, ShiftedPredictions), job.name
        found = job.result.load()
        yield model, found
        if model[0] == TEACHERS and best is not None:
            yield (BEST_TEACHER, best), {split: each.member(best) for split, each in found.items()}


def models_key(study: Study) -> str:
    """The hash of all weights and of the known images."""
    weights = [[model, seed, hashes] for (model, seed), hashes in weight_hashes(study).items()]
    return spec_key({"format": ANALYSIS_FORMAT, "weights": weights, "test": study.data().test.fingerprint})
