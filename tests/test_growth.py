"""ARCHITECTURE's "Where to change what": a toy of each kind is added to a copy of the package, and works.

A change names the files that it edits, at most two, besides a new file.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import polyphony

PACKAGE = Path(polyphony.__file__).parent


@dataclass(frozen=True)
class Change:
    """Files of the package that are edited, by what is put before which line; and files that are new."""

    edited: dict[str, dict[str, str]]  # file → {line: what comes before it, or nothing: at the end}
    new: dict[str, str] = field(default_factory=dict)


CHANGES = {
    "a student form": Change(
        {
            "recipe/forms.py": {
                "from polyphony.nn import FACTOR_STD": "from polyphony.ensembles.toy import Toy\n",
                "class PythonForm(": '''class ToyForm(FormTable):
    """Members by a number each."""

    kind: Literal["toy"]

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        return Toy(network, members)


''',
                "    | PythonForm,": "    | ToyForm\n",
            }
        },
        {
            "ensembles/toy.py": '''"""Members that differ by a number."""

import torch
from torch import Tensor, nn

from polyphony.ensembles.base import Ensemble


class Toy(Ensemble):
    """One network, and a number for each member."""

    def __init__(self, network: nn.Module, members: int) -> None:
        super().__init__()
        self.members, self.network = members, network
        self.scale = nn.Parameter(torch.linspace(0.9, 1.1, members))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([scale * self.network(rows) for scale, rows in zip(self.scale, x, strict=True)])
'''
        },
    ),
    "a perturbation": Change(
        {
            "distill/perturb.py": {
                "": '''

class Shade(BuiltIn):
    """Every pixel darker by a step."""

    kind: Literal["shade"] = "shade"
    step_size: StepSize = 1 / 255

    def __call__(
        self, x: Tensor, y: Tensor, teachers: Teachers, student: Ensemble | None, temperature: float, rng: Rng
    ) -> Tensor:
        return step(x, -torch.ones_like(x), self.step_size)
'''
            },
            "recipe/perturbations.py": {
                "from polyphony.recipe.python": "from polyphony.distill.perturb import Shade\n",
                "Mixup | PythonPerturbation": "Shade | ",
            },
        }
    ),
    "a column of scores.csv": Change(
        {
            "runs/rows.py": {
                "@dataclass(frozen=True)\nclass SelectiveScore": "    sureness: float | None = None\n\n\n"
            },
            "metrics/predictions.py": {
                '"kld": self.mean_kld()': '"sureness": float(self.log_probs(temperature).exp().amax()), '
            },
        }
    ),
    "a data set": Change(
        {
            "data/catalogue.py": {
                "from polyphony.data.tinyimagenet": "from polyphony.data.stripes import STRIPES\n",
                "    DIGITS,\n": "    STRIPES,\n",
            }
        },
        {
            "data/stripes.py": '''"""Pictures of a stripe."""

import torch

from polyphony.data.dataset import Contents, Dataset, Place
from polyphony.data.splits import Split


def read(path, options):
    labels = torch.arange(120) % 4
    images = torch.zeros(120, 1, 8, 8, dtype=torch.uint8)
    images[torch.arange(120), :, :, 2 * labels] = 255
    return Contents(tuple("abcd"), {"train": Split(images, labels)}, "official")


STRIPES = Dataset("stripes", "Stripes", "", "none", (Place("", read, cached=False),), {"train": 120})
'''
        },
    ),
    "a schedule": Change(
        {
            "training/optimise.py": {
                "class Cosine(": '''class Linear(Settings):
    """From 1 to 0."""

    kind: Literal["linear"] = "linear"

    def __call__(self, epoch: int, epochs: int, warm_up: int = 5) -> float:
        return 1 - epoch / epochs


''',
                "Trapezoid | Cosine": "Linear | ",
            },
        }
    ),
    "a place to run jobs": Change(
        {
            "cli/options.py": {
                '    device: Device = "auto"': "    aloud: bool = False\n",
                "    group, on_cpu =": "    if where.aloud:\n        return Aloud(study.threads())\n",
                "from polyphony._util.files import": "from polyphony.execute.aloud import Aloud\n",
            }
        },
        {
            "execute/aloud.py": '''"""Here, with a word for every job."""

from polyphony.execute.runner import Here, run_job


class Aloud(Here):
    """Says what it runs."""

    def run_one(self, job, board):
        print("aloud:", job.name)
        run_job(job, board)
'''
        },
    ),
    "a figure on the page": Change(
        {
            "report/page.py": {
                "from polyphony.runs.run import": "from polyphony.report.figures.toy import toy_figure\n",
                "learning_curves,)": "toy_figure, ",
            }
        },
        {
            "report/figures/toy.py": '''"""A figure."""

from dataclasses import replace

from polyphony.report.figures.training import learning_curves


def toy_figure(run):
    """The learning curves once more."""
    return replace(learning_curves(run), name="toy", title="A toy figure")
'''
        },
    ),
}
KEY = Change({"training/optimise.py": {"    momentum: BelowOne = 0.9": "    eagerness: float = 0.25\n"}})
PLAIN = """members = 2
[data]
name = "digits"
per_class = 5
valid = 20
test = 20
[teachers]
network = { kind = "resnet", depth = 8, width = 2 }
epochs = 1
batch = 20
learning_rate = 0.1
[student]
epochs = 1
batch = 20
learning_rate = 0.1
[methods]
kd-ods = { perturb = "ods" }
"""
RECIPE = """members = 2
[data]
name = "stripes"
augment = { pad = 0, flip = false }
[teachers]
network = { kind = "resnet", depth = 8, width = 2 }
epochs = 2
batch = 20
learning_rate = 0.1
schedule = "linear"
[student]
epochs = 2
batch = 20
learning_rate = 0.1
[methods]
kd-shade = { perturb = "shade", form = "toy" }
"""


@pytest.mark.parametrize("kind", CHANGES)
def test_at_most_two_files_are_edited(kind):
    assert len(CHANGES[kind].edited) <= 2
    assert len(CHANGES[kind].new) <= 1


@pytest.fixture
def grown(made_once):
    """A folder with a run of a copy of the package, to which all toys were added afterwards."""
    return made_once("grown", grow)


def grow(folder: Path) -> None:
    """Make that folder."""
    shutil.copytree(PACKAGE, folder / "polyphony", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "plain.toml").write_text(PLAIN)
    command(folder, "distill", "plain.toml", "--out", "runs/before")
    for change in [*CHANGES.values(), KEY]:
        for name, text in change.new.items():
            (folder / "polyphony" / name).write_text(text)
        for name, additions in change.edited.items():
            path = folder / "polyphony" / name
            for line, text in additions.items():
                before, found, after = (
                    path.read_text().partition(line) if line else (path.read_text(), "!", "")
                )
                assert found, f"{name} has no {line!r}"
                path.write_text(before + text + found.strip("!") + after)
    (folder / "toy.toml").write_text(RECIPE)


def command(folder: Path, *words: str) -> str:
    """What a command of the package in a folder prints."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    called = [sys.executable, "-m", "polyphony", *words]
    done = subprocess.run(called, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_none_of_them_nor_a_new_key_trains_again_what_was_trained_before(grown):
    printed = command(grown, "distill", "plain.toml", "--out", "runs/after", "--aloud")
    assert "Taken over from other runs in runs: 3 trainings." in printed
    assert "aloud:" not in printed
    stored = json.loads((grown / "runs" / "after" / "recipe.json").read_text())["recipe"]
    assert stored["student"]["eagerness"] == 0.25
    for path in (grown / "runs" / "after").rglob("weights.safetensors"):
        other = grown / "runs" / "before" / path.relative_to(grown / "runs" / "after")
        assert path.read_bytes() == other.read_bytes()


def test_all_of_them_work_in_a_study(grown):
    assert "aloud: teacher 0" in command(grown, "study", "toy.toml", "--aloud", "--no-analyses")
    with (grown / "runs" / "toy" / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["model"] for row in rows} == {"teachers", "best teacher", "kd-shade"}
    assert all(0.25 <= float(row["sureness"]) <= 1 for row in rows)
    assert "A toy figure" in (grown / "runs" / "toy" / "report.html").read_text()
