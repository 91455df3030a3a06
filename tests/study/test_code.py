"""What decides a training is its code: all that runs in it, and nothing else."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

import pytest

import polyphony
from polyphony.recipe.foreign import PythonNetwork
from polyphony.recipe.forms import FormTable, PythonForm
from polyphony.recipe.perturbations import PythonPerturbTable
from polyphony.study import Study, code
from polyphony.study.code import Place, Source, code_hash, decides, parsed, reached
from polyphony.study.jobs import TrainingJob, TrainStudent, TrainTeacher
from polyphony.training.fit import Unwatched

PACKAGE = Path(polyphony.__file__).parent
# What keeps a training and says where it ran; what its log measures beside the accuracy; what is in its key.
BESIDE = ("store", "machine", "limits", "collapse", "metrics.health", "nn.distance")
BESIDE += ("recipe.schema", "recipe.table", "study.code", "study.origin")
BESIDE += ("recipe.methods.Method", "recipe.perturbations.as_tables", "metrics.diversity.disagreement")


def roots(job: TrainingJob) -> tuple[type, ...]:
    """Where the reading of a job's code begins."""
    return (type(job), Study, *map(type, job.tables))


def places(job: TrainingJob) -> list[Place]:
    """The same as places in modules."""
    return [(each.__module__.removeprefix("polyphony."), each.__qualname__) for each in roots(job)]


class Traced:
    """The functions of the package that were called while this was in use."""

    def __enter__(self) -> Traced:
        self.called: set[CodeType] = set()

        def note(frame: FrameType, event: str, argument: object) -> None:
            self.called.add(frame.f_code)  # and no line of it is traced

        self.before = sys.gettrace()
        sys.settrace(note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self.before)

    def definitions(self) -> set[Place]:
        """The functions and classes of modules in which these stand."""
        found = set()
        for each in self.called:
            path = Path(each.co_filename)
            if path.is_relative_to(PACKAGE) and each.co_name != "<module>":
                found.add(definition_at(path, each.co_firstlineno))
        return found


@cache
def statements(path: Path) -> list[ast.stmt]:
    """What a module consists of."""
    return ast.parse(path.read_text()).body


def definition_at(path: Path, line: int) -> Place:
    """The definition of a module that has a line."""
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for node in statements(path):
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        if first <= line <= (node.end_lineno or first):
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            return module.removesuffix(".__init__"), getattr(node, "name", None) or targets[0].id
    raise AssertionError(f"{path} has no line {line}")


@pytest.mark.parametrize(
    "method",
    [
        "perturb = 'ods', step_size = 'match'",
        "perturb = 'mixup+gaussian', form = 'hydra'",
        "perturb = 'diversify', form = 'latent_be'",
        "perturb = 'adversarial', form = 'mimo'",
        "perturb = 'confods', form = 'dirichlet', source = 'extra'",
    ],
)
def test_whatever_runs_in_a_training_is_part_of_its_code(tiny_recipe, tmp_path, method):
    study = Study(tiny_recipe(f"methods={{tried = {{{method}}}}}"), tmp_path)
    student = TrainStudent(study, "tried", 0)
    assert len(study.splits.train)  # read already: images have fingerprints of their own
    for job in (*student.needs, student):
        with Traced() as traced:
            job.run(Unwatched())
        ran = {place for place in traced.definitions() if not ".".join(place).startswith(BESIDE)}
        assert ran <= reached(places(job), PACKAGE).keys()
        assert {("train", "fit"), ("ensembles.base", "NetworkRunner")} <= ran


@pytest.fixture
def edited(monkeypatch) -> Callable[[Sequence[type], str, str, str], str]:
    """The code of some classes if other words stood in the one place of a module where these do."""

    def code_if(classes: Sequence[type], name: str, old: str, new: str) -> str:
        text = (PACKAGE / name).read_text()
        assert text.count(old) == 1
        module = ".".join(Path(name).with_suffix("").parts)
        other = Source(PACKAGE, module, text.replace(old, new))
        monkeypatch.setattr(
            code, "parsed", lambda package, asked: other if asked == module else parsed(package, asked)
        )
        return code_hash.__wrapped__(*classes)

    return code_if


