"""Progress of jobs: on a terminal a bar for all trainings and one for each running job, elsewhere lines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from polyphony._util.text import duration
from polyphony.cli import terminal

if TYPE_CHECKING:
    from polyphony.execute import Board
    from polyphony.training.collapse import Row

LINE_EVERY = 60.0  # seconds between lines about one training
SHORT = 1.0  # seconds: a shorter job that is no training leaves no line
STEADY = 600.0  # seconds over which the time left is averaged

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    TextColumn("{task.fields[numbers]}"),
    TimeElapsedColumn(),
    TimeRemainingColumn(compact=True),
)


class Whole:
    """How far all trainings are together. Each has a weight: the seconds, or epochs, it should take."""

    def __init__(self, weights: Mapping[str, float], done: Mapping[str, float] | None = None) -> None:
        self.weights = weights
        self.shares = {name: share for name, share in (done or {}).items() if name in weights}
        self.finished = {name for name, share in self.shares.items() if share == 1}
        self.first, self.begun = self.completed, time.monotonic()

    @property
    def total(self) -> float:
        """The weight of all trainings."""
        return sum(self.weights.values())

    @property
    def completed(self) -> float:
        """The weight of what is done."""
        return sum(self.weights[name] * share for name, share in self.shares.items())

    def update(self, name: str, share: float) -> None:
        """Record which share of a job is done; jobs that are not trainings have no weight."""
        if name in self.weights:
            self.shares[name] = share

    def finish(self, name: str) -> None:
        """Record that a job is done."""
        if name in self.weights:
            self.shares[name] = 1.0
            self.finished.add(name)

    def __str__(self) -> str:
        """For example "3 of 19 trainings"; nothing where there are none."""
        return f"{len(self.finished)} of {len(self.weights)} trainings" if self.weights else ""

    @property
    def left(self) -> str:
        """For example "2 min left"; nothing where that is not known yet, or nothing is left."""
        done, left = self.completed - self.first, self.total - self.completed
        if done <= 0 or left <= 0:
            return ""
        return f"{duration((time.monotonic() - self.begun) / done * left)} left"


@dataclass
class Running:
    """A job that is running: its last numbers and how many of its epochs are done."""

    epochs: int
    done: float = 0.0
    row: Row = field(default_factory=dict)
    begun: float = field(default_factory=lambda: time.monotonic())
    spoke: float = field(default_factory=lambda: time.monotonic())

    def count(self, row: Row, steps: float) -> float:
        """Record that so many epochs more are done than before the epoch of `row`; returns the share."""
        self.row, first = row, int(row["epoch"]) if "epoch" in row else int(self.done)
        self.done = first + steps
        return min(1.0, self.done / self.epochs)

    @property
    def took(self) -> float:
        """Seconds since the job started."""
        return time.monotonic() - self.begun

    def is_due(self) -> bool:
        """Whether it is time for another line about this job."""
        if time.monotonic() - self.spoke < LINE_EVERY:
            return False
        self.spoke = time.monotonic()
        return True


@contextmanager
def board(whole: Whole | None = None) -> Iterator[Board]:
    """Bars on a terminal, lines elsewhere, warnings alone with --quiet."""
    whole = whole or Whole({})
    if terminal.chatter.quiet or not terminal.chatter.is_terminal:
        yield Lines(whole)
        return
    with Progress(*COLUMNS, console=terminal.chatter, speed_estimate_period=STEADY) as progress:
        yield Bars(progress, whole)


class Lines:
    """One line for every training that ends, and one a minute for a longer one."""

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
        """What happened, and how far the whole is."""
        whole = ", ".join(filter(None, (str(self.whole), self.whole.left)))
        terminal.say(f"{text} ({whole})" if whole else text)


class Bars(Lines):
    """A bar for the whole, and one for every running job; jobs that end leave their line above."""

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
        """Bring the bars of a job and of the whole up to date."""
        job = self.jobs[name]
        self.progress.update(self.tasks[name], completed=job.done, numbers=numbers(job.row))
        self.progress.update(self.all, completed=self.whole.completed, numbers=str(self.whole))

    def finished(self, name: str) -> None:
        self.progress.remove_task(self.tasks.pop(name))
        super().finished(name)
        self.progress.update(self.all, completed=self.whole.completed, numbers=str(self.whole))

    def line(self, text: str) -> None:
        """What happened; the bar says how far the whole is."""
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
