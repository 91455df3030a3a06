"""The checkpoint of several trainings in a row, in one stage."""

from __future__ import annotations

from typing import Any

from polyphony.runs.stage import Stage
from polyphony.training.collapse import Row


class Series:
    """The results and logs of the finished trainings, and the state of the current one."""

    def __init__(self, stage: Stage) -> None:
        saved = stage.load() or {}
        self.stage = stage
        self.results: list[float] = saved.get("results", [])
        self._training: dict[str, Any] | None = saved.get("training")
        rows = saved.get("log", [])
        self.log: list[Row] = rows[: len(rows) - len((self._training or {}).get("log", []))]

    def load(self) -> dict[str, Any] | None:
        """The state of the current training, or None if it has not begun."""
        return self._training

    def save(self, training: dict[str, Any]) -> None:
        """Save the state of the current training."""
        self._training = training
        self.stage.save({"log": self.log + training["log"], "results": self.results, "training": training})

    def finish(self, result: float, log: list[Row]) -> None:
        """Save the result and the log of the current training, and begin the next one."""
        self.results, self.log, self._training = [*self.results, result], self.log + log, None
        self.stage.save({"log": self.log, "results": self.results, "training": None})
