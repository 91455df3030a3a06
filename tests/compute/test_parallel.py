"""One training in two processes is the same training: draws, gradients, batch statistics, log and resume."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases import FORMS, PERTURBATIONS, loss_of, losses_of, seeded, split, without_labels
from polyphony._util.text import SettingError
from polyphony.compute.parallel import Group, GroupError, group_from_environment
from polyphony.distill import CrossEntropy
from polyphony.ensembles import Single
from polyphony.execute import processes
from polyphony.runs.stage import Stage
from polyphony.training.fit import Plan, fit
from polyphony.training.optimise import AdamW

SIZE = 2
TRAIN, VALID, WITHOUT = split(19, 1), split(12, 3), without_labels(split(7, 5))
PLAN = Plan(epochs=2, batch=5, learning_rate=0.05, warm_up=1)  # 8 steps: of 5 images each, 2 and 3, or of 4
SHORT = PLAN.replace(epochs=1)  # where a second epoch would be more of the same
State = dict[str, Tensor]


# Two processes that do what they are told


def serve(rank: int, port: int, pipe: Connection) -> None:
    """A process of the pair: runs functions with its group until it gets None."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(SIZE)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "a pair"}
    torch.set_num_threads(1)
    group = group_from_environment()
    while (request := pipe.recv()) is not None:
        function, arguments = request
        try:
            pipe.send((function(group, *arguments), None))
        except Exception as error:
            pipe.send((None, f"{type(error).__name__}: {error}"))


