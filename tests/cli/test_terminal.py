"""What people see while jobs run."""

import pytest
from rich.progress import Progress

from polyphony.cli.terminal import Bars, Lines


def completed(bars: Bars) -> float:
    (task,) = bars.progress.tasks
    return task.completed


def bars_with_fields() -> Bars:
    return Bars(Progress(disable=True))


def test_a_bar_counts_what_a_job_without_epochs_reports():
    bars = bars_with_fields()
    bars.started("jacobians", 2)
    bars.step("jacobians", 1, 4, {})
    assert completed(bars) == 0.25
    bars.epoch("jacobians", {})
    bars.step("jacobians", 2, 4, {})
    assert completed(bars) == 1.5
    bars.epoch("jacobians", {})
    assert completed(bars) == 2
    bars.finished("jacobians")
    assert bars.progress.tasks == []


def test_a_bar_of_a_resumed_training_begins_where_it_was():
    bars = bars_with_fields()
    bars.started("teacher 0", 10)
    bars.step("teacher 0", 1, 2, {"epoch": 6, "loss": 1.0})
    assert completed(bars) == 6.5
    bars.epoch("teacher 0", {"epoch": 6, "loss": 1.0})
    assert completed(bars) == 7


@pytest.mark.parametrize("board", [bars_with_fields, Lines])
def test_a_warning_is_one_line_that_names_the_job(board, capsys):
    board().warn("kd, seed 0", "after epoch 12 the members [all] have collapsed")
    assert capsys.readouterr().out == "kd, seed 0: after epoch 12 the members [all] have collapsed\n"
