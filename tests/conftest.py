"""What every test may rely on: one thread, one way to run the program, and a recipe of seconds."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest
from filelock import FileLock

import polyphony as package
from polyphony.cli import main

# A virtual machine may announce AMX and not permit it: PyTorch's bfloat16 would end the process there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_VNNI")

gc.disable()  # until everything is imported, of which nothing can be freed
hypothesis.settings.register_profile("any machine", deadline=None)  # a busy one is slow, not wrong
hypothesis.settings.load_profile("any machine")

Program = Callable[..., "subprocess.CompletedProcess[str]"]
LONGEST = ("test_cluster", "test_together", "test_processes", "test_wheel")  # long single tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest come first, so that at the end no worker waits for one."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_collection_finish() -> None:
    """What was imported stays: Python need not look through all of it whenever it looks for garbage."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The tensors are tiny, and bit-for-bit comparisons should not hang on how many cores there are."""
    import torch  # here, since the process that hands tests to others needs none

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def simulated_device() -> None:
    """Registered before the first backward pass: PyTorch has no queue for devices that come later."""
    import device  # noqa: F401


@pytest.fixture(autouse=True, scope="session")
def letters_as_curves() -> None:
    """In PDFs: to embed a part of a TrueType font takes as long as all else that a page does."""
    from polyphony.report.chart import _SETTINGS

    _SETTINGS["pdf.fonttype"] = 3


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """The folder of that name which `make` fills, by one of the processes that run tests, for all of them."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        with FileLock(root / f"{name}.lock"):
            if not (root / f"{name}.made").exists():
                shutil.rmtree(root / name, ignore_errors=True)  # of one that failed
                (root / name).mkdir()
                make(root / name)
                (root / f"{name}.made").touch()
        return root / name

    return folder


@pytest.fixture(scope="session")
def tiny_digits() -> tuple[str, ...]:
    """Overrides that make the digits recipe a matter of seconds: 50 images, two batches, one epoch each."""
    return (
        "members=2",
        "data.per_class=5",
        "data.valid=60",
        "data.test=70",
        "teachers.network.width=2",
        "teachers.epochs=1",
        "teachers.batch=25",
        "student.epochs=1",
        "student.batch=25",
        "student.temperature=4",
        "methods={scratch={}, kd={perturb='clean'}, kd-gaussian={perturb='gaussian'}}",
        "methods.kd-ods.perturb=ods",
        "methods.kd-confods.perturb=confods",
    )


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A process's environment in which nothing depends on the terminal, the cores or the user's caches."""
    ours = str(Path(package.__file__).parents[1])  # the package under test, wherever a process runs
    fixed = {"PYTHONPATH": ours, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return {**os.environ, **fixed, "XDG_CACHE_HOME": str(tmp_path / ".cache")}


@pytest.fixture
def program() -> list[str]:
    """The command as a person types it, without an installed script."""
    return [sys.executable, "-c", "from polyphony.cli import main; main()"]


@pytest.fixture
def polyphony(program: list[str], environment: dict[str, str], tmp_path: Path) -> Program:
    """Run `polyphony ARGUMENTS` in a process of its own, in an empty folder."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [*program, *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


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
