"""What the commands' tests share: a command said in this process, which is quicker than one of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from polyphony.cli import main


class Said(NamedTuple):
    """How a command ended, and what it printed."""

    code: object
    out: str
    err: str


@pytest.fixture
def say(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Said]:
    """Run `polyphony ARGUMENTS` in this process, in an empty folder: its `code`, `out` and `err`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))

    def run(*arguments: object) -> Said:
        code: object = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code or 0
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture
def refused() -> Callable[..., None]:
    """Assert exit code 2, and one line on standard error that says what it should."""

    def check(said: Said, *parts: object) -> None:
        assert said.code == 2, said
        assert said.err.count("\n") == 1, said.err
        assert said.err.startswith("polyphony: ")
        assert "Traceback" not in said.err + said.out
        for part in parts:
            assert str(part) in said.err

    return check
