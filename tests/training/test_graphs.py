"""A compiled loss: one graph, the numbers of the one that is not compiled, resume, and what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor, nn

from cases import FORMS, loss_of, seeded, split
from polyphony._util.text import SettingError
from polyphony.compute.parallel import Group
from polyphony.data import Split
from polyphony.distill import CrossEntropy
from polyphony.ensembles import Single
from polyphony.recipe import read_recipe
from polyphony.runs.stage import Stage
from polyphony.study.fingerprints import fingerprints
from polyphony.study.plan import plan
from polyphony.study.study import Study
from polyphony.training import graphs
from polyphony.training.fit import Plan, fit
from polyphony.training.graphs import CompileError

TRAIN, VALID = split(10, 1), split(12, 3)
PLAN = Plan(epochs=2, batch=5, learning_rate=0.05, warm_up=1, compile=True)
CROSS_ENTROPY = CrossEntropy()
PLAIN = PLAN.replace(compile=False)
State = dict[str, Tensor]
Count = Callable[[], tuple[int, int]]


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Count:
    """Capture graphs, and run them as they are; how many there are, and how often one was broken off."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(graphs, "BACKEND", "eager")
    counters.clear()
    return lambda: (counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))


def trained(form: str, loss: str, perturb: str, plan: Plan, train: Split = TRAIN) -> State:
    student = FORMS[form]().double()
    fit(student, loss_of(student, loss, perturb), train, VALID, plan, seeded(7))
    return student.state_dict()


def distance(one: State, other: State) -> float:
    assert one.keys() == other.keys()
    assert all(bool(value.isfinite().all()) for state in (one, other) for value in state.values())
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize(
    ("case", "asked", "backend"),  # how many networks, or modes of them, the perturbation asks
    [
        (("batch_ensemble", "labels", "clean"), 0, "eager"),
        (("batch_ensemble", "one_to_one", "ods+mixup"), 1, "aot_eager"),  # gradients are a graph, too
        (("batch_ensemble", "one_to_one", "diversify"), 3, "eager"),
        (("member_norm", "one_pass", "gaussian"), 0, "eager"),
        (("branch", "one_to_one", "ods"), 1, "aot_eager"),
        (("mimo", "one_to_one", "confods"), 1, "eager"),
        (("hydra", "mean", "source"), 1, "eager"),
        (("latent_be", "one_to_one", "adversarial"), 1, "eager"),
        (("single", "mean", "clean"), 0, "eager"),
        (("dirichlet", "distribution", "ods"), 1, "aot_eager"),
        (("proxy_dirichlet", "proxy", "clean"), 0, "eager"),
        (("separate", "one_to_one", "ods"), 1, "eager"),
        (("frozen", "one_to_one", "clean"), 0, "eager"),
        (("dlf", "factors", "clean"), 0, "eager"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_a_loss_is_one_graph_and_a_compiled_training_is_the_same(
    captured: Count, monkeypatch: pytest.MonkeyPatch, case, asked, backend
):
    monkeypatch.setattr(graphs, "BACKEND", backend)
    found = trained(*case, PLAN)
    assert captured() == (1 + asked, 0)
    assert distance(found, trained(*case, PLAIN)) < 1e-10


def test_batches_of_another_size_have_a_graph_of_their_own(captured: Count):
    case, train = ("mimo", "labels", "clean"), split(13, 1)
    found = trained(*case, PLAN, train)
    assert captured() == (2, 0)
    assert distance(found, trained(*case, PLAIN, train)) < 1e-10


class StopsAfterOne(Stage):
    """A stage after whose first save the power goes out."""

    def save(self, state: dict[str, object]) -> None:
        super().save(state)
        raise InterruptedError


def compiled_in(folder: Path, stage: type[Stage] = Stage, seed: int = 7) -> State:
    student = FORMS["mimo"]()
    loss = loss_of(student, "one_to_one", "ods")
    fit(student, loss, TRAIN, VALID, PLAN, seeded(seed), checkpoint=stage(folder, {}))
    return student.state_dict()


def test_a_compiled_training_goes_on_with_the_same_bits(captured: Count, tmp_path: Path):
    whole = compiled_in(tmp_path / "whole")
    with pytest.raises(InterruptedError):
        compiled_in(tmp_path / "stopped", StopsAfterOne)
    assert distance(compiled_in(tmp_path / "stopped", seed=99), whole) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's compiler, of PyTorch itself
def test_what_a_real_compiler_makes_differs_in_rounding_alone():
    case, plan = ("batch_ensemble", "one_to_one", "ods"), PLAN.replace(epochs=1)
    try:
        found = trained(*case, plan)
    except CompileError as error:
        pytest.skip(str(error))
    assert distance(found, trained(*case, plan.replace(compile=False))) < 1e-10


class Moody(nn.Sequential):
    """A network that looks at its images to decide."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_be_compiled_is_one_sentence(captured: Count, monkeypatch: pytest.MonkeyPatch):
    def own(model, x, y, rng):
        return CrossEntropy()(model, x, y, rng)

    def train(loss=CROSS_ENTROPY, network=nn.Sequential, group=None):
        model = Single(network(nn.Flatten(), nn.Linear(25, 3)))
        fit(model, loss, TRAIN, VALID, PLAN, seeded(), group=group)

    with pytest.raises(SettingError, match="a function cannot be compiled: only a TwoPart loss can"):
        train(own)
    with pytest.raises(SettingError, match="of several processes cannot be compiled"):
        train(group=Group(rank=1, size=2))
    with pytest.raises(CompileError, match=r"PyTorch cannot compile this training here \(Data-dependent"):
        train(network=Moody)
    monkeypatch.setattr(graphs, "BACKEND", "inductor")
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    with pytest.raises(CompileError, match="compiler"):
        train()


def test_a_recipe_says_so_and_keys_stay(tiny_digits, tmp_path: Path):
    plain, compiled = (
        Study(read_recipe("digits", [*tiny_digits, f"compile={value}"]), tmp_path)
        for value in ("false", "true")
    )
    assert compiled.training_plan(compiled.recipe.teachers).compile
    assert not plain.training_plan(plain.recipe.teachers).compile
    keys = [plan(study, fingerprints(study))[0].key for study in (compiled, plain)]
    assert keys[0] == keys[1]
