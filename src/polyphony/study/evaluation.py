"""Evaluate a run on unknown classes and on corrupted test images: predictions, then a table.

`evaluate_unknown` and `evaluate_corrupted` reuse saved predictions, write a table and return its new rows.
Rows of other data sets stay in the table as long as the models are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Literal, TypeVar

from polyphony import metrics
from polyphony.data import Corrupted, DataError, Options, Split, corrupted, load, load_unknown
from polyphony.data.cifar_c import SEVERITIES
from polyphony.data.load import identify
from polyphony.execute.board import Board
from polyphony.execute.job import Graph, Job, not_done
from polyphony.execute.runner import Runner
from polyphony.metrics import Predictions
from polyphony.recipe import Data
from polyphony.runs.predictions import CORRUPTED, UNKNOWN, prediction_path
from polyphony.runs.rows import CorruptedScore, TableRow, UnknownScore
from polyphony.runs.scores import BEST_TEACHER, TEACHERS
from polyphony.runs.stage import Stage, TrainingFolder, locked
from polyphony.runs.store import ChangedError, spec_key
from polyphony.study.fingerprints import fingerprints
from polyphony.study.model_hashes import (
    ANALYSIS_FORMAT,
    model_hashes,
    models_key,
    trained_hash,
    weight_hashes,
)
from polyphony.study.plan import plan, predictions_of
from polyphony.study.prediction import Predict, prediction_name
from polyphony.study.saved import Saved, SavedPredictions, SavedRows, load_rows, write_table
from polyphony.study.score_table import best_member, with_best_teacher
from polyphony.study.study import Model, Study, load_splits
from polyphony.training.fit import Watch
from polyphony.training.predict import predict

Kind = TypeVar("Kind", bound=TableRow)
CHOICE_STRIDE = 5  # every fifth unknown image is used to choose the best score
ROWS_FORMAT = 2  # raise it when the same predictions give other rows


@dataclass(frozen=True)
class Unknown:
    """The test images of another data set, or the first `limit` of them.

    It is part of jobs, which are sent to other processes, so it holds no images.
    """

    study: Study
    source: str
    limit: int | None
    name: str

    @property
    def splits(self) -> Sequence[str]:
        return (f"{UNKNOWN}{self.name}",)

    def images(self, split: str) -> Split:
        return read_unknown(self.study.recipe.data, self.study.data_root, self.source, self.limit)


def unknown(study: Study, source: str, limit: int | None = None) -> Unknown:
    """The test images of `source`, the name of a data set or a path."""
    return Unknown(study, source, limit, identify(source).name)


@dataclass(frozen=True)
class Corruptions:
    """The test images under every corruption and severity, or the first `limit` of them."""

    study: Study
    limit: int | None
    name: str
    corruptions: tuple[str, ...]

    @property
    def conditions(self) -> dict[str, tuple[str, int]]:
        """Split → (corruption, severity)"""
        prefix = f"{CORRUPTED}{self.name}"
        return {
            f"{prefix}-{kind}-{level}": (kind, level) for kind, level in product(self.corruptions, SEVERITIES)
        }

    @property
    def splits(self) -> Sequence[str]:
        return list(self.conditions)

    def images(self, split: str) -> Split:
        """The images of a split; raises a DataError if their labels differ from the run's test images."""
        corrupted_test = read_corrupted(self.study.recipe.data, self.study.data_root, self.limit)
        images, test = corrupted_test[self.conditions[split]], self.study.data().test
        if not images.labels.equal(test.labels[: len(images)]):
            raise other_images_error(self.name)
        return images


def corruptions(study: Study, source: str, limit: int | None = None) -> Corruptions:
    """The corrupted test images of a run; `source` is DATA-c or DATA-c-regenerated for the run's data.

    Official images are used if they exist, else regenerated ones. The result is named after what was used.
    """
    name = study.data().name
    if source.removesuffix("-regenerated").removesuffix("-c") != name:
        raise DataError(f"{source} is not made from the run's data: use {name}-c, its own test images")
    images = read_corrupted(study.recipe.data, study.data_root, limit)
    suffix = "-regenerated" if images.origin == "regenerated" else ""
    return Corruptions(study, limit, f"{name}-c{suffix}", tuple(images.parts))


