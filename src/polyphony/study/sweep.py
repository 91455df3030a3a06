"""Run a sweep: every point is an ordinary student of a derived recipe, judged on validation images alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from polyphony import metrics
from polyphony.recipe.points import Point, Swept
from polyphony.runs.rows import SweepScore, TeacherScore
from polyphony.runs.scores import JUDGE, TEACHERS
from polyphony.runs.store import FolderError, locked, read_json, write_json
from polyphony.study.jobs import Predict
from polyphony.study.run import Work, check_plans, students_of, teachers_of, write_provenance
from polyphony.study.runner import Board, Runner
from polyphony.study.saved import write_table
from polyphony.study.score_table import by_calibration, read
from polyphony.study.search import Search
from polyphony.study.study import FORMAT, Study
from polyphony.training.tally import DivergedError


@dataclass(frozen=True)
class SweepOutcome:
    """What a sweep did: its scores, and the points whose training diverged."""

    ran: int  # jobs that were done, without the trainings that diverged
    skipped: int  # jobs of these points that were done before
    adopted: int  # trainings among them that were taken over from other runs
    scores: list[SweepScore]
    diverged: list[Point]


@dataclass(frozen=True)
class Sweep:
    """What is swept, the folder its results go to, and the machine's part."""

    swept: Swept
    folder: Path
    data_root: Path | None = None
    device: str = "cpu"

    @property
    def search(self) -> Search:
        """The points as optuna proposes them."""
        splits = self.study([self.swept.own]).splits
        fingerprints = {"train": splits.train.fingerprint, "valid": splits.valid.fingerprint}
        return Search(self.swept, self.folder / "optuna.jsonl", {"format": FORMAT, **fingerprints})

    def study(self, points: Sequence[Point]) -> Study:
        """The study whose methods are these points."""
        return Study(self.swept.derived(points), self.folder, self.data_root, self.device)

    def check(self, trials: int | None) -> None:
        """Raise, before anything is written, where the sweep cannot be run."""
        if (self.folder / "recipe.json").exists() and not (self.folder / "sweep.json").exists():
            raise FolderError(f"{self.folder} holds a study, and a sweep needs a folder of its own")
        check_plans(self.study([self.swept.own]))
        if trials is not None:
            self.search.check()

    def facts(self, trials: int | None) -> dict[str, Any]:
        """sweep.json: what was swept, and how."""
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
    """Train and score the points: the whole grid, or so many trials of a search; then write sweep.csv.

    What is done is not done again, and nothing but training and validation images is predicted on.
    """
    sweep.check(trials)
    with locked(sweep.folder):
        work = Work(runner, board, redo)
        sweeping = Sweeping(sweep, work, sweep.facts(trials))
        points, lost = (sweep.swept.grid(), []) if trials is None else sweeping.search(trials)
        lost += sweeping.measure(points) if points else []
        kept = [point for point in points if point not in lost]
        if not kept:
            raise DivergedError(f"every point of {sweep.folder} diverged: lower student.learning_rate")
        rows = score(sweep.study(kept), kept)
        sweeping.begin(sweep.study([*kept, *lost]))
        write_table(sweep.folder, TeacherScore, teacher_scores(sweep.study(kept)))
        write_table(sweep.folder, SweepScore, rows)
    return SweepOutcome(len(work.ran), len(work.found), work.adopted, rows, lost)


@dataclass(frozen=True)
class Sweeping:
    """A sweep under way."""

    sweep: Sweep
    work: Work
    facts: dict[str, Any]
    known: dict[Point, None] = field(default_factory=dict)  # the points so far, in order

    def search(self, trials: int) -> tuple[list[Point], list[Point]]:
        """Ask, train and tell, as many points a round as jobs at a time; the points, and the lost."""
        search = self.sweep.search
        self.known.update(dict.fromkeys([*search.finished(), *search.diverged()]))
        while (left := trials - search.answered()) > 0:
            asked = search.ask(min(left, self.work.runner.at_once))
            points = list(dict.fromkeys(trial.point for trial in asked))
            diverged = self.measure(points)
            for trial in asked:
                lost = trial.point in diverged
                search.tell(trial, None if lost else judged(score(self.sweep.study(points), [trial.point])))
        return search.finished(), search.diverged()

    def measure(self, points: Sequence[Point]) -> list[Point]:
        """Train and predict what is missing of these points; those of which a training diverged."""
        study = self.sweep.study(points)
        self.known.update(dict.fromkeys(points))
        begin = partial(self.begin, self.sweep.study(list(self.known)))
        self.work.check(study)
        self.work.run(teachers_of(study), begin)  # one of which diverges ends the sweep
        try:
            self.work.run([*students_of(study), *predictions(study)], begin)
        except DivergedError:
            if len(points) == 1:
                return list(points)
            return [lost for point in points for lost in self.measure([point])]
        return []

    def begin(self, study: Study) -> None:
        """Say in the folder what is in it; a table of another sweep goes."""
        path = self.sweep.folder / "sweep.json"
        if path.exists() and read_json(path) != self.facts:
            (self.sweep.folder / "sweep.csv").unlink(missing_ok=True)
        write_json(path, self.facts)
        write_provenance(study)


def predictions(study: Study) -> list[Predict]:
    """Everything that is predicted: the teachers and all points, on validation images."""
    students = [Predict(study, name, seed, "valid") for name, seed in study.students]
    return [Predict(study, TEACHERS, None, "valid"), *students]


def score(study: Study, points: Iterable[Point]) -> list[SweepScore]:
    """The rows of points that were measured."""
    rows = []
    for point in points:
        for seed in study.recipe.seeds:
            valid = read(Predict(study, point.name, seed, "valid"))
            for kind, measured in by_calibration(valid, valid.fit_temperature(), SweepScore).items():
                rows.append(SweepScore(point.name, seed, calibration=kind, **asdict(point), **measured))
    return rows


def teacher_scores(study: Study) -> list[TeacherScore]:
    """The teachers on the same images."""
    valid = read(Predict(study, TEACHERS, None, "valid")).first(study.recipe.members)
    found = by_calibration(valid, valid.fit_temperature(), TeacherScore)
    return [TeacherScore(kind, **each) for kind, each in found.items()]


def judged(rows: Sequence[SweepScore]) -> float:
    """What decides between points: the calibrated validation NLL, mean over seeds."""
    return metrics.mean_sd([row.nll for row in rows if row.calibration == JUDGE]).mean
