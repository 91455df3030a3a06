"""Progress of jobs: bars on a terminal, lines elsewhere, and the numbers of trainings for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from polyphony._util.text import duration, extra
from polyphony.cli import terminal
from polyphony.cli.options import UsageError

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
        self.weights, self.total = weights, sum(weights.values())
        self.shares = {name: share for name, share in (done or {}).items() if name in weights}
        self.first, self.begun = self.completed, time.monotonic()

    @property
    def completed(self) -> float:
        return sum(self.weights[name] * share for name, share in self.shares.items())

    def update(self, name: str, share: float) -> None:
        """Record the share of a job that is done; jobs that are not trainings have no weight."""
        if name in self.weights:
            self.shares[name] = share

    def __str__(self) -> str:
        """For example "3 of 19 trainings"; empty if there are none."""
        finished = sum(share == 1 for share in self.shares.values())
        return f"{finished} of {len(self.weights)} trainings" if self.weights else ""

    @property
    def left(self) -> str:
        """For example "2 min left"; empty if that is not known yet, or nothing is left."""
        done, left = self.completed - self.first, self.total - self.completed
        if done <= 0 or left <= 0:
            return ""
        return f"{duration((time.monotonic() - self.begun) / done * left)} left"


@dataclass
class Job:
    """A running job: its bar, its finished epochs, its last numbers, and when its last line was printed."""

    bar: TaskID
    epochs: int
    begun: float
    spoke: float
    done: float = 0.0
    row: Row = field(default_factory=dict)


@contextmanager
def board(whole: Whole | None = None, tensorboard: Path | None = None) -> Iterator[Board]:
    """A board with bars on a terminal, or lines elsewhere; only warnings with --quiet.

    `tensorboard` is the run whose trainings are also written for TensorBoard.
    """
    hidden = terminal.chatter.quiet or not terminal.chatter.is_terminal
    bars = Progress(*COLUMNS, console=terminal.chatter, speed_estimate_period=STEADY, disable=hidden)
    with nullcontext() if hidden else bars:
        shown = Jobs(bars, whole or Whole({}))
        yield TensorBoard(shown, tensorboard) if tensorboard else shown


class Jobs:
    """A bar for all trainings and one for every running job; a line for every job that ends.

    If the bars are disabled, a longer training also gets a line a minute, and lines say how much is left.
    """

    def __init__(self, bars: Progress, whole: Whole) -> None:
        self.bars, self.whole = bars, whole
        self.jobs: dict[str, Job] = {}
        self.all = bars.add_task("all", total=whole.total, numbers="", visible=bool(whole.weights))
        self._show_whole()

    def started(self, name: str, epochs: int) -> None:
        now = time.monotonic()
        self.jobs[name] = Job(self.bars.add_task(name, total=epochs, numbers=""), epochs, now, now)

    def step(self, name: str, done: int, steps: int, row: Row) -> None:
        job = self.jobs[name]
        first = int(row["epoch"]) if "epoch" in row else int(job.done)
        job.row, job.done = row, first + done / steps
        self.bars.update(job.bar, completed=job.done, numbers=numbers(row))
        self.whole.update(name, min(1.0, job.done / job.epochs))
        self._show_whole()

    def epoch(self, name: str, row: Row) -> None:
        self.step(name, 1, 1, row)
        job, now = self.jobs[name], time.monotonic()
        if self.bars.disable and row and now - job.spoke >= LINE_EVERY:
            job.spoke = now
            self._line(f"{name}: epoch {job.done:.0f} of {job.epochs}, {numbers(row)}")

    def warn(self, name: str, sentence: str) -> None:
        terminal.line(f"{name}: {sentence}", "yellow")

    def finished(self, name: str) -> None:
        job = self.jobs.pop(name)
        self.bars.remove_task(job.bar)
        self.whole.update(name, 1.0)
        took = time.monotonic() - job.begun
        if job.row or took >= SHORT:
            valid = f", valid {job.row['valid_acc']:.3f}" if "valid_acc" in job.row else ""
            self._line(f"{name}: done in {duration(took)}{valid}")
        self._show_whole()

    def _show_whole(self) -> None:
        self.bars.update(self.all, completed=self.whole.completed, numbers=str(self.whole))

    def _line(self, text: str) -> None:
        whole = ", ".join(filter(None, (str(self.whole), self.whole.left))) if self.bars.disable else ""
        terminal.say(f"{text} ({whole})" if whole else text)


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
        from polyphony.runs.store import read_log
        from polyphony.study.plan import trainings
        from polyphony.study.status import stored_study

        for job in trainings(stored_study(run)):
            log = job.folder / "log.jsonl"
            if log.exists() and not (self.folder / job.name).exists():
                for row in read_log(log):
                    self.write(job.name, row)
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
