"""Images that a process has no memory for, for real: the system refuses what is beyond its limit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SIDE, SPARE = 256, 220  # pixels; MiB that a process may take beyond what it has with its libraries
COUNTS = {"train": 704, "valid": 2, "test": 2}  # of each of two classes; the training images are 264 MiB

RECIPE = f"""
members = 1
threads = 1
[data]
name = "pictures"
resolution = {SIDE}
augment = {{ pad = 0, flip = false }}
[teachers]
network = {{ kind = "python", name = "patches:make" }}
epochs = 1
batch = 4
learning_rate = 0.01
[student]
epochs = 1
batch = 4
learning_rate = 0.01
[methods]
kd = {{ perturb = "clean" }}
"""
MODULE = """
from torch import nn

def make(classes, channels):
    patches = nn.Conv2d(channels, 4, 32, 32)
    return nn.Sequential(patches, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))
"""
CHILD = """
import resource, sys
import torch
import polyphony.study.evaluation, polyphony.study.run, polyphony.report
from polyphony.cli import main
from polyphony._util.files import memory

def status(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))

torch.set_num_threads(1)
limit = status("VmData") + (int(sys.argv[1]) << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
assert memory() == limit
try:
    torch.empty(264 << 20, dtype=torch.uint8)
    sys.exit("the limit is none")
except RuntimeError:
    pass
main(["teach", "big.toml", "--workers", "1", "--device", "cpu"])
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of pictures that are small in their files, a recipe that makes them large, a network."""
    rng = np.random.default_rng(0)
    for name, level in (("dark", 60), ("bright", 180)):
        picture = (level + rng.integers(-40, 40, (16, 16, 3))).astype(np.uint8)
        for part, count in COUNTS.items():
            folder = tmp_path / "pictures" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(np.roll(picture, i, 1)).save(folder / f"{i}.png")
    (tmp_path / "big.toml").write_text(RECIPE)
    (tmp_path / "patches.py").write_text(MODULE)
    return tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits what a process writes to")
def test_more_images_than_memory_are_trained_on_within_its_limit(place: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(SPARE)]
    own = os.environ | {"XDG_CACHE_HOME": str(place / "cache"), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=place, env=own, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(list((place / "runs" / "big" / "teachers").glob("*/weights.safetensors"))) == 1
