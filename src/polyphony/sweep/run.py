"""Run a sweep: every point is a student of a derived recipe, scored on validation images only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from polyphony import metrics
from polyphony.execute.board import Board
from polyphony.execute.job import Job
from polyphony.execute.runner import Runner
from polyphony.metrics import Predictions
from polyphony.recipe.points import Point, SweepPlan
from polyphony.runs.rows import SweepScore, TeacherScore
from polyphony.runs.scores import JUDGE, TEACHERS
from polyphony.runs.stage import locked
from polyphony.runs.store import SWEEP_FILE, FolderError, read_json, write_json
from polyphony.study.fingerprints import Fingerprints, fingerprints
from polyphony.study.leftovers import resolve_conflicts
from polyphony.study.plan import FORMAT, Upto, jobs_upto, plan, predictions_of, valid_predictions
from polyphony.study.provenance import write_provenance
from polyphony.study.run import Session, check_batches
from polyphony.study.saved import write_table
from polyphony.study.score_table import by_calibration
from polyphony.study.study import Study
from polyphony.sweep.search import Search, check_search, open_search
from polyphony.training.tally import DivergedError


@dataclass(frozen=True)
class SweepOutcome:
    """How many jobs of a sweep ran, its scores, and the points whose training diverged."""

    ran: int  # without trainings that diverged
    skipped: int  # jobs whose results existed
    adopted: int  # how many of these were linked from other runs
    scores: list[SweepScore]
    diverged: list[Point]


@dataclass(frozen=True)
class Sweep:
    """The plan of a sweep, the output folder, the data folder and the device."""

    plan: SweepPlan
    folder: Path
    data_root: Path | None = None
    device: str = "cpu"

    def search(self, prints: Fingerprints) -> Search:
        """The search of this folder, in which optuna proposes points."""
        images = {split: prints.images[split] for split in ("train", "valid")}
        return open_search(self.plan, self.folder / "optuna.jsonl", {"format": FORMAT, **images})

    def study(self, points: Sequence[Point]) -> Study:
        """The study whose methods are these points."""
        return Study(self.plan.derived(points), self.folder, self.data_root, self.device)

    def jobs(self, points: Sequence[Point], prints: Fingerprints) -> list[Job]:
        """The jobs of these points and of their teachers."""
        study = self.study(points)
        return plan(study, prints, valid_predictions(study))

    def check(self, trials: int | None) -> None:
        """Raise a FolderError or a RecipeError if the sweep cannot run, before anything is written."""
        if (self.folder / "recipe.json").exists() and not (self.folder / SWEEP_FILE).exists():
            raise FolderError(f"{self.folder} holds a study, and a sweep needs a folder of its own")
        check_batches(self.study([self.plan.own]))
        if trials is not None:
            check_search(self.plan)

    def facts(self, trials: int | None) -> dict[str, Any]:
        """The content of sweep.json: the recipe, the method, and the values of its parameters."""
        recipe, method = self.plan.recipe, self.plan.method
        return {
            "recipe": recipe.name,
            "method": method,
            "settings": recipe.methods[method].model_dump(mode="json", exclude_none=True),
            "own": self.plan.own.settings(),
            "values": {name: list(values) for name, values in self.plan.values.items()},
            "trials": trials,
        }


def run_sweep(
    sweep: Sweep, runner: Runner, board: Board, *, trials: int | None = None, redo: bool = False
) -> SweepOutcome:
    """Train and score all points of the grid, or `trials` points of a search; then write sweep.csv.

    Results that exist are reused. Test images are not used. Raises a DivergedError if all points diverged.
    """
    sweep.check(trials)
    prints = fingerprints(sweep.study([sweep.plan.own]))
    with locked(sweep.folder):
        session = Session(sweep.folder, runner, board)
        active = ActiveSweep(sweep, session, sweep.facts(trials), prints, redo)
        points, diverged = (sweep.plan.grid(), []) if trials is None else active.search(trials)
        diverged += active.train(points) if points else []
        finished = [point for point in points if point not in diverged]
        if not finished:
            raise DivergedError(f"every point of {sweep.folder} diverged: lower student.learning_rate")
        predictions = load_predictions(sweep.jobs(finished, prints))
        rows = [row for point in finished for row in score(predictions, point)]
        active.begin([*finished, *diverged])
        teachers = predictions[TEACHERS, None].first(sweep.plan.recipe.members)
        scores = by_calibration(teachers, teachers.fit_temperature(), TeacherScore)
        teacher_rows = [TeacherScore(calibration, **columns) for calibration, columns in scores.items()]
        write_table(sweep.folder, TeacherScore, teacher_rows)
        write_table(sweep.folder, SweepScore, rows)
    return SweepOutcome(len(session.ran), len(session.skipped), session.adopted, rows, diverged)


@dataclass(frozen=True)
class ActiveSweep:
    """A sweep while it runs."""

    sweep: Sweep
    session: Session
    facts: dict[str, Any]  # the content of sweep.json
    prints: Fingerprints
    redo: bool
    points: dict[Point, None] = field(default_factory=dict)  # an ordered set of all points so far

    def search(self, trials: int) -> tuple[list[Point], list[Point]]:
        """Run a search until `trials` trials have a result; returns finished and diverged points.

        A round trains as many points as the runner can train at the same time.
        """
        search = self.sweep.search(self.prints)
        self.points.update(dict.fromkeys([*search.finished(), *search.diverged()]))
        while (left := trials - search.completed()) > 0:
            round_trials = search.ask(min(left, self.session.runner.at_once))
            points = list(dict.fromkeys(trial.point for trial in round_trials))
            diverged = self.train(points)
            finished = [point for point in points if point not in diverged]
            predictions = load_predictions(self.sweep.jobs(finished, self.prints)) if finished else {}
            for trial in round_trials:
                has_diverged = trial.point in diverged
                search.tell(trial, None if has_diverged else judged_nll(score(predictions, trial.point)))
        return search.finished(), search.diverged()

    def train(self, points: Sequence[Point]) -> list[Point]:
        """Train these points and predict, unless results exist; returns the points that diverged.

        If one of several points diverges, the unfinished points run one by one, to learn which one it was.
        """
        jobs = self.sweep.jobs(points, self.prints)
        self.points.update(dict.fromkeys(points))
        begin = partial(self.begin, list(self.points))
        resolve_conflicts(jobs, self.session.board, self.redo)
        self.session.run(jobs_upto(jobs, Upto.TEACH), begin)  # a teacher that diverges ends the sweep
        try:
            self.session.run(jobs, begin)
        except DivergedError:
            if len(points) == 1:
                return list(points)
            return [diverged for point in points for diverged in self.train([point])]
        return []

    def begin(self, points: Sequence[Point]) -> None:
        """Write sweep.json and recipe.json; sweep.csv is removed if it is of another sweep."""
        path = self.sweep.folder / SWEEP_FILE
        if path.exists() and read_json(path) != self.facts:
            (self.sweep.folder / "sweep.csv").unlink(missing_ok=True)
        write_json(path, self.facts)
        write_provenance(self.sweep.study(points), self.prints)


ValidPredictions = dict[tuple[str, int | None], Predictions]  # by model and seed, on validation images


def load_predictions(jobs: Sequence[Job]) -> ValidPredictions:
    return {(model, seed): file.load() for (model, seed, _), file in predictions_of(jobs).items()}


def score(predictions: ValidPredictions, point: Point) -> list[SweepScore]:
    """The rows of a point: one for each seed and calibration."""
    rows = []
    for (name, seed), valid in predictions.items():
        if name != point.name:
            continue
        for calibration, columns in by_calibration(valid, valid.fit_temperature(), SweepScore).items():
            rows.append(SweepScore(name, seed, calibration=calibration, **asdict(point), **columns))
    return rows


def judged_nll(rows: Sequence[SweepScore]) -> float:
    """The quantity that a search minimises: the calibrated validation NLL, mean over seeds."""
    return metrics.mean_sd([row.nll for row in rows if row.calibration == JUDGE]).mean
