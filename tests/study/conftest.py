"""A study of seconds: the digits recipe, made tiny."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from polyphony.recipe import read_recipe
from polyphony.study import Study, run_study
from polyphony.study.run import Outcome

TINY = (
    "members=2",
    "seeds=[0, 1]",
    "data.per_class=5",
    "data.valid=60",
    "data.test=70",
    "teachers.network.width=2",
    "teachers.extra=1",
    "teachers.epochs=3",
    "teachers.batch=25",
    "teachers.learning_rate=0.1",
    "teachers.warm_up=1",
    "student.epochs=2",
    "student.batch=25",
    "student.learning_rate=0.1",
    "student.warm_up=1",
)


class Silent:
    """A board that remembers which jobs were started."""

    def __init__(self) -> None:
        self.jobs: list[str] = []

    def started(self, name: str, epochs: int) -> None:
        self.jobs.append(name)

    def step(self, name: str, done: int, steps: int, row: dict[str, float]) -> None: ...

    def epoch(self, name: str, row: dict[str, float]) -> None: ...

    def warn(self, name: str, sentence: str) -> None: ...

    def finished(self, name: str) -> None: ...


Run = Callable[..., tuple[Study, Outcome, list[str]]]


def run_tiny(folder: Path, *overrides: str, **settings: object) -> tuple[Study, Outcome, list[str]]:
    """The tiny study in one process; what came out, and which jobs were run."""
    study, board = Study(read_recipe("digits", [*TINY, *overrides]), folder), Silent()
    outcome = run_study(study, board, **{"workers": 1, **settings})
    return study, outcome, board.jobs


@pytest.fixture
def run() -> Run:
    return run_tiny


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Outcome, list[str]]:
    """A finished tiny study that nobody may change."""
    return run_tiny(tmp_path_factory.mktemp("finished") / "run")
