"""The command under torchrun: one study in two processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from polyphony._util.text import SettingError
from polyphony.compute.parallel import GoneError, GroupError
from polyphony.data import DataError
from polyphony.execute.ranks import follow
from polyphony.recipe import RecipeError
from polyphony.training.tally import DivergedError


@pytest.fixture
def torchrun(environment: dict[str, str], tmp_path: Path):
    """Run `polyphony ARGUMENTS` in two processes."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*launch, "-m", "polyphony", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


def test_a_study_in_two_processes_equals_a_study_in_one(torchrun, say, tiny_digits, tmp_path: Path):
    """Every weight is the same but for float32's rounding, and one process alone shows and writes."""
    methods = "methods={scratch={}, kd-ods={perturb='ods', step_size='match'}}"
    few = ("seeds=[0]", "teachers.extra=0", "student.batch=15")
    small = [f"--set={key}" for key in (*tiny_digits[:-3], methods, *few)]
    for folder in ("a/two", "b/one"):
        (tmp_path / folder).mkdir(parents=True)  # where there is one, what it will cost is not measured
    process = torchrun("distill", "digits", *small, "--out", "a/two")
    assert process.returncode == 0, process.stderr
    alone = say("distill", "digits", *small, "--out", "b/one", "--workers", "1")
    assert alone.code == 0, alone.err
    assert process.stdout.count("teacher 0: done") == alone.out.count("teacher 0: done") == 1
    paths = sorted((tmp_path / "b" / "one").rglob("weights.safetensors"))
    assert len(paths) == 4
    for path in paths:
        theirs = tmp_path / "a" / "two" / path.relative_to(tmp_path / "b" / "one")
        one, two = load_file(path), load_file(theirs)
        for name in one:
            torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-4)
        for weights, processes in ((path, 1), (theirs, 2)):
            done = json.loads(weights.with_name("done.json").read_text())
            assert done["machine"]["processes"] == processes


def test_an_error_is_reported_by_one_process(torchrun):
    process = torchrun("teach", "digits", "--set", "teachers.epoch=3")
    assert process.returncode != 0
    assert process.stderr.count("has no key 'epoch'") == 1


def follow_one_that_raises(error: Exception) -> None:
    """What another process does that is given one job, which fails."""

    def fail(watch: object) -> None:
        raise error

    orders = iter([(SimpleNamespace(name="a", epochs=1, run=fail), 1), None])
    follow(SimpleNamespace(from_first=lambda make: next(orders)))


@pytest.mark.parametrize("kind", [DataError, GoneError, RecipeError, SettingError])
def test_an_error_of_another_process_ends_it(kind):
    with pytest.raises(kind, match="what is wrong"):
        follow_one_that_raises(kind("what is wrong"))


@pytest.mark.parametrize("kind", [DivergedError, GroupError])
def test_an_error_of_all_processes_is_left_to_the_first(kind):
    follow_one_that_raises(kind("what is wrong"))
