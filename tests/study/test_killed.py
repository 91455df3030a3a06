"""A real process, killed where it stands, several times."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from polyphony.recipe import read_recipe
from polyphony.study import Study, run_study

KILLS = 3
EPOCHS = 8  # of each of three trainings
TINY = (
    "members=2",
    "seeds=[0]",
    "data={name='stripes.npz', augment={pad=1, flip=true}, valid=12, test=12}",
    "teachers={network={kind='resnet', depth=8, width=2}, epochs=8, batch=25, learning_rate=0.1}",
    "student={epochs=8, batch=25, learning_rate=0.1, weight_decay=1e-3}",
    "methods={kd-confods={perturb='confods'}}",
)


@pytest.fixture
def stripes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> Path:
    """A folder with data to train on, which is where this process is, too."""
    rng = np.random.default_rng(0)
    labels = np.arange(75) % 3
    images = rng.integers(0, 128, (75, 6, 6))
    images[np.arange(75), :, 2 * labels] += 100
    np.savez(tmp_path / "stripes.npz", images=images.astype(np.uint8), labels=labels)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", environment["XDG_CACHE_HOME"])
    return tmp_path


def epochs_done(folder: Path) -> int:
    """How many epochs have been logged so far; finished trainings count too."""
    return sum(len(path.read_bytes().splitlines()) for path in folder.rglob("log.jsonl"))


def kill_after(process: subprocess.Popen[bytes], folder: Path, epochs: int, pause: float) -> bool:
    """SIGKILL once so many epochs are logged, and a pause has passed. False where it finished before."""
    while epochs_done(folder) < epochs and process.poll() is None:
        time.sleep(0.02)
    time.sleep(pause)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def weights(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("weights.safetensors"))}


def test_a_study_killed_several_times_ends_with_the_same_bytes(stripes, here, quiet, program, environment):
    whole, killed = stripes / "whole" / "run", stripes / "killed" / "run"  # runs side by side share trainings
    run_study(Study(read_recipe("digits", TINY), whole), here, quiet)

    settings = [part for override in TINY for part in ("--set", override)]
    command = [
        *program,
        "study",
        "digits",
        "--out",
        str(killed),
        "--workers",
        "1",
        "--device",
        "cpu",
        *settings,
    ]
    chance, hits = random.Random(0), 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            command, cwd=stripes, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        further = epochs_done(killed) + chance.randint(1, 2 * EPOCHS // KILLS)
        hits += kill_after(process, killed, further, chance.uniform(0, 0.03))
    assert hits == KILLS  # else less was tested than is said
    rest = subprocess.run(command, cwd=stripes, env=environment, capture_output=True, text=True)
    assert rest.returncode == 0, rest.stderr

    assert len(weights(whole)) == 3
    assert weights(killed) == weights(whole)
    assert (killed / "scores.csv").read_bytes() == (whole / "scores.csv").read_bytes()
    for log in killed.rglob("log.jsonl"):
        assert [json.loads(row)["epoch"] for row in log.read_text().splitlines()] == list(range(EPOCHS))
    assert [path.name for path in killed.rglob(".*") if path.name != ".lock"] == []
