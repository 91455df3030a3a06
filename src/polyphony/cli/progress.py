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

PROGRESS_EVERY = 300.0  # seconds without a line after which a pipe gets a line about the running jobs
SHORT, SHORT_IN_PIPE = 1.0, 60.0  # seconds; a shorter job that is not a training gets no line
AVERAGED_OVER = 600.0  # seconds of progress from which the bars compute the remaining time
MOST_NAMED = 3  # running jobs that a line names

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    TextColumn("{task.fields[numbers]}"),
    TimeElapsedColumn(),
    TimeRemainingColumn(compact=True),
)


class TotalProgress:
    """Progress of all trainings together.

    `weights` has the expected seconds of each training, or its epochs. `done` has the finished share of
    trainings that were started earlier.
    """

    def __init__(self, weights: Mapping[str, float], done: Mapping[str, float] | None = None) -> None:
        self.weights, self.total = weights, sum(weights.values())
        self.shares = {name: share for name, share in (done or {}).items() if name in weights}
        self.completed_before, self.start = self.completed, time.monotonic()

    @property
    def completed(self) -> float:
        return sum(self.weights[name] * share for name, share in self.shares.items())

    def update(self, name: str, share: float) -> None:
        """Record the finished share of a training; other jobs have no weight and are ignored."""
        if name in self.weights:
            self.shares[name] = share

    def __str__(self) -> str:
        """For example "3 of 19 trainings"; empty if there are none."""
        finished = sum(share == 1 for share in self.shares.values())
        return f"{finished} of {len(self.weights)} trainings" if self.weights else ""

    @property
    def time_left(self) -> str:
        """For example "2 min left"; empty before the first progress, and at the end."""
        done, left = self.completed - self.completed_before, self.total - self.completed
        if done <= 0 or left <= 0:
            return ""
        return f"{duration((time.monotonic() - self.start) / done * left)} left"


@dataclass
class RunningJob:
    """A running job: its bar, its number of epochs, when it started, finished epochs and last numbers."""

    bar: TaskID
    epochs: int
    start: float
    done: float = 0.0
    row: Row = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The finished share, 0 to 1."""
        return min(1.0, self.done / self.epochs)


@contextmanager
def board(total: TotalProgress | None = None, tensorboard: Path | None = None) -> Iterator[Board]:
    """A board with bars on a terminal, or lines elsewhere; only warnings with --quiet.

    `tensorboard` is the run whose trainings are also written for TensorBoard.
    """
    hidden = terminal.chatter.quiet or not terminal.chatter.is_terminal
    bars = Progress(*COLUMNS, console=terminal.chatter, speed_estimate_period=AVERAGED_OVER, disable=hidden)
    with nullcontext() if hidden else bars:
        jobs = JobBoard(bars, total or TotalProgress({}))
        yield TensorBoard(jobs, tensorboard) if tensorboard else jobs


class JobBoard:
    """A bar for all trainings and one for every running job; a line for every job that ends.

    If the bars are disabled (a pipe), lines also say how much is left, and after five minutes without a line
    one line names the running jobs.
    """

    def __init__(self, bars: Progress, total: TotalProgress) -> None:
        self.bars, self.total = bars, total
        self.jobs: dict[str, RunningJob] = {}
        self.last_line = time.monotonic()
        self.total_bar = bars.add_task("all", total=total.total, numbers="", visible=bool(total.weights))
        self._update_total()

    def started(self, name: str, epochs: int) -> None:
        bar = self.bars.add_task(name, total=epochs, numbers="")
        self.jobs[name] = RunningJob(bar, epochs, time.monotonic())

    def step(self, name: str, done: int, steps: int, row: Row) -> None:
        job = self.jobs[name]
        first = int(row["epoch"]) if "epoch" in row else int(job.done)
        job.row, job.done = row, first + done / steps
        self.bars.update(job.bar, completed=job.done, numbers=numbers(row))
        self.total.update(name, job.share)
        self._update_total()
        if self.bars.disable and time.monotonic() - self.last_line >= PROGRESS_EVERY:
            self._line(f"Running: {self._running()}")

    def epoch(self, name: str, row: Row) -> None:
        self.step(name, 1, 1, row)

    def warn(self, name: str, sentence: str) -> None:
        terminal.line(f"{name}: {sentence}", "yellow")

    def finished(self, name: str) -> None:
        job = self.jobs.pop(name)
        self.bars.remove_task(job.bar)
        self.total.update(name, 1.0)
        seconds = time.monotonic() - job.start
        if job.row or seconds >= (SHORT_IN_PIPE if self.bars.disable else SHORT):
            valid = f", valid {job.row['valid_acc']:.3f}" if "valid_acc" in job.row else ""
            self._line(f"{name}: done in {duration(seconds)}{valid}")
        self._update_total()

    def _update_total(self) -> None:
        self.bars.update(self.total_bar, completed=self.total.completed, numbers=str(self.total))

    def _running(self) -> str:
        """For example "teacher 3 at 40 %; kd, seed 0 at 5 %; 2 more"."""
        shares = [f"{name} at {job.share:.0%}".replace("%", " %") for name, job in self.jobs.items()]
        more = len(shares) - MOST_NAMED
        return "; ".join(shares[:MOST_NAMED] + ([f"{more} more"] if more > 0 else []))

    def _line(self, text: str) -> None:
        self.last_line = time.monotonic()
        left = ", ".join(filter(None, (str(self.total), self.total.time_left))) if self.bars.disable else ""
        terminal.say(f"{text} ({left})" if left else text)


def numbers(row: Row) -> str:
    """Loss, accuracies and speed of an epoch as text, as far as the row has them."""
    formats = {
        "loss": "loss {:.4f}",
        "acc": "acc {:.3f}",
        "valid_acc": "valid {:.3f}",
        "images_per_second": "{:.0f} img/s",
    }
    return "  ".join(text.format(row[key]) for key, text in formats.items() if key in row)


class TensorBoard:
    """Forwards everything to another board, and writes every epoch of a training to RUN/tensorboard.

    Trainings of the run that are missing there are written first.
    """

    def __init__(self, board: Board, run: Path) -> None:
        if find_spec("tensorboard") is None:
            raise UsageError(f"--tensorboard needs TensorBoard: {extra('tensorboard')}")
        self.board, self.folder = board, run / "tensorboard"
        self.writers: dict[str, SummaryWriter] = {}
        if (run / "recipe.json").exists():
            self.catch_up(run)

    def catch_up(self, run: Path) -> None:
        """Write the logs of earlier trainings that are missing in the folder."""
        from polyphony.runs.stage import LOG
        from polyphony.runs.store import read_log
        from polyphony.study.plan import trainings
        from polyphony.study.status import stored_study

        for job in trainings(stored_study(run)):
            log = job.folder / LOG
            if log.exists() and not (self.folder / job.name).exists():
                for row in read_log(log):
                    self.write(job.name, row)
                self.close(job.name)

    def __getattr__(self, name: str) -> Any:
        """Forward all other reports to the board."""
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
