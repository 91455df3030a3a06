"""A run of seconds that has a student of every form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from polyphony import Split, load_student
from polyphony.cli import main
from polyphony.serve import Student
from polyphony.study.provenance import open_study

FORMS = {
    "be": "{}",
    "be-norm": '{ kind = "batch_ensemble", member_norm = true }',
    "mimo": '"mimo"',
    "hydra": '"hydra"',
    "latent": '"latent_be"',
    "low_rank": '"low_rank"',
    "dlf": '{ kind = "dlf", draws = 5 }',
    "separate": '{ kind = "separate", match_cost = "parameters" }',
    "single": '"single"',
    "dirichlet": '"dirichlet"',
    "proxy": '"proxy_dirichlet"',
}
RECIPE = """
members = 2
[data]
name = "digits"
per_class = 10
valid = 60
test = 70
augment = { pad = 0, flip = false }
[teachers]
network = { kind = "resnet", depth = 8, width = 2 }
epochs = 2
batch = 50
learning_rate = 0.05
[student]
epochs = 2
batch = 50
learning_rate = 0.05
"""


@pytest.fixture(scope="session")
def run(made_once: Callable[..., Path]) -> Path:
    """A run with a student of every form, that nobody may change."""
    return made_once("serve", make) / "run"


def make(folder: Path) -> None:
    methods = "".join(
        f'[methods.{name}]\nperturb = "clean"\n' + (f"form = {form}\n" if form != "{}" else "")
        for name, form in FORMS.items()
    )
    (folder / "forms.toml").write_text(RECIPE + methods)
    (folder / "run").mkdir()  # where there is one, what it will cost is not measured
    quick = ["--workers", "1", "--device", "cpu"]
    for command in (
        ["distill", folder / "forms.toml", "--out", folder / "run"],
        ["evaluate", folder / "run"],
    ):
        with pytest.raises(SystemExit, match=r"^0$"):
            main([str(word) for word in (*command, *quick)])


@pytest.fixture(scope="session", params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """Every form in turn, which is also the name of a method of the run."""
    return str(request.param)


@pytest.fixture(scope="session")
def images(run: Path) -> Split:
    """The run's test images."""
    return open_study(run, None, "cpu").data().test


@pytest.fixture(scope="session")
def student(run: Path) -> Callable[[str], Student]:
    """The run's first student of a form."""
    return lambda form: load_student(run, form, 0)
