"""A real process, killed where it stands, several times."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from threading import Timer

import torch

from polyphony.distill.search import search_epochs
from polyphony.execute.board import Board
from polyphony.execute.processes import context
from polyphony.execute.runner import Here
from polyphony.recipe import read_recipe
from polyphony.study.run import run_study
from polyphony.study.study import Study

KILLS = 2
EPOCHS = 8  # of each of three trainings
TINY = (
    "members=2",
    "seeds=[0]",
    "data={name='stripes.npz', augment={pad=1, flip=true}, valid=12, test=12}",
    "teachers={network={kind='resnet', depth=8, width=2}, epochs=8, batch=25, learning_rate=0.1}",
    "student={epochs=8, batch=25, learning_rate=0.1, weight_decay=1e-3, step_size='search'}",
    "methods={kd-confods={perturb='confods'}}",
)


class Killed(Board):
    """A board that kills its process a moment after so many epochs."""

    def __init__(self, epochs: int, pause: float) -> None:
        self.left, self.pause = epochs, pause

    def epoch(self, name: str, row: dict[str, float]) -> None:
        self.left -= 1
        if self.left == 0:
            Timer(self.pause, os.kill, (os.getpid(), signal.SIGKILL)).start()


def study_in(folder: Path, board: Board) -> None:
    """The study, in this process."""
    torch.set_num_threads(1)
    run_study(Study(read_recipe("digits", TINY), folder), Here(threads=1), board)


def weights(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("weights.safetensors"))}


def test_a_study_killed_several_times_ends_with_the_same_bytes(stripes, quiet):
    uninterrupted, killed = (
        stripes / "uninterrupted" / "run",
        stripes / "killed" / "run",
    )  # runs side by side share trainings
    study_in(uninterrupted, quiet)

    chance = random.Random(0)
    for _ in range(KILLS):
        board = Killed(chance.randint(1, 2 * EPOCHS // KILLS), chance.uniform(0, 0.03))
        process = context().Process(target=study_in, args=(killed, board))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL  # else less was tested than is said
    study_in(killed, quiet)

    assert len(weights(uninterrupted)) == 4  # two teachers, the search for the step size, a student
    assert weights(killed) == weights(uninterrupted)
    assert (killed / "scores.csv").read_bytes() == (uninterrupted / "scores.csv").read_bytes()
    short = search_epochs(read_recipe("digits", TINY).student)
    for log in killed.rglob("log.jsonl"):
        epochs = range(short if log.parent.name == "search" else EPOCHS)
        assert [json.loads(row)["epoch"] for row in log.read_text().splitlines()] == list(epochs)
    assert [path.name for path in killed.rglob(".*") if path.name != ".lock"] == []
