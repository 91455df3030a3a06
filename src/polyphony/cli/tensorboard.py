"""What log.jsonl holds, written for TensorBoard: one run a training."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyphony._util.text import extra
from polyphony.cli.where import UsageError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from polyphony.execute import Board
    from polyphony.training.collapse import Row


class TensorBoard:
    """A board that passes everything on, and writes every epoch of a training to RUN/tensorboard too.

    Trainings that have epochs behind them already, which nobody has written there, are caught up with first.
    """

    def __init__(self, board: Board, run: Path) -> None:
        if find_spec("tensorboard") is None:
            raise UsageError(f"--tensorboard needs TensorBoard: {extra('tensorboard')}")
        self.board, self.folder = board, run / "tensorboard"
        self.writers: dict[str, SummaryWriter] = {}
        if (run / "recipe.json").exists():
            self.catch_up(run)

    def catch_up(self, run: Path) -> None:
        """Write what trainings have logged that are not there yet."""
        from polyphony.study.plan import trainings
        from polyphony.study.status import stored_study

        for job in trainings(stored_study(run)):
            log = job.folder / "log.jsonl"
            if log.exists() and not (self.folder / job.name).exists():
                for line in log.read_text().splitlines():
                    self.write(job.name, json.loads(line))
                self.close(job.name)

    def __getattr__(self, name: str) -> Any:
        """All else is the board's."""
        return getattr(self.board, name)

    def epoch(self, name: str, row: Row) -> None:
        """Show an epoch, and write it; a job that is no training has no numbers."""
        self.board.epoch(name, row)
        if row:
            self.write(name, row)

    def finished(self, name: str) -> None:
        """Show that a job is done, and close its file."""
        self.board.finished(name)
        self.close(name)

    def write(self, name: str, row: Row) -> None:
        """One epoch's numbers, at once in the file."""
        from torch.utils.tensorboard import SummaryWriter

        if name not in self.writers:
            self.writers[name] = SummaryWriter(str(self.folder / name))
        for number in row.keys() - {"epoch"}:
            self.writers[name].add_scalar(number, row[number], int(row["epoch"]))
        self.writers[name].flush()

    def close(self, name: str) -> None:
        """Nothing more comes of a training."""
        if name in self.writers:
            self.writers.pop(name).close()
