"""What people see: progress, tables, sentences."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.syntax import Syntax
from rich.table import Table

if TYPE_CHECKING:
    from polyphony.study import Board, Cost, Score, Study
    from polyphony.study.run import Outcome
    from polyphony.train import Row

GPU_SPEED = 2e13  # operations a second that a large GPU is assumed to sustain in float32
LINE_EVERY = 10.0  # seconds between lines of progress where there is no terminal

console = Console()
errors = Console(stderr=True)


def complain(sentence: str) -> None:
    """One sentence on standard error."""
    errors.print(f"polyphony: {sentence}", style="bold red", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def board() -> Iterator[Board]:
    """Bars on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield Lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console) as progress:
        yield Bars(progress)


class Bars:
    """A bar for every job that is running; what is finished leaves a line."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.tasks: dict[str, TaskID] = {}
        self.epochs: dict[str, int] = {}

    def started(self, name: str, epochs: int) -> None:
        """A new bar."""
        self.tasks[name] = self.progress.add_task(name, total=epochs, numbers="")
        self.epochs[name] = 0

    def step(self, name: str, done: int, steps: int, row: Row) -> None:
        """Move the bar within the epoch."""
        self.progress.update(
            self.tasks[name], completed=self.epochs[name] + done / steps, numbers=numbers(row)
        )

    def epoch(self, name: str, row: Row) -> None:
        """Move the bar to the epoch's end."""
        self.epochs[name] += 1
        start = int(row.get("epoch", self.epochs[name] - 1)) + 1  # a resumed job does not begin at 0
        self.epochs[name] = start
        self.progress.update(self.tasks[name], completed=start, numbers=numbers(row))

    def finished(self, name: str) -> None:
        """Take the bar away."""
        self.progress.remove_task(self.tasks.pop(name))


class Lines:
    """A line when a job starts and ends, and now and then between."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}
        self.begun: dict[str, float] = {}
        self.total: dict[str, int] = {}

    def started(self, name: str, epochs: int) -> None:
        """Remember when."""
        self.last[name] = self.begun[name] = time.monotonic()
        self.total[name] = epochs

    def step(self, name: str, done: int, steps: int, row: Row) -> None:
        """Too fine for lines."""

    def epoch(self, name: str, row: Row) -> None:
        """A line, if the last one is long ago."""
        now = time.monotonic()
        if row and now - self.last[name] >= LINE_EVERY:
            self.last[name] = now
            done = int(row["epoch"]) + 1
            left = (now - self.begun[name]) / done * (self.total[name] - done)
            line(f"{name}: epoch {done}/{self.total[name]}  {numbers(row)}  {duration(left)} left")

    def finished(self, name: str) -> None:
        """Say how long it took."""
        line(f"{name}: done in {duration(time.monotonic() - self.begun[name])}")


def numbers(row: Row) -> str:
    """What a progress line shows of an epoch."""
    shown = {
        "loss": "loss {:.4f}",
        "acc": "acc {:.3f}",
        "valid_acc": "valid {:.3f}",
        "images_per_second": "{:.0f} img/s",
    }
    return "  ".join(text.format(row[key]) for key, text in shown.items() if key in row)


def line(text: str) -> None:
    """A plain line."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """ "45 s", "4 min", "3.1 h", "12 d" """
    for size, unit, digits in ((86400, "d", 0), (3600, "h", 1), (60, "min", 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


def show_recipe(study: Study) -> None:
    """The resolved recipe."""
    text = json.dumps(study.recipe.model_dump(mode="json", exclude_none=True), indent=2)
    console.print(Syntax(text, "json", background_color="default"))


def show_parameters(counts: dict[str, int]) -> None:
    """How many parameters teachers and students have."""
    table = Table("model", "parameters", title="Parameters")
    for model, count in counts.items():
        table.add_row(model, f"{count:,}")
    console.print(table)


def show_costs(study: Study, costs: Sequence[Cost]) -> None:
    """What a study takes, measured here and estimated for a GPU."""
    from polyphony.study.run import default_workers

    workers = default_workers(study)
    table = Table("training", "runs", "PFLOP", "each, here", "all, one GPU", title="Cost")
    for cost in costs:
        gpu = duration(cost.runs * cost.flops / GPU_SPEED)
        table.add_row(
            cost.name, str(cost.runs), f"{cost.runs * cost.flops / 1e15:.3g}", duration(cost.seconds), gpu
        )
    console.print(table)
    total = sum(cost.runs * cost.seconds for cost in costs) / workers
    line(
        f"All of it: about {duration(total)} on this machine ({workers} at a time), from one measured step each;"
    )
    line(f"GPU times assume a sustained {GPU_SPEED / 1e12:.0f} TFLOP/s.")


def show_outcome(study: Study, outcome: Outcome) -> None:
    """What was done, the table, the verdict, where the files are."""
    from polyphony.study import verdict

    if outcome.ran == 0:
        line(f"Nothing to do: all {outcome.skipped} parts of {study.folder} are done and unchanged.")
    elif outcome.skipped:
        line(f"{outcome.ran} parts were run, {outcome.skipped} were done before.")
    if outcome.scores:
        console.print(score_table(study, outcome.scores))
        line(verdict(study, outcome.scores))
        line(f"Scores: {study.folder / 'scores.csv'}")


def score_table(study: Study, rows: list[Score]) -> Table:
    """The paper's Table 1: test images, calibrated scores, mean ± s.d. over seeds."""
    from polyphony import metrics
    from polyphony.study import mean, select

    recipe = study.recipe
    table = Table(
        "Method", "# Params", "ACC ↑", "NLL ↓", "BS ↓", "ECE ↓", "DEE ↑", "mean-KLD",
        title=f"{recipe.name}: test images, calibrated, mean ± s.d. over {len(recipe.seeds)} seeds",
    )  # fmt: skip
    labels = {"teachers": f"T: DeepEns-{recipe.members}"} | {name: f"S: {name}" for name in recipe.methods}
    for model, label in labels.items():
        chosen = select(rows, model, "test", "calibrated")
        dee = mean(chosen, "dee")
        table.add_row(
            label,
            f"{chosen[0].params / 1e6:.2f} M",
            metrics.format_mean_sd(metrics.mean_sd([100 * row.acc for row in chosen]), 2),
            *(metrics.format_mean_sd(mean(chosen, column)) for column in ("nll", "bs", "ece")),
            metrics.format_dee(dee.mean, study.teachers)
            if dee.mean == float("inf")
            else metrics.format_mean_sd(dee, 2),
            metrics.format_mean_sd(mean(chosen, "kld")),
        )
    return table