Shift = Unknown | Corruptions


@lru_cache(maxsize=1)
def read_unknown(data: Data, root: Path | None, source: str, limit: int | None) -> Split:
    """The images of `source`, converted to the shape of a recipe's test images; cached."""
    splits = load_splits(data, root)
    if identify(source).name == splits.name:
        raise DataError(f"{source} is the run's own data: unknown classes come from another data set")
    return load_unknown(source, splits.test, root, limit)


@lru_cache(maxsize=1)
def read_corrupted(data: Data, root: Path | None, limit: int | None) -> Corrupted:
    """The corrupted versions of a recipe's test images, or of the first `limit`; cached."""
    splits = load_splits(data, root)
    count = min(limit or len(splits.test), len(splits.test))
    options = Options(resolution=data.resolution, test=count, channels=data.channels)
    images = corrupted(splits.name, root, options)
    from_this_test = images.source in (None, splits.test.fingerprint)
    if not from_this_test and images.source != source_split(images, data, root).fingerprint:
        raise other_images_error(f"{splits.name}-c-regenerated")
    return images


def source_split(images: Corrupted, data: Data, root: Path | None) -> Split:
    """A recipe's test images in the number and size of the corrupted ones, which the recipe may change."""
    one_kind = next(iter(images.parts.values()))
    (height, width), count = one_kind.images.shape[-2:], len(one_kind) // len(SEVERITIES)
    side = height if height == width else None
    channels: Literal[1, 3] = 1 if one_kind.images.shape[1] == 1 else 3
    options = Options(resolution=side, test=count, seed=data.seed, coarse=data.coarse, channels=channels)
    return load(data.name, options, root).test


def other_images_error(name: str) -> DataError:
    return DataError(
        f"the images of {name} are not corrupted versions of this run's test images:"
        " make them from as many test images as the recipe has"
    )


@dataclass(frozen=True)
class ShiftedPredictions:
    """The predictions of one model on the splits of a shift, one file for each split."""

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
    """Saves the logits of one model on all splits of a shift; splits with a result are skipped."""

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
        name = prediction_name(self.model, self.seed, self.shift.name)
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
    """Write analysis/ood.csv: how well each model detects that images of another data set are unknown.

    `name` is a data set or a path; `limit` takes its first images only. All test images of the run count as
    known. Returns the rows of this data set.
    """
    shift = unknown(study, name, limit)
    with locked(study.folder):
        jobs = shifted_jobs(study, shift)
        predictions = predict_missing(study, jobs, runner, board, lambda work: work.images.is_held_out)
        saved = with_best_teacher(predictions, study.recipe.members)
        best = next((j for model, j, _ in saved if model == BEST_TEACHER), None)
        return write_rows(study, shift, jobs, UnknownScore, partial(unknown_scores, shift, saved), best)


def evaluate_corrupted(
    study: Study, name: str, runner: Runner, board: Board, limit: int | None = None
) -> list[CorruptedScore]:
    """Write analysis/corrupted.csv: scores of each model on every corruption and severity of the test images.

    `name` is the run's data with "-c", see `corruptions`; `limit` takes the first test images only. Returns
    the rows of these images.
    """
    shift = corruptions(study, name, limit)
    with locked(study.folder):
        jobs, members = shifted_jobs(study, shift), study.recipe.members
        valid = TEACHERS, None, "valid"
        predictions = predict_missing(
            study, jobs, runner, board, lambda work: (work.model, work.seed, work.images.name) == valid
        )
        best = best_member(predictions[valid].first(members)) if members > 1 else None
        return write_rows(study, shift, jobs, CorruptedScore, partial(corrupted_scores, shift), best)


def shifted_jobs(study: Study, shift: Shift) -> dict[Model, Job]:
    """The job that predicts on a shift, for each model; raises if a model is not trained."""
    weight_hashes(study)  # raises before images are read
    prints = {split: shift.images(split).fingerprint for split in shift.splits}
    return {model: PredictShifted(study, *model, shift).job(prints) for model in study.models}