class Pair:
    """Both processes; they start at the first use, so that many tests import PyTorch only once."""

    def __init__(self) -> None:
        self.processes: list[Any] = []

    def start(self) -> None:
        """Start both."""
        context = processes.context()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ends = [context.Pipe() for _ in range(SIZE)]
        self.pipes = [ours for ours, _ in ends]
        self.processes = [
            context.Process(target=serve, args=(rank, port, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(ends)
        ]
        for process, (_, theirs) in zip(self.processes, ends, strict=True):
            process.start()
            theirs.close()

    def ask(self, function: Callable[..., Any], *arguments: Any) -> list[tuple[Any, str | None]]:
        """The function's result or error in each process; an EOFError if the process ended."""
        if not self.processes:
            self.start()
        for pipe in self.pipes:
            pipe.send((function, arguments))
        return [self.answer(pipe) for pipe in self.pipes]

    def answer(self, pipe: Connection) -> tuple[Any, str | None]:
        try:
            if not pipe.poll(600):  # which a machine with much else to do may need
                self.stop()  # so that no later test is given this one's answer
                raise AssertionError("a process is silent")
            return pipe.recv()
        except (EOFError, ConnectionResetError):
            return None, "ended"

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The function's result in each process."""
        answers = self.ask(function, *arguments)
        assert [error for _, error in answers] == [None] * SIZE
        return [value for value, _ in answers]

    def stop(self) -> None:
        """End both."""
        for process in self.processes:
            process.kill()
            process.join()
        self.processes = []


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    both = Pair()
    yield both
    both.stop()


# One process = two processes


def trained(
    group: Group, form: str, loss: str, perturb: str, plan: Plan = PLAN
) -> tuple[State, list[dict[str, float]]]:
    """All weights and buffers after a plan's steps in float64, and the log."""
    student = FORMS[form]().double()
    objective, train = loss_of(student, loss, perturb), TRAIN
    if plan.unlabelled:
        objective, train = replace(objective, unlabelled=True), TRAIN.joined(WITHOUT)
    log = fit(student, objective, train, VALID, plan, seeded(7), group=group)
    timed = ("seconds", "images_per_second")
    rows = [{name: value for name, value in row.items() if name not in timed} for row in log]
    return student.state_dict(), rows


def distance(one: State, other: State) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def check(pair: Pair, *arguments: Any) -> None:
    """Both processes end with the weights of a training in one process."""
    state, log = trained(Group(), *arguments)
    for other, rows in pair.run(trained, *arguments):
        assert distance(state, other) < 1e-10
        for row, expected in zip(rows, log, strict=True):
            assert row == pytest.approx(expected, abs=1e-6, rel=1e-9)  # the log is of float32 in part


@pytest.mark.parametrize(("form", "loss"), [(form, loss) for form in FORMS for loss in losses_of(form)])
def test_two_processes_are_one_for_every_form_and_loss(pair: Pair, form: str, loss: str):
    check(pair, form, loss, "ods+mixup", SHORT)


@pytest.mark.parametrize("perturb", PERTURBATIONS)
def test_two_processes_are_one_for_every_perturbation(pair: Pair, perturb: str):
    check(pair, "member_norm" if perturb == "diversify" else "batch_ensemble", "one_to_one", perturb, SHORT)


@pytest.mark.parametrize("form", ["mimo", "latent_be", "hydra"])
def test_two_processes_are_one_where_the_student_is_asked_for_directions(pair: Pair, form: str):
    check(pair, form, "one_to_one", "diversify", SHORT)


@pytest.mark.parametrize(
    ("form", "loss", "perturb"),
    [
        ("batch_ensemble", "one_to_one", "adversarial"),
        ("mimo", "one_pass", "mixup"),
        ("single", "mean", "ods"),
        ("dirichlet", "distribution", "ods"),
        ("proxy_dirichlet", "proxy", "clean"),
        ("dlf", "factors", "clean"),
    ],
)
def test_two_processes_are_one_with_images_without_labels(pair: Pair, form: str, loss: str, perturb: str):
    """In a batch of five, the first process has two labelled rows, the second has one or none."""
    for share in (0.4, 0.7):
        check(pair, form, loss, perturb, SHORT.replace(unlabelled=share))


def without(group: Group, method: str, *arguments: Any) -> tuple[State, list[dict]]:
    """A training in which one kind of communication between processes is disabled."""
    deaf = {"_normalise": lambda self, norm, x: type(norm).forward(norm, x), "sum_gradients": lambda *_: None}
    kept = getattr(Group, method)
    setattr(Group, method, deaf[method])
    try:
        return trained(group, *arguments)
    finally:
        setattr(Group, method, kept)


@pytest.mark.parametrize("form", ["batch_ensemble", "member_norm"])
@pytest.mark.parametrize("method", ["_normalise", "sum_gradients"])
def test_the_comparison_notices_processes_that_keep_statistics_or_gradients_to_themselves(pair, form, method):
    arguments = (form, "one_to_one", "ods")
    state, _ = trained(Group(), *arguments)
    states = [state for state, _ in pair.run(without, method, *arguments)]
    assert min(distance(state, each) for each in states) > 1e-6


def test_a_batch_with_fewer_images_than_processes_is_done_by_each(pair: Pair):
    group = Group(rank=1, size=3, total=2)
    assert not group.shares
    assert group.weight == pytest.approx(1 / 3)
    check(pair, "batch_ensemble", "one_to_one", "ods", PLAN.replace(batch=2))


def test_two_processes_are_one_with_another_optimiser_and_short_gradients(pair: Pair):
    adam = AdamW(
        eps=1e-3
    )  # a bias before a BatchNorm has gradients of rounding alone, over which Adam divides
    check(pair, "hydra", "one_to_one", "ods", PLAN.replace(optimizer=adam, clip=0.1))


class ActivatedNorm(nn.BatchNorm2d):
    """A BatchNorm with an activation inside, as timm has them."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def test_a_norm_that_does_more_than_normalise_is_refused_not_replaced():
    model = nn.Sequential(nn.BatchNorm2d(2), ActivatedNorm(2))
    with (
        pytest.raises(SettingError, match="ActivatedNorm is not a plain BatchNorm"),
        Group(size=2).training(model),
    ):
        pass
    assert "forward" not in vars(model[0])
    with Group().training(model):
        assert "forward" not in vars(model[0])


# Resume


class StopsAfterOne(Stage):
    """A stage that fails after its first save."""

    def save(self, state: dict[str, Any]) -> None:
        super().save(state)
        raise InterruptedError


def continued(group: Group, folder: Path, stop: bool) -> State | None:
    """A training with a checkpoint, stopped after its first epoch or not."""
    student = FORMS["member_norm"]().double()
    stage = (StopsAfterOne if stop else Stage)(folder, {})
    loss = loss_of(student, "one_to_one", "ods+mixup")
    try:
        fit(student, loss, TRAIN, VALID, PLAN, seeded(7 if stop else 99), group=group, checkpoint=stage)
    except (InterruptedError, GroupError):
        return None
    return student.state_dict()


def test_a_training_begun_by_two_goes_on_with_one_and_back(pair: Pair, tmp_path: Path):
    state, _ = trained(Group(), "member_norm", "one_to_one", "ods+mixup")
    pair.run(continued, tmp_path / "two", True)
    other = continued(Group(), tmp_path / "two", False)
    assert distance(state, other) < 1e-10
    continued(Group(), tmp_path / "one", True)
    for other in pair.run(continued, tmp_path / "one", False):
        assert distance(state, other) < 1e-10


# What goes wrong


class Fails:
    """A loss that is not a number at the third step, in the second process only."""

    def __init__(self, rank: int) -> None:
        self.rank, self.step = rank, 0

    def __call__(self, model, x, y, rng):
        self.step += 1
        parts = CrossEntropy()(model, x, y, rng)
        return parts | {"loss": parts["loss"] * math.nan} if (self.rank, self.step) == (1, 3) else parts


def diverging(group: Group) -> None:
    fit(FORMS["single"](), Fails(group.rank), TRAIN, VALID, PLAN, seeded(), group=group)


def test_all_processes_end_when_the_loss_of_one_is_not_a_number(pair: Pair):
    for _, error in pair.ask(diverging):
        assert error.startswith("DivergedError: the loss is nan at step 3 of 4 in epoch 1")


class Blind(Single):
    """A network that cannot be validated."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else super().forward(x) / 0


def failing_first(group: Group) -> None:
    fit(
        Blind(nn.Sequential(nn.Flatten(), nn.Linear(25, 3))),
        CrossEntropy(),
        TRAIN,
        VALID,
        PLAN,
        seeded(),
        group=group,
    )


def test_what_fails_in_the_first_process_fails_in_all(pair: Pair):
    (_, first), (_, second) = pair.ask(failing_first)
    assert first.startswith("DivergedError: the validation outputs are not finite")
    assert second == first  # a caller such as the search for a step size may go on after it, in every process


def parting(group: Group) -> None:
    def loss(model, x, y, rng):
        torch.rand(len(x), generator=rng)  # for its own rows, of which the processes have different numbers
        return CrossEntropy()(model, x, y, rng)

    fit(FORMS["single"](), loss, TRAIN, VALID, PLAN, seeded(), group=group)


def test_draws_that_part_are_noticed(pair: Pair):
    for _, error in pair.ask(parting):
        assert error.startswith("GroupError: the processes have drawn different numbers")


def dying(group: Group) -> None:
    def loss(model, x, y, rng):
        if group.rank == 1:
            os._exit(9)
        return CrossEntropy()(model, x, y, rng)

    fit(FORMS["single"](), loss, TRAIN, VALID, PLAN, seeded(), group=group)


def test_a_process_that_is_killed_ends_the_other(pair: Pair):
    (_, error), killed = pair.ask(dying)
    pair.stop()
    assert killed == (None, "ended")
    assert error.startswith("GoneError: another process of this training ended, or did not answer")


# Rows


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("total", [1, 2, 7, 8, 64])
@pytest.mark.parametrize("times", [1, 3])
def test_the_rows_of_all_processes_are_the_batch(size: int, total: int, times: int):
    batch = torch.arange(2 * total * times).view(2, -1)
    groups = [Group(rank, size, total) for rank in range(size)]
    parts = [group.own(batch, dim=1) for group in groups]
    assert sum(group.weight for group in groups) == pytest.approx(1)
    if total < size:
        assert all(torch.equal(part, batch) for part in parts)
    else:
        assert torch.equal(torch.cat(parts, dim=1), batch)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_pytorchs_own_synchronised_norm_has_the_same_parameters_and_buffers():
    """It runs only on CUDA; this checks that it shares the norm's parameters and buffers."""
    norm = nn.BatchNorm2d(3)
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(norm)
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        assert getattr(synced, name) is getattr(norm, name)
