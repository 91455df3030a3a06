"""What the studies' tests share: boards that print nothing, studies and sweeps of seconds."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyphony.execute.board import Board
from polyphony.execute.job import Job
from polyphony.execute.runner import Here, Runner
from polyphony.recipe import Recipe, read_recipe
from polyphony.study.fingerprints import fingerprints
from polyphony.study.plan import plan
from polyphony.study.run import Outcome, run_study
from polyphony.study.study import Study
from polyphony.study.trainings import TrainStudent
from polyphony.sweep.run import Sweep, SweepOutcome, run_sweep
from polyphony.training.tally import DivergedError

MORE = (
    "seeds=[0, 1]",
    "teachers.extra=1",
    "teachers.epochs=3",
    "teachers.learning_rate=0.1",
    "teachers.warm_up=1",
    "student.epochs=2",
    "student.learning_rate=0.1",
    "student.warm_up=1",
)


class Quiet(Board):
    """A board nobody looks at."""


class Silent(Board):
    """A board that remembers which jobs were started, and stops at one of them."""

    def __init__(self, stop: int | None = None) -> None:
        self.jobs: list[str] = []
        self.stop = stop

    def started(self, name: str, epochs: int) -> None:
        if len(self.jobs) == self.stop:
            raise KeyboardInterrupt
        self.jobs.append(name)


Run = Callable[..., tuple[Study, Outcome, list[str]]]
SweepThrough = Callable[..., tuple[SweepOutcome, list[str]]]


@pytest.fixture(scope="session")
def quiet() -> Board:
    """A board nobody looks at."""
    return Quiet()


@pytest.fixture(scope="session")
def here() -> Runner:
    """Jobs in this process."""
    return Here(threads=1)


@pytest.fixture
def board() -> Silent:
    """A board that remembers, in `jobs`, which jobs were started."""
    return Silent()


@pytest.fixture(scope="session")
def tiny_recipe(tiny_digits: tuple[str, ...]) -> Callable[..., Recipe]:
    """The digits recipe made tiny, with two seeds, an extra teacher and a few epochs, and overrides."""
    return lambda *overrides: read_recipe("digits", [*tiny_digits, *MORE, *overrides])


@pytest.fixture(scope="session")
def run(tiny_recipe: Callable[..., Recipe], here: Runner) -> Run:
    """Run the tiny study, in this process unless told: the study, what came out, and which jobs were run."""

    def run(
        folder: Path, *overrides: str, runner: Runner = here, **settings: Any
    ) -> tuple[Study, Outcome, list[str]]:
        study, board = Study(tiny_recipe(*overrides), folder), Silent()
        outcome = run_study(study, runner, board, **settings)
        return study, outcome, board.jobs

    return run


@pytest.fixture(scope="session")
def jobs_of() -> Callable[[Study], dict[str, Job]]:
    """The jobs of a study by name."""
    return lambda study: {job.name: job for job in plan(study, fingerprints(study))}


@pytest.fixture(scope="session")
def finished(
    run: Run, tiny_recipe: Callable[..., Recipe], made_once: Callable[..., Path]
) -> tuple[Study, Outcome, list[str]]:
    """A finished tiny study that nobody may change."""

    def make(folder: Path) -> None:
        _, outcome, jobs = run(folder / "run")
        (folder / "found").write_bytes(pickle.dumps((outcome, jobs)))

    folder = made_once("finished", make)
    return Study(tiny_recipe(), folder / "run"), *pickle.loads((folder / "found").read_bytes())


@pytest.fixture(scope="session")
def sweep_through(here: Runner) -> SweepThrough:
    """Run a sweep in one process, up to job number `stop`: what came out, and which jobs were run."""

    def through(sweep: Sweep, stop: int | None = None, **settings: Any) -> tuple[SweepOutcome, list[str]]:
        board = Silent(stop)
        return run_sweep(sweep, here, board, **settings), board.jobs

    return through


@pytest.fixture
def stripes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> Path:
    """A folder with data to train on, which is where this process is, too."""
    rng = np.random.default_rng(0)
    labels = np.arange(75) % 3
    images = rng.integers(0, 128, (75, 6, 6))
    images[np.arange(75), :, 2 * labels] += 100
    np.savez(tmp_path / "stripes.npz", images=images.astype(np.uint8), labels=labels)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", environment["XDG_CACHE_HOME"])
    return tmp_path


@pytest.fixture
def diverging(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the trainings of some methods diverge."""

    def let(*names: str) -> None:
        train = TrainStudent.run

        def fail(work: TrainStudent, stage: Any, watch: Any) -> None:
            if work.method in names:
                raise DivergedError("the loss is not a number")
            train(work, stage, watch)

        monkeypatch.setattr(TrainStudent, "run", fail)

    return let


def hash_results(folder: Path) -> dict[str, str]:
    kept = [p for p in sorted(folder.rglob("*")) if p.suffix in (".safetensors", ".csv", ".json")]
    kept = [p for p in kept if p.name != "done.json"]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in kept}


@pytest.fixture(scope="session")
def files() -> Callable[[Path], dict[str, str]]:
    """The hash of everything that was made in a folder, but for logs and records, which hold times."""
    return hash_results
