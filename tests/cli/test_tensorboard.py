from __future__ import annotations

from pathlib import Path

import pytest

from polyphony.cli.progress import TensorBoard
from polyphony.execute.board import Board
from polyphony.recipe import read_recipe
from polyphony.runs.stage import Stage
from polyphony.runs.store import write_json

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
ROWS = [{"epoch": epoch, "loss": 1 / (1 + epoch), "valid_acc": epoch / 4} for epoch in range(4)]


class Remembers(Board):
    """A board that records its reports."""

    def __init__(self) -> None:
        self.reports: list[object] = []

    def started(self, name, epochs) -> None:
        self.reports.append((name, epochs))

    def epoch(self, name, row) -> None:
        self.reports.append((name, row))

    def finished(self, name) -> None:
        self.reports.append(name)


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads of a run."""
    events = accumulator.EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_what_the_log_holds_epochs_of_an_earlier_call_too(tmp_path):
    recipe = read_recipe("digits", ["members=2", "seeds=[0]"])
    write_json(tmp_path / "recipe.json", {"recipe": recipe.model_dump(mode="json", exclude_none=True)})
    Stage(tmp_path / "teachers" / "1", {}).save({"log": ROWS[:2]})

    below = Remembers()
    board = TensorBoard(below, tmp_path)
    board.started("teacher 1", 4)
    for row in ROWS[2:]:
        board.epoch("teacher 1", row)
    board.epoch("predict teachers on test", {})
    board.finished("teacher 1")

    assert below.reports == [
        ("teacher 1", 4),
        *(("teacher 1", row) for row in ROWS[2:]),
        ("predict teachers on test", {}),
        "teacher 1",
    ]
    assert [path.name for path in (tmp_path / "tensorboard").iterdir()] == ["teacher 1"]
    values = curves(tmp_path / "tensorboard" / "teacher 1")
    assert values.keys() == {"loss", "valid_acc"}
    for name, points in values.items():
        assert points == [(row["epoch"], pytest.approx(row[name])) for row in ROWS]
