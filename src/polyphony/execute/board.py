"""The board shows people how jobs go; events carry reports to it from other processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Protocol

from polyphony.training.collapse import Row


class Board(Protocol):
    """Shows people how jobs go."""

    def started(self, name: str, epochs: int) -> None: ...

    def step(self, name: str, done: int, steps: int, row: Row) -> None:
        """`done` of `steps` steps of an epoch are done."""

    def epoch(self, name: str, row: Row) -> None:
        """An epoch is over; `row` is its line in the log."""

    def warn(self, name: str, sentence: str) -> None:
        """Show a warning about a job that is running."""

    def finished(self, name: str) -> None: ...


@dataclass(frozen=True)
class Event:
    """A report of the job with this name; `tell` repeats it to the board of another process."""

    name: str
    tell: Callable[[Board], object]


class Started(Event):
    """A job has started."""


class Finished(Event):
    """A job is done."""


@dataclass(frozen=True)
class Failed:
    """A job has failed; `tell` raises the error."""

    name: str
    error: Exception

    def tell(self, board: Board) -> None:
        raise self.error


@dataclass(frozen=True)
class Relay:
    """The board of a worker process: it sends every report to the main process as an event."""

    send: Callable[[Event], object]

    def started(self, name: str, epochs: int) -> None:
        self.send(Started(name, methodcaller("started", name, epochs)))

    def step(self, name: str, done: int, steps: int, row: Row) -> None:
        self.send(Event(name, methodcaller("step", name, done, steps, row)))

    def epoch(self, name: str, row: Row) -> None:
        self.send(Event(name, methodcaller("epoch", name, row)))

    def warn(self, name: str, sentence: str) -> None:
        self.send(Event(name, methodcaller("warn", name, sentence)))

    def finished(self, name: str) -> None:
        self.send(Finished(name, methodcaller("finished", name)))


@dataclass(frozen=True)
class JobWatch:
    """The watch of one job: it reports to a board under the job's name."""

    board: Board
    name: str

    def step(self, done: int, steps: int, row: Row) -> None:
        self.board.step(self.name, done, steps, row)

    def epoch(self, row: Row) -> None:
        self.board.epoch(self.name, row)

    def warn(self, sentence: str) -> None:
        self.board.warn(self.name, sentence)
