"""The board shows the progress of jobs; events carry reports to it from other processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from polyphony.training.collapse import Row


class Board(Protocol):
    """Shows the progress of jobs."""

    def started(self, name: str, epochs: int) -> None: ...

    def step(self, name: str, done: int, steps: int, row: Row) -> None:
        """Show that `done` of `steps` steps of an epoch are done."""

    def epoch(self, name: str, row: Row) -> None:
        """Show the end of an epoch; `row` is its line in the log."""

    def warn(self, name: str, sentence: str) -> None:
        """Show a warning about a job that is running."""

    def finished(self, name: str) -> None: ...


@dataclass(frozen=True)
class Event:
    """A report of the job with this name."""

    name: str

    def report_to(self, board: Board) -> None:
        """Call the board's method for this report."""
        raise NotImplementedError


@dataclass(frozen=True)
class Started(Event):
    """`Board.started` of another process."""

    epochs: int

    def report_to(self, board: Board) -> None:
        board.started(self.name, self.epochs)


@dataclass(frozen=True)
class Stepped(Event):
    """`Board.step` of another process."""

    done: int
    steps: int
    row: Row

    def report_to(self, board: Board) -> None:
        board.step(self.name, self.done, self.steps, self.row)


@dataclass(frozen=True)
class EpochEnded(Event):
    """`Board.epoch` of another process."""

    row: Row

    def report_to(self, board: Board) -> None:
        board.epoch(self.name, self.row)


@dataclass(frozen=True)
class Warned(Event):
    """`Board.warn` of another process."""

    sentence: str

    def report_to(self, board: Board) -> None:
        board.warn(self.name, self.sentence)


@dataclass(frozen=True)
class Finished(Event):
    """`Board.finished` of another process."""

    def report_to(self, board: Board) -> None:
        board.finished(self.name)


@dataclass(frozen=True)
class Failed(Event):
    """A job failed; `report_to` raises the error."""

    error: Exception

    def report_to(self, board: Board) -> None:
        raise self.error


@dataclass(frozen=True)
class Relay:
    """The board of a worker process: it sends every report as an event to the main process."""

    send: Callable[[Event], object]

    def started(self, name: str, epochs: int) -> None:
        self.send(Started(name, epochs))

    def step(self, name: str, done: int, steps: int, row: Row) -> None:
        self.send(Stepped(name, done, steps, row))

    def epoch(self, name: str, row: Row) -> None:
        self.send(EpochEnded(name, row))

    def warn(self, name: str, sentence: str) -> None:
        self.send(Warned(name, sentence))

    def finished(self, name: str) -> None:
        self.send(Finished(name))


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