def predict_missing(
    study: Study,
    jobs: Mapping[Model, Job],
    runner: Runner,
    board: Board,
    is_needed: Callable[[Predict], bool],
) -> Saved:
    """Run the jobs of a shift and the needed predictions of the study's plan; returns the latter."""
    all_jobs = plan(study, fingerprints(study))
    needed = [job for job in all_jobs if isinstance(job.work, Predict) and is_needed(job.work)]
    runner.run(Graph(not_done([*needed, *jobs.values()])), board)
    return {key: file.load() for key, file in predictions_of(needed).items()}


def unknown_scores(
    shift: Unknown, saved: Saved, model: Model, predictions: Mapping[str, Predictions]
) -> list[UnknownScore]:
    """A row of a model for each score that can separate unknown from known images.

    The best score is chosen on validation images and some unknown images. The numbers of a row are measured
    on test images and all unknown images.
    """
    valid, known = (saved[*model, split] for split in ("valid", "test"))
    (unknown,) = predictions.values()
    trials = valid.detect(unknown.every(CHOICE_STRIDE))
    best = max(trials, key=lambda score: trials[score].auroc)
    known_entropy, unknown_entropy = (float(metrics.entropy(p.log_probs()).mean()) for p in (known, unknown))
    return [
        UnknownScore(
            *model,
            shift.name,
            score,
            detection.auroc,
            detection.aupr,
            detection.fpr95,
            known_entropy,
            unknown_entropy,
            int(score == best),
        )
        for score, detection in known.detect(unknown).items()
    ]


def corrupted_scores(
    shift: Corruptions, model: Model, predictions: Mapping[str, Predictions]
) -> list[CorruptedScore]:
    """A row of a model for each corruption and severity."""
    rows = []
    name, seed = model
    for split, images in predictions.items():
        corruption, severity = shift.conditions[split]
        rows.append(CorruptedScore(name, seed, shift.name, corruption, severity, **images.quality()))
    return rows


def check_trained(study: Study) -> None:
    """Raise unless every teacher and every student is trained with the settings of the recipe."""
    stages = [job.result for job in plan(study, fingerprints(study)) if isinstance(job.result, Stage)]
    for stage in stages:
        if setting := stage.difference():
            raise ChangedError(f"{stage.folder} was made with another {setting}")
        trained_hash(TrainingFolder(stage.folder))


def write_rows(
    study: Study,
    shift: Shift,
    jobs: Mapping[Model, Job],
    kind: type[Kind],
    score: Callable[[Model, Mapping[str, Predictions]], list[Kind]],
    best: int | None,
) -> list[Kind]:
    """Compute the rows of a shift unless they are saved, and write the table; returns the rows of the shift.

    The table gets the rows of all shifts of the same models. `best` is the number of the best teacher, which
    has rows of its own.
    """
    models, parts, table = models_key(study), study.folder / "analysis" / "parts", Path(kind.file).stem
    key = f"{models}-{spec_key({job.name: job.key for job in jobs.values()} | {'rows': ROWS_FORMAT})}"
    saved = SavedRows(parts / f"{table}-{shift.name}.json", key, kind)
    if not saved.is_done():
        predictions = load_predictions(jobs, best)
        saved.save(row for model, by_split in predictions for row in score(model, by_split))
    files = sorted(parts.glob(f"{table}-*.json"))
    write_table(study.folder, kind, [row for path in files for row in load_rows(path, models, kind)])
    return saved.load()


def load_predictions(
    jobs: Mapping[Model, Job], best: int | None
) -> Iterator[tuple[Model, Mapping[str, Predictions]]]:
    """Each model with its predictions by split. The best of several teachers follows the teachers."""
    for model, job in jobs.items():
        assert isinstance(job.result, ShiftedPredictions), job.name
        predictions = job.result.load()
        yield model, predictions
        if model[0] == TEACHERS and best is not None:
            alone = {split: teachers.member(best) for split, teachers in predictions.items()}
            yield (BEST_TEACHER, best), alone
