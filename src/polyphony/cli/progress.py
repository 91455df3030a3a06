"""Progress of jobs: bars on a terminal, lines elsewhere, and the numbers of trainings for TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from polyphony._util.text import duration, extra
from polyphony.cli import terminal
from polyphony.cli.where import UsageError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from polyphony.execute.board import Board
    from polyphony.training.collapse import Row

LINE_EVERY = 60.0  # seconds between lines about one training
SHORT = 1.0  # seconds; a shorter job that is not a training gets no line
STEADY = 600.0  # seconds over which the remaining time is averaged

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    TextColumn("{task.fields[numbers]}"),
    TimeElapsedColumn(),
    TimeRemainingColumn(compact=True),
)


class Whole:
    """Progress of all trainings together. Each has a weight: its expected seconds, or epochs."""

    def __init__(self, weights: Mapping[str, float], done: Mapping[str, float] | None = None) -> None:
        self.weights = weights
        self.shares = {name: share for name, share in (done or {}).items() if name in weights}
        self.finished = {name for name, share in self.shares.items() if share == 1}
        self.first, self.begun = self.completed, time.monotonic()

    @property
    def total(self) -> float:
        return sum(self.weights.values())

    @property
    def completed(self) -> float:
        return sum(self.weights[name] * share for name, share in self.shares.items())

    def update(self, name: str, share: float) -> None:
        """Record the share of a job that is done; jobs that are not trainings have no weight."""
        if name in self.weights:
            self.shares[name] = share

    def finish(self, name: str) -> None:
        if name in self.weights:
            self.shares[name] = 1.0
            self.finished.add(name)

    def __str__(self) -> str:
        """For example "3 of 19 trainings"; empty if there are none."""
        return f"{len(self.finished)} of {len(self.weights)} trainings" if self.weights else ""

    @property
    def left(self) -> str:
        """For example "2 min left"; empty if that is not known yet, or nothing is left."""
        done, left = self.completed - self.first, self.total - self.completed
        if done <= 0 or left <= 0:
            return ""
        return f"{duration((time.monotonic() - self.begun) / done * left)} left"


@dataclass
class Running:
    """A running job: its last numbers, and how many of its epochs are done."""

    epochs: int
    done: float = 0.0
    row: Row = field(default_factory=dict)
    begun: float = field(default_factory=lambda: time.monotonic())
    spoke: float = field(default_factory=lambda: time.monotonic())

    def count(self, row: Row, steps: float) -> float:
        """Record that `steps` epochs are done since the start of the epoch of `row`; returns the share."""
        self.row, first = row, int(row["epoch"]) if "epoch" in row else int(self.done)
        self.done = first + steps
        return min(1.0, self.done / self.epochs)

    @property
    def took(self) -> float:
        return time.monotonic() - self.begun

    def is_due(self) -> bool:
        """Whether it is time for another line about this job."""
        if time.monotonic() - self.spoke < LINE_EVERY:
            return False
        self.spoke = time.monotonic()
        return True


@contextmanager
def board(whole: Whole | None = None) -> Iterator[Board]:
    """A board with bars on a terminal, or lines elsewhere; only warnings with --quiet."""
    whole = whole or Whole({})
    if terminal.chatter.quiet or not terminal.chatter.is_terminal:
        yield Lines(whole)
        return
    with Progress(*COLUMNS, console=terminal.chatter, speed_estimate_period=STEADY) as progress:
        yield Bars(progress, whole)


class Lines:
    """A line for every training that ends, and one a minute for a longer one."""

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self.jobs: dict[str, Running] = {}

    def started(self, name: str, epochs: int) -> None:
        self.jobs[name] = Running(epochs)

    def step(self, name: str, done: int, steps: int, row: Row) -> None:
        self.whole.update(name, self.jobs[name].count(row, done / steps))

    def epoch(self, name: str, row: Row) -> None:
        job = self.jobs[name]
        self.whole.update(name, job.count(row, 1))
        if row and job.is_due():
            self.line(f"{name}: epoch {job.done:.0f} of {job.epochs}, {numbers(row)}")

    def warn(self, name: str, sentence: str) -> None:
        terminal.line(f"{name}: {sentence}", "yellow")

    def finished(self, name: str) -> None:
        job = self.jobs.pop(name)
        self.whole.finish(name)
        if job.row or job.took >= SHORT:
            valid = f", valid {job.row['valid_acc']:.3f}" if "valid_acc" in job.row else ""
            self.line(f"{name}: done in {duration(job.took)}{valid}")

    def line(self, text: str) -> None:
        """Print what happened, and the progress of all trainings."""
        whole = ", ".join(filter(None, (str(self.whole), self.whole.left)))
        terminal.say(f"{text} ({whole})" if whole else text)


class Bars(Lines):
    """A bar for all trainings, and one for every running job; jobs that end leave a line above."""

    def __init__(self, progress: Progress, whole: Whole) -> None:
        super().__init__(whole)
        self.progress = progress
        self.tasks: dict[str, TaskID] = {}
        self.all = progress.add_task("all", total=whole.total, numbers="", visible=bool(whole.weights))
        self.progress.update(self.all, completed=whole.completed, numbers=str(whole))

    def started(self, name: str, epochs: int) -> None:
        super().started(name, epochs)
        self.tasks[name] = self.progress.add_task(name, total=epochs, numbers="")

    def step(self, name: str, done: int, steps: int, row: Row) -> None:
        super().step(name, done, steps, row)
        self.show(name)

    def epoch(self, name: str, row: Row) -> None:
        self.whole.update(name, self.jobs[name].count(row, 1))
        self.show(name)

    def show(self, name: str) -> None:
        """Update the bars of a job and of all trainings."""
        job = self.jobs[name]
        self.progress.update(self.tasks[name], completed=job.done, numbers=numbers(job.row))
        self.progress.update(self.all, completed=self.whole.completed, numbers=str(self.whole))

    def finished(self, name: str) -> None:
        self.progress.remove_task(self.tasks.pop(name))
        super().finished(name)
        self.progress.update(self.all, completed=self.whole.completed, numbers=str(self.whole))

    def line(self, text: str) -> None:
        terminal.say(text)


def numbers(row: Row) -> str:
    """The numbers of an epoch that people see."""
    shown = {
        "loss": "loss {:.4f}",
        "acc": "acc {:.3f}",
        "valid_acc": "valid {:.3f}",
        "images_per_second": "{:.0f} img/s",
    }
    return "  ".join(text.format(row[key]) for key, text in shown.items() if key in row)


class TensorBoard:
    """A board that forwards everything, and writes every epoch of a training to RUN/tensorboard.

    It first writes earlier epochs of trainings that are not there yet.
    """

    def __init__(self, board: Board, run: Path) -> None:
        if find_spec("tensorboard") is None:
            raise UsageError(f"--tensorboard needs TensorBoard: {extra('tensorboard')}")
        self.board, self.folder = board, run / "tensorboard"
        self.writers: dict[str, SummaryWriter] = {}
        if (run / "recipe.json").exists():
            self.catch_up(run)

    def catch_up(self, run: Path) -> None:
        """Write the logs of trainings that are not there yet."""
        from polyphony.study.plan import trainings
        from polyphony.study.status import stored_study

        for job in trainings(stored_study(run)):
            log = job.folder / "log.jsonl"
            if log.exists() and not (self.folder / job.name).exists():
                for line in log.read_text().splitlines():
                    self.write(job.name, json.loads(line))
                self.close(job.name)

    def __getattr__(self, name: str) -> Any:
        """Everything else is forwarded to the board."""
        return getattr(self.board, name)

    def epoch(self, name: str, row: Row) -> None:
        self.board.epoch(name, row)
        if row:
            self.write(name, row)

    def finished(self, name: str) -> None:
        self.board.finished(name)
        self.close(name)

    def write(self, name: str, row: Row) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if name not in self.writers:
            self.writers[name] = SummaryWriter(str(self.folder / name))
        for number in row.keys() - {"epoch"}:
            self.writers[name].add_scalar(number, row[number], int(row["epoch"]))
        self.writers[name].flush()

    def close(self, name: str) -> None:
        if name in self.writers:
            self.writers.pop(name).close()
