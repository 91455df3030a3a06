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
from polyphony.recipe.points import Point, Swept
from polyphony.runs.rows import SweepScore, TeacherScore
from polyphony.runs.scores import JUDGE, TEACHERS
from polyphony.runs.stage import locked
from polyphony.runs.store import FolderError, read_json, write_json
from polyphony.study.fingerprints import Fingerprints, fingerprints
from polyphony.study.leftovers import clear_the_way
from polyphony.study.plan import FORMAT, Upto, part, plan, predictions_of, valid_predictions
from polyphony.study.provenance import write_provenance
from polyphony.study.run import Session, check_plans
from polyphony.study.saved import write_table
from polyphony.study.score_table import by_calibration
from polyphony.study.study import Study
from polyphony.sweep.search import Search, check_search, open_search
from polyphony.training.tally import DivergedError


@dataclass(frozen=True)
class SweepOutcome:
    """What a sweep did, its scores, and the points whose training diverged."""

    ran: int  # jobs, without trainings that diverged
    skipped: int  # jobs that were done before
    adopted: int  # of these, trainings linked from other runs
    scores: list[SweepScore]
    diverged: list[Point]


@dataclass(frozen=True)
class Sweep:
    """The values to sweep, the output folder, the data folder and the device."""

    swept: Swept
    folder: Path
    data_root: Path | None = None
    device: str = "cpu"

    def search(self, prints: Fingerprints) -> Search:
        """The search in which optuna proposes points."""
        images = {split: prints.images[split] for split in ("train", "valid")}
        return open_search(self.swept, self.folder / "optuna.jsonl", {"format": FORMAT, **images})

    def study(self, points: Sequence[Point]) -> Study:
        return Study(self.swept.derived(points), self.folder, self.data_root, self.device)

    def plan(self, points: Sequence[Point], prints: Fingerprints) -> list[Job]:
        """The jobs of some points and of their teachers."""
        study = self.study(points)
        return plan(study, prints, valid_predictions(study))

    def check(self, trials: int | None) -> None:
        """Raise if the sweep cannot run, before anything is written."""
        if (self.folder / "recipe.json").exists() and not (self.folder / "sweep.json").exists():
            raise FolderError(f"{self.folder} holds a study, and a sweep needs a folder of its own")
        check_plans(self.study([self.swept.own]))
        if trials is not None:
            check_search(self.swept)

    def facts(self, trials: int | None) -> dict[str, Any]:
        """The content of sweep.json: what was swept, and how."""
        recipe, method = self.swept.recipe, self.swept.method
        return {
            "recipe": recipe.name,
            "method": method,
            "settings": recipe.methods[method].model_dump(mode="json", exclude_none=True),
            "own": self.swept.own.settings(),
            "values": {name: list(values) for name, values in self.swept.values.items()},
            "trials": trials,
        }


def run_sweep(
    sweep: Sweep, runner: Runner, board: Board, *, trials: int | None = None, redo: bool = False
) -> SweepOutcome:
    """Train and score the whole grid, or `trials` points of a search; then write sweep.csv.

    Results that exist are not made again. Only training and validation images are used.
    """
    sweep.check(trials)
    prints = fingerprints(sweep.study([sweep.swept.own]))
    with locked(sweep.folder):
        work = Session(sweep.folder, runner, board)
        sweeping = Sweeping(sweep, work, sweep.facts(trials), prints, redo)
        points, lost = (sweep.swept.grid(), []) if trials is None else sweeping.search(trials)
        lost += sweeping.measure(points) if points else []
        kept = [point for point in points if point not in lost]
        if not kept:
            raise DivergedError(f"every point of {sweep.folder} diverged: lower student.learning_rate")
        found = predicted(sweep.plan(kept, prints))
        rows = [row for point in kept for row in score(found, point)]
        sweeping.begin([*kept, *lost])
        teachers = found[TEACHERS, None].first(sweep.swept.recipe.members)
        measured = by_calibration(teachers, teachers.fit_temperature(), TeacherScore)
        write_table(
            sweep.folder, TeacherScore, [TeacherScore(kind, **each) for kind, each in measured.items()]
        )
        write_table(sweep.folder, SweepScore, rows)
    return SweepOutcome(len(work.ran), len(work.found), work.adopted, rows, lost)


@dataclass(frozen=True)
class Sweeping:
    """A sweep while it runs."""

    sweep: Sweep
    work: Session
    facts: dict[str, Any]
    prints: Fingerprints
    redo: bool
    known: dict[Point, None] = field(default_factory=dict)  # points so far, in order

    def search(self, trials: int) -> tuple[list[Point], list[Point]]:
        """Ask, train and tell, as many points a round as run at a time; returns good and diverged points."""
        search = self.sweep.search(self.prints)
        self.known.update(dict.fromkeys([*search.finished(), *search.diverged()]))
        while (left := trials - search.answered()) > 0:
            asked = search.ask(min(left, self.work.runner.at_once))
            points = list(dict.fromkeys(trial.point for trial in asked))
            diverged = self.measure(points)
            kept = [point for point in points if point not in diverged]
            found = predicted(self.sweep.plan(kept, self.prints)) if kept else {}
            for trial in asked:
                lost = trial.point in diverged
                search.tell(trial, None if lost else judged(score(found, trial.point)))
        return search.finished(), search.diverged()

    def measure(self, points: Sequence[Point]) -> list[Point]:
        """Train and predict what is missing of these points; returns the points whose training diverged."""
        jobs = self.sweep.plan(points, self.prints)
        self.known.update(dict.fromkeys(points))
        begin = partial(self.begin, list(self.known))
        clear_the_way(jobs, self.work.board, self.redo)
        self.work.run(part(jobs, Upto.TEACH), begin)  # a teacher that diverges ends the sweep
        try:
            self.work.run(jobs, begin)
        except DivergedError:
            if len(points) == 1:
                return list(points)
            return [lost for point in points for lost in self.measure([point])]
        return []

    def begin(self, points: Sequence[Point]) -> None:
        """Write sweep.json and recipe.json; the table of another sweep is removed."""
        path = self.sweep.folder / "sweep.json"
        if path.exists() and read_json(path) != self.facts:
            (self.sweep.folder / "sweep.csv").unlink(missing_ok=True)
        write_json(path, self.facts)
        write_provenance(self.sweep.study(points), self.prints)


Predicted = dict[tuple[str, int | None], Predictions]  # by model and seed, on validation images


def predicted(jobs: Sequence[Job]) -> Predicted:
    return {(model, seed): file.load() for (model, seed, _), file in predictions_of(jobs).items()}


def score(found: Predicted, point: Point) -> list[SweepScore]:
    """The rows of a point: one for each seed and calibration."""
    rows = []
    for seed, valid in ((seed, each) for (name, seed), each in found.items() if name == point.name):
        for kind, measured in by_calibration(valid, valid.fit_temperature(), SweepScore).items():
            rows.append(SweepScore(point.name, seed, calibration=kind, **asdict(point), **measured))
    return rows


def judged(rows: Sequence[SweepScore]) -> float:
    """What decides between points: the calibrated validation NLL, mean over seeds."""
    return metrics.mean_sd([row.nll for row in rows if row.calibration == JUDGE]).mean
