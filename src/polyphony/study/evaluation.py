"""Unknown classes and corrupted test images → saved predictions → tables.

Each function reads the run, predicts what is missing, writes its table and returns its rows; a second call
reuses the predictions. A table keeps its rows of other data sets while the models stay the same.
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
from polyphony.runs.stage import Stage, Trained, locked
from polyphony.runs.store import ChangedError, FileError, spec_key
from polyphony.study.fingerprints import fingerprints
from polyphony.study.jobs import Predict, predicting
from polyphony.study.plan import plan, predictions_of
from polyphony.study.saved import Saved, SavedPredictions, SavedRows, load_rows, write_table
from polyphony.study.score_table import best_member, with_best_teacher
from polyphony.study.study import Model, Study, load_splits
from polyphony.training.fit import Watch
from polyphony.training.predict import predict

Kind = TypeVar("Kind", bound=TableRow)
CHOOSING = 5  # every fifth unknown image helps to choose the best score
ANALYSIS_FORMAT = 1  # raise it when a measurement of trained models changes, so that it is repeated
ROWS_FORMAT = 1  # raise it when tables get other rows from the same predictions


@dataclass(frozen=True)
class Unknown:
    """Another data set's test images, or the first `limit`. Jobs are sent with it, so it holds no images."""

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
        each = product(self.corruptions, SEVERITIES)
        return {f"{CORRUPTED}{self.name}-{part}-{severity}": (part, severity) for part, severity in each}

    @property
    def splits(self) -> Sequence[str]:
        return list(self.conditions)

    def images(self, split: str) -> Split:
        found = read_corrupted(self.study.recipe.data, self.study.data_root, self.limit)
        images, test = found[self.conditions[split]], self.study.data().test
        if not images.labels.equal(test.labels[: len(images)]):
            raise not_of_the_run(self.name)
        return images


def corruptions(study: Study, source: str, limit: int | None = None) -> Corruptions:
    """The corrupted test images of a run, by the name DATA-c: the official ones, or else regenerated ones.

    Regenerated images are always called DATA-c-regenerated.
    """
    name = study.data().name
    if source.removesuffix("-regenerated").removesuffix("-c") != name:
        raise DataError(f"{source} is not of the run's data: ask for {name}-c, its own test images")
    found = read_corrupted(study.recipe.data, study.data_root, limit)
    origin = "-regenerated" if found.origin == "regenerated" else ""
    return Corruptions(study, limit, f"{name}-c{origin}", tuple(found.parts))


Shift = Unknown | Corruptions


@lru_cache(maxsize=1)
def read_unknown(data: Data, root: Path | None, source: str, limit: int | None) -> Split:
    """Unknown images, converted to the shape of a recipe's test images; cached."""
    splits = load_splits(data, root)
    if identify(source).name == splits.name:
        raise DataError(f"{source} is the run's own data: unknown classes come from another data set")
    return load_unknown(source, splits.test, root, limit)


@lru_cache(maxsize=1)
def read_corrupted(data: Data, root: Path | None, limit: int | None) -> Corrupted:
    """The corrupted versions of a recipe's test images, or of the first `limit`; cached."""
    splits = load_splits(data, root)
    count = min(limit or len(splits.test), len(splits.test))
    found = corrupted(
        splits.name, root, Options(resolution=data.resolution, test=count, channels=data.channels)
    )
    made_of_these = found.source in (None, splits.test.fingerprint)
    if not made_of_these and found.source != source_split(found, data, root).fingerprint:
        raise not_of_the_run(f"{splits.name}-c-regenerated")
    return found


def source_split(made: Corrupted, data: Data, root: Path | None) -> Split:
    """A recipe's test images in the number and size that were corrupted, which may differ from its own."""
    whole = next(iter(made.parts.values()))
    (height, width), count = whole.images.shape[-2:], len(whole) // len(SEVERITIES)
    side = height if height == width else None
    channels: Literal[1, 3] = 1 if whole.images.shape[1] == 1 else 3
    options = Options(resolution=side, test=count, seed=data.seed, coarse=data.coarse, channels=channels)
    return load(data.name, options, root).test


def not_of_the_run(name: str) -> DataError:
    return DataError(
        f"the images of {name} are not corrupted versions of this run's test images:"
        " make them of as many test images as the recipe has"
    )


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
        found = predict_missing(study, jobs, runner, board, lambda work: work.images.is_held_out)
        saved = with_best_teacher(found, study.recipe.members)
        best = next((seed for model, seed, _ in saved if model == BEST_TEACHER), None)
        return keep(study, shift, jobs, UnknownScore, partial(unknown_scores, shift, saved), best)


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
        valid = TEACHERS, None, "valid"
        found = predict_missing(
            study, jobs, runner, board, lambda work: (work.model, work.seed, work.images.name) == valid
        )
        best = best_member(found[valid].first(members)) if members > 1 else None
        return keep(study, shift, jobs, CorruptedScore, partial(corrupted_scores, shift), best)


def shifted_jobs(study: Study, shift: Shift) -> dict[Model, Job]:
    weight_hashes(study)  # raises if something is not trained, before images are read
    prints = {split: shift.images(split).fingerprint for split in shift.splits}
    return {model: PredictShifted(study, *model, shift).job(prints) for model in study.models}


def predict_missing(
    study: Study,
    jobs: Mapping[Model, Job],
    runner: Runner,
    board: Board,
    is_wanted: Callable[[Predict], bool],
) -> Saved:
    """Run the jobs of a shift and the wanted predictions of the plan; returns the latter."""
    planned = plan(study, fingerprints(study))
    wanted = [job for job in planned if isinstance(job.work, Predict) and is_wanted(job.work)]
    runner.run(Graph(not_done([*wanted, *jobs.values()])), board)
    return {key: file.load() for key, file in predictions_of(wanted).items()}


def unknown_scores(
    shift: Unknown, saved: Saved, model: Model, found: Mapping[str, Predictions]
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
        corruption, severity = shift.conditions[split]
        rows.append(CorruptedScore(name, seed, shift.name, corruption, severity, **predictions.quality()))
    return rows


def weight_hashes(study: Study) -> dict[Model, list[str]]:
    """The hashes of all models' weights; raises if something is not trained yet."""
    return {(model, seed): model_hashes(study, model, seed) for model, seed in study.models}


def model_hashes(study: Study, model: str, seed: int | None) -> list[str]:
    """The hashes of one model's weights; raises if it is not trained yet."""
    if seed is not None:
        return [weights_of(study.student(model, seed))]
    return [weights_of(study.teacher(j)) for j in range(study.recipe.members)]


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
