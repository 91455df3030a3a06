"""Progress on a terminal and in a pipe."""

import pytest
from rich.progress import Progress

from polyphony.cli import progress, terminal
from polyphony.cli.progress import Jobs, Whole


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets: seconds."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def completed(board: Jobs, name: str) -> float:
    return next(task.completed for task in board.bars.tasks if task.description == name)


def with_bars(whole: Whole | None = None) -> Jobs:
    return Jobs(Progress(), whole or Whole({}))


def with_lines(whole: Whole | None = None) -> Jobs:
    return Jobs(Progress(disable=True), whole or Whole({}))


def train(board: Jobs, name: str, epochs: int = 2) -> None:
    board.started(name, epochs)
    for epoch in range(epochs):
        board.epoch(name, {"epoch": epoch, "loss": 1.0, "valid_acc": 0.5})
    board.finished(name)


def test_a_bar_counts_the_parts_of_a_job_without_epochs():
    bars = with_bars()
    bars.started("jacobians", 2)
    bars.step("jacobians", 1, 4, {})
    assert completed(bars, "jacobians") == 0.25
    bars.epoch("jacobians", {})
    bars.step("jacobians", 2, 4, {})
    assert completed(bars, "jacobians") == 1.5
    bars.epoch("jacobians", {})
    assert completed(bars, "jacobians") == 2
    bars.finished("jacobians")
    assert [task.description for task in bars.bars.tasks] == ["all"]


def test_a_bar_of_a_resumed_training_begins_where_it_was():
    bars = with_bars()
    bars.started("teacher 0", 10)
    bars.step("teacher 0", 1, 2, {"epoch": 6, "loss": 1.0})
    assert completed(bars, "teacher 0") == 6.5
    bars.epoch("teacher 0", {"epoch": 6, "loss": 1.0})
    assert completed(bars, "teacher 0") == 7


def test_the_bar_of_the_whole_counts_trainings_by_what_they_take():
    bars = with_bars(Whole({"teacher 0": 10, "teacher 1": 10, "kd, seed 0": 80}, {"teacher 0": 1.0}))
    assert completed(bars, "all") == 10
    bars.started("kd, seed 0", 4)
    bars.step("kd, seed 0", 1, 2, {"epoch": 1, "loss": 1.0})
    assert completed(bars, "all") == 10 + 80 * 1.5 / 4
    train(bars, "kd, seed 0")
    train(bars, "predict test")
    assert completed(bars, "all") == 90
    assert next(task for task in bars.bars.tasks).fields["numbers"] == "2 of 3 trainings"


def test_a_pipe_gets_one_line_a_training_with_the_time_left(capsys, clock):
    lines = with_lines(Whole({"teacher 0": 30, "kd, seed 0": 60}))
    clock[0] = 15
    train(lines, "teacher 0")
    lines.started("predict test", 1)
    lines.epoch("predict test", {})
    lines.finished("predict test")
    train(lines, "kd, seed 0")
    assert capsys.readouterr().out.splitlines() == [
        "teacher 0: done in 0 s, valid 0.500 (1 of 2 trainings, 30 s left)",
        "kd, seed 0: done in 0 s, valid 0.500 (2 of 2 trainings)",
    ]


def test_a_long_training_gets_a_line_a_minute(capsys, clock):
    lines = with_lines()
    lines.started("teacher 0", 100)
    for epoch in range(100):
        clock[0] += 2
        lines.epoch("teacher 0", {"epoch": epoch, "loss": 1.0})
    lines.finished("teacher 0")
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        "teacher 0: epoch 30 of 100",
        "teacher 0: epoch 60 of 100",
        "teacher 0: epoch 90 of 100",
        "teacher 0: done in 3 min",
    ]


@pytest.mark.parametrize("board", [with_bars, with_lines])
def test_a_warning_is_one_line_that_names_the_job(board, capsys):
    board().warn("kd, seed 0", "after epoch 12 the members [all] have collapsed")
    assert capsys.readouterr().out == "kd, seed 0: after epoch 12 the members [all] have collapsed\n"


def test_quiet_shows_warnings_alone(capsys, monkeypatch):
    monkeypatch.setattr(terminal.chatter, "quiet", True)
    with progress.board() as board, terminal.working("Loading"):
        train(board, "teacher 0")
        board.warn("teacher 0", "its loss grows")
    terminal.note("beside it")
    assert capsys.readouterr() == ("teacher 0: its loss grows\n", "")
