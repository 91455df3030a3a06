"""Several trainings in a row: one checkpoint and one progress bar for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polyphony.runs.stage import Stage
from polyphony.training.collapse import Row
from polyphony.training.fit import Watch


class Series:
    """The checkpoint: results and logs of finished trainings, and the state of the current one.

    In the stage's log, epochs count on from one training to the next.
    """

    def __init__(self, stage: Stage, saved: dict[str, Any] | None) -> None:
        saved = saved or {}
        self.stage = stage
        self.results: list[float] = saved.get("results", [])
        self.log: list[Row] = saved.get("finished", [])
        self._training: dict[str, Any] | None = saved.get("training")

    def load(self) -> dict[str, Any] | None:
        """The state of the current training, or None if it has not begun."""
        return self._training

    def save(self, training: dict[str, Any]) -> None:
        """Save the state of the current training."""
        self._training = training
        self._save(self.log + shifted(training["log"], len(self.log)))

    def finish(self, result: float, log: Sequence[Row]) -> None:
        """Save the result and the log of the current training, and begin the next one."""
        self.results, self._training = [*self.results, result], None
        self.log = self.log + shifted(log, len(self.log))
        self._save(self.log)

    def _save(self, log: list[Row]) -> None:
        state = {"finished": self.log, "results": self.results, "training": self._training}
        self.stage.save({"log": log, **state})


@dataclass(frozen=True)
class LaterWatch:
    """A watch that counts epochs from `start`."""

    watch: Watch
    start: int

    def step(self, done: int, steps: int, row: Row) -> None:
        self.watch.step(done, steps, *shifted([row], self.start))

    def epoch(self, row: Row) -> None:
        self.watch.epoch(*shifted([row], self.start))

    def warn(self, sentence: str) -> None:
        self.watch.warn(sentence)


def shifted(rows: Sequence[Row], start: int) -> list[Row]:
    """Rows of a log whose epochs count from `start`."""
    return [{**row, "epoch": row["epoch"] + start} for row in rows]
