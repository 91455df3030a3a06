"""How people see the jobs go: the board, and the events that carry reports to it from other processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from polyphony.training.collapse import Row


class Board(Protocol):
    """Where people see how the jobs go."""

    def started(self, name: str, epochs: int) -> None:
        """A job begins."""

    def step(self, name: str, done: int, steps: int, row: Row) -> None:
        """So many steps of a job's epoch are done."""

    def epoch(self, name: str, row: Row) -> None:
        """An epoch of a job is over."""

    def warn(self, name: str, sentence: str) -> None:
        """Something a person should know of a job before it is done."""

    def finished(self, name: str) -> None:
        """A job is done."""


@dataclass(frozen=True)
class Event:
    """What a job of this name reports."""

    name: str

    def tell(self, board: Board) -> None:
        """Report it to a board."""
        raise NotImplementedError


@dataclass(frozen=True)
class Started(Event):
    """A job begins."""

    epochs: int

    def tell(self, board: Board) -> None:
        board.started(self.name, self.epochs)


@dataclass(frozen=True)
class Stepped(Event):
    """So many steps of a job's epoch are done."""

    done: int
    steps: int
    row: Row

    def tell(self, board: Board) -> None:
        board.step(self.name, self.done, self.steps, self.row)


@dataclass(frozen=True)
class EpochEnded(Event):
    """An epoch of a job is over."""

    row: Row

    def tell(self, board: Board) -> None:
        board.epoch(self.name, self.row)


@dataclass(frozen=True)
class Warned(Event):
    """Something a person should know of a job."""

    sentence: str

    def tell(self, board: Board) -> None:
        board.warn(self.name, self.sentence)


@dataclass(frozen=True)
class Finished(Event):
    """A job is done."""

    def tell(self, board: Board) -> None:
        board.finished(self.name)


@dataclass(frozen=True)
class Failed(Event):
    """A job failed; to tell it is to raise the error."""

    error: Exception

    def tell(self, board: Board) -> None:
        raise self.error


@dataclass(frozen=True)
class Relay:
    """The board of a process that runs jobs for another: it sends every report there as an event."""

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
    """A job's watch: it reports to a board, under the job's name."""

    board: Board
    name: str

    def step(self, done: int, steps: int, row: Row) -> None:
        self.board.step(self.name, done, steps, row)

    def epoch(self, row: Row) -> None:
        self.board.epoch(self.name, row)

    def warn(self, sentence: str) -> None:
        self.board.warn(self.name, sentence)
