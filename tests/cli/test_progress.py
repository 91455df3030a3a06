"""Progress on a terminal and in a pipe."""

import pytest
from rich.progress import Progress

from polyphony.cli import progress, terminal
from polyphony.cli.progress import JobBoard, TotalProgress


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, which a test sets."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def completed(board: JobBoard, name: str) -> float:
    return next(task.completed for task in board.bars.tasks if task.description == name)


def with_bars(total: TotalProgress | None = None) -> JobBoard:
    return JobBoard(Progress(), total or TotalProgress({}))


def with_lines(total: TotalProgress | None = None) -> JobBoard:
    return JobBoard(Progress(disable=True), total or TotalProgress({}))


def train(board: JobBoard, name: str, epochs: int = 2) -> None:
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


def test_the_bar_of_all_trainings_weights_them_by_their_expected_time():
    bars = with_bars(TotalProgress({"teacher 0": 10, "teacher 1": 10, "kd, seed 0": 80}, {"teacher 0": 1.0}))
    assert completed(bars, "all") == 10
    bars.started("kd, seed 0", 4)
    bars.step("kd, seed 0", 1, 2, {"epoch": 1, "loss": 1.0})
    assert completed(bars, "all") == 10 + 80 * 1.5 / 4
    train(bars, "kd, seed 0")
    train(bars, "predict test")
    assert completed(bars, "all") == 90
    assert next(task for task in bars.bars.tasks).fields["numbers"] == "2 of 3 trainings"


def test_a_pipe_gets_one_line_a_training_with_the_time_left(capsys, clock):
    lines = with_lines(TotalProgress({"teacher 0": 30, "kd, seed 0": 60}))
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


def test_a_pipe_gets_at_most_one_line_in_five_minutes_while_trainings_run(capsys, clock):
    lines = with_lines(TotalProgress({f"teacher {j}": 3000 for j in range(5)}))
    for j in range(5):
        lines.started(f"teacher {j}", 100)
    for epoch in range(30):
        clock[0] += 30
        for j in range(5):
            lines.epoch(f"teacher {j}", {"epoch": epoch, "loss": 1.0})
    lines.finished("teacher 0")
    assert [line.split(" (")[0] for line in capsys.readouterr().out.splitlines()] == [
        "Running: teacher 0 at 10 %; teacher 1 at 9 %; teacher 2 at 9 %; 2 more",
        "Running: teacher 0 at 20 %; teacher 1 at 19 %; teacher 2 at 19 %; 2 more",
        "Running: teacher 0 at 30 %; teacher 1 at 29 %; teacher 2 at 29 %; 2 more",
        "teacher 0: done in 15 min",
    ]


def test_a_pipe_gets_a_line_even_if_one_epoch_takes_longer_than_five_minutes(capsys, clock):
    lines = with_lines(TotalProgress({"teacher 0": 1.0, "teacher 1": 1.0}))
    lines.started("teacher 0", 2)
    for step in range(1, 5):
        clock[0] += 200
        lines.step("teacher 0", step, 4, {"epoch": 0, "loss": 1.0})
    assert capsys.readouterr().out.splitlines() == [
        "Running: teacher 0 at 25 % (0 of 2 trainings, 47 min left)",
        "Running: teacher 0 at 50 % (0 of 2 trainings, 40 min left)",
    ]


def test_a_finished_training_postpones_the_next_line_of_progress(capsys, clock):
    lines = with_lines()
    lines.started("teacher 1", 4)
    clock[0] = 290
    train(lines, "teacher 0")
    clock[0] = 310
    lines.epoch("teacher 1", {"epoch": 0, "loss": 1.0})
    assert capsys.readouterr().out == "teacher 0: done in 0 s, valid 0.500\n"


def test_a_pipe_gets_no_line_for_a_prediction_of_seconds(capsys, clock):
    lines = with_lines()
    for seconds in (20, 90):
        lines.started(f"prediction of {seconds} s", 1)
        clock[0] += seconds
        lines.finished(f"prediction of {seconds} s")
    assert capsys.readouterr().out == "prediction of 90 s: done in 90 s\n"


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