@pytest.fixture
def jobs(tiny_recipe, tmp_path) -> list[TrainingJob]:
    study = Study(tiny_recipe("methods={kd-ods = {perturb = 'ods'}}"), tmp_path / "run")
    return [TrainTeacher(study, 0), TrainStudent(study, "kd-ods", 0)]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("train.py", "def may_be_kept(", "# a comment\n\n\ndef may_be_kept("),
        ("train.py", '"""Whether an epoch ', '"""If an epoch '),
        ("train.py", "weights are trained in float32", "weights are trained in single precision"),
        ("optimise.py", '"""Epoch (counted from 0), epochs', '"""Epoch, epochs'),
        ("perturb.py", "class Mixup:", "class Another:\n    pass\n\n\n@dataclass(frozen=True)\nclass Mixup:"),
        ("perturb.py", "concentration: float = 1.0", "concentration: float = 2.0"),
        ("losses.py", "AGREEMENT = 1e-6", "AGREEMENT = 1e-5"),
        ("metrics/predictions.py", '"ece": ece(log_probs, labels)', '"ece": ece(log_probs, labels, 10)'),
        (
            "recipe/training.py",
            "    momentum: Fraction = 0.9",
            "    later: float = 0.25\n    momentum: Fraction = 0.9",
        ),
        ("recipe/schema.py", "that name is taken; choose another", "that name is taken"),
        (
            "study/jobs.py",
            '        """Where the logits are."""',
            '        """Where the logits are."""\n        print()',
        ),
    ],
)
def test_an_edit_that_decides_nothing_is_no_other_code(edited, jobs, name, old, new):
    before = [job.code for job in jobs]
    assert [edited(roots(job), name, old, new) for job in jobs] == before


@pytest.mark.parametrize(
    ("name", "old", "new", "whose"),
    [
        ("optimise.py", "0.01 + 0.99", "0.02 + 0.98", "both"),
        ("nn/common.py", 'mode="fan_out"', 'mode="fan_in"', "both"),
        ("train.py", "factor_rate: float = 0.5", "factor_rate: float = 0.4", "both"),
        ("perturb.py", "return (x + size * direction).clamp(0, 1)", "return x + size * direction", "student"),
        ("perturb.py", "d = guide - guide.gather(-1, top)", "d = guide", "student"),
        (
            "losses.py",
            "return temperature**2 * kl.mean()\n\n\ndef check_labels",
            "return kl.mean()\n\n\ndef check_labels",
            "student",
        ),
        ("nn/conversion.py", "FACTOR_STD = 0.5", "FACTOR_STD = 0.4", "student"),
        ("study/jobs.py", 'generator("student", self.seed)', 'generator("pupil", self.seed)', "student"),
    ],
)
def test_an_edit_that_decides_something_is_other_code_of_whom_it_concerns(
    edited, jobs, name, old, new, whose
):
    before = [job.code for job in jobs]
    after = [edited(roots(job), name, old, new) for job in jobs]
    assert [one != other for one, other in zip(before, after, strict=True)] == [whose == "both", True]


class OwnForm(FormTable):
    """As a user writes one."""


@pytest.mark.parametrize("own", [OwnForm, PythonForm, PythonNetwork, PythonPerturbTable])
def test_code_of_ones_own_may_reach_anything(edited, own):
    edit = ("losses.py", "AGREEMENT = 1e-6", "AGREEMENT = 1e-5")
    alone, with_own = (TrainStudent, Study), (TrainStudent, Study, own)
    before = [code_hash(*alone), code_hash(*with_own)]
    after = [edited(alone, *edit), edited(with_own, *edit)]
    assert [one != other for one, other in zip(before, after, strict=True)] == [False, True]


def test_no_source_has_what_the_reading_of_code_does_not_see():
    """Definitions under a condition, modules imported by more than a name, and all names of a module."""
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        if not decides(module):
            continue
        for node in statements(path):
            hidden = [*ast.walk(node)] if isinstance(node, ast.If | ast.Try | ast.With | ast.For) else []
            assert not any(isinstance(each, ast.FunctionDef | ast.ClassDef) for each in hidden), path
            assert not isinstance(node, ast.AsyncFunctionDef), path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("polyphony") for alias in node.names), path
            if isinstance(node, ast.ImportFrom):
                assert all(alias.name != "*" for alias in node.names), path
                assert not node.level, path
