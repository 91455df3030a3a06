"""A run folder that was written once and is kept in tests/study/kept opens in every later version.

It was made by `polyphony study` from the recipe in its recipe.json; it is never made again. A change that
fails here would make every run of every user one that cannot be opened: mend the change, not the folder.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyphony.execute.job import Job
from polyphony.execute.runner import Here
from polyphony.recipe import Recipe, check
from polyphony.recipe.methods import Method
from polyphony.recipe.schema import Student, Teachers
from polyphony.report import write_report
from polyphony.runs.rows import Score, from_csv
from polyphony.study.fingerprints import fingerprints
from polyphony.study.plan import Upto, jobs_upto, plan
from polyphony.study.provenance import open_study
from polyphony.study.run import run_study
from polyphony.study.study import Study

KEPT = Path(__file__).parent / "kept"
METHODS = ("scratch", "kd", "kd-ods", "hydra")


class Silent:
    """A board that counts what is started."""

    def __init__(self):
        self.begun: list[str] = []

    def started(self, name, epochs):
        self.begun.append(name)

    def step(self, name, done, steps, row): ...
    def epoch(self, name, row): ...
    def warn(self, name, sentence): ...
    def finished(self, name): ...


def same_scores(one: Path, other: Path) -> bool:
    """Whether a run has the scores of an older one, but for rounding; it may have more rows."""
    tables = [from_csv((folder / "scores.csv").read_text(), Score) for folder in (one, other)]
    new, old = (
        {(row.model, row.seed, row.split, row.calibration): (row.nll, row.kld, row.ece) for row in table}
        for table in tables
    )
    return new.keys() >= old.keys() and np.allclose([new[key] for key in old], list(old.values()), atol=1e-4)


@pytest.fixture
def kept(tmp_path) -> Path:
    shutil.copytree(KEPT, tmp_path / "kept")
    return tmp_path / "kept"


def test_nothing_of_it_is_trained_again_and_its_page_is_written(kept):
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    board = Silent()
    outcome = run_study(open_study(kept, None, "cpu"), Here(1), board)
    assert all(name.startswith("predict") for name in board.begun)  # whose keys had another form
    assert len(outcome.scores) == 2 * (5 + 2 + 3 * len(METHODS))
    changed = {path for path, content in before.items() if path.read_bytes() != content}
    again = {"recipe.json", "scores.csv", "dee.csv", "temperatures.csv"}  # of today's versions and processor
    assert {path.name for path in changed if "predictions" not in path.parts} <= again
    assert same_scores(kept, KEPT)
    assert "kd-ods" in write_report([kept], None).read_text(encoding="utf-8")


def test_a_new_run_takes_over_its_trainings(kept, tmp_path):
    study = Study(open_study(kept, None, "cpu").recipe, tmp_path / "new")
    board = Silent()
    outcome = run_study(study, Here(1), board)
    assert outcome.adopted == 3 + len(METHODS)
    assert all(name.startswith("predict") for name in board.begun)
    assert same_scores(tmp_path / "new", KEPT)


class LaterTeachers(Teachers):
    warmth: float = 0.5


class LaterStudent(Student):
    warmth: float = 0.5


class LaterMethod(Method):
    care: float = 0.5


class LaterRecipe(Recipe):
    teachers: LaterTeachers
    student: LaterStudent
    methods: dict[str, LaterMethod]
    mood: str = "calm"


def later_jobs(kept: Path, table: dict[str, Any]) -> list[Job]:
    """The trainings of the kept run as a later version reads its recipe."""
    study = Study(LaterRecipe.model_validate_json(json.dumps(table), strict=True), kept)
    return jobs_upto(plan(study, fingerprints(study)), Upto.DISTILL)


def test_keys_that_a_later_version_adds_with_defaults_do_not_concern_it(kept):
    table = json.loads((kept / "recipe.json").read_text())["recipe"]
    jobs = later_jobs(kept, table)
    assert jobs[0].work.study.recipe.model_dump().keys() - check(table, "kept").model_dump().keys() == {
        "mood"
    }
    assert len(jobs) == 3 + len(METHODS)
    assert all(job.is_done() for job in jobs)


@pytest.mark.parametrize(
    ("where", "key", "refused"),
    [
        ("teachers", "warmth", ("teacher",)),
        ("student", "warmth", METHODS),
        ("methods.kd", "care", ("kd,",)),
        ("", "mood", ("teacher", *METHODS)),
    ],
)
def test_the_same_keys_set_to_something_make_other_trainings(kept, where, key, refused):
    table = json.loads((kept / "recipe.json").read_text())["recipe"]
    inner = table
    for name in filter(None, where.split(".")):
        inner = inner[name]
    inner[key] = "angry" if key == "mood" else 0.9
    for job in later_jobs(kept, table):
        is_other = job.name.startswith(refused) or (job.result.spec.get("teachers") and "teacher" in refused)
        assert job.is_done() != bool(is_other), job.name
        if job.name.startswith(refused):
            assert key in job.result.difference() or "teachers" in job.result.difference()
