"""Everything that trains, predicts or measures does so on another device, and gives what the CPU gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import device
from cases import FORMS, cases, loss_of, seeded, split, teachers, without_labels
from polyphony import analysis
from polyphony.data import Splits, batches, pixels
from polyphony.distill import CrossEntropy, match_step_size
from polyphony.distill.perturb import ODS, Gaussian
from polyphony.ensembles import Ensemble
from polyphony.nn.rank_one import set_way
from polyphony.runs.stage import Stage
from polyphony.training import fit as train
from polyphony.training.fit import READ_EVERY, Plan, fit
from polyphony.training.optimise import AdamW
from polyphony.training.predict import predict

TRAIN, VALID, WITHOUT = split(22, 1), split(12, 3), without_labels(split(9, 5))
PLAN = Plan(epochs=2, batch=8, learning_rate=0.05, warm_up=1, way="activations")  # as on real devices
DEVICES = ("sim", "cpu")


def made(form: str) -> Ensemble:
    """A student that computes on the CPU as it does elsewhere."""
    student = FORMS[form]()
    set_way(student, "activations")
    return student


def on_cpu(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in model.state_dict().items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def gradients(form: str, loss: str, perturb: str, device: str) -> dict[str, Tensor]:
    """One step's gradients, all that the loss reports, and the buffers after it."""
    student, rng = made(form).to(device).train(), seeded(7)
    x, y = next(batches(TRAIN, 6, PLAN.augment, rng, device))
    parts = loss_of(student, loss, perturb)(student, x, y, rng)
    parts["loss"].backward()
    found = {name: p.grad.cpu() for name, p in student.named_parameters() if p.grad is not None}
    found |= {f"part {name}": value.detach().cpu() for name, value in parts.items()}
    return found | {name: value.cpu() for name, value in student.named_buffers()}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_loss_and_perturbation_is_the_same_on_a_device(form: str):
    for loss, perturb in cases(form):
        there, here = (gradients(form, loss, perturb, name) for name in DEVICES)
        assert equal(there, here), (loss, perturb)


def trained(student: Ensemble, device: str, plan: Plan = PLAN, **settings: Any) -> list[dict[str, float]]:
    loss, train = loss_of(student.to(device), "one_to_one", "confods"), TRAIN
    if plan.unlabelled:
        loss, train = replace(loss, unlabelled=True), TRAIN.joined(WITHOUT)
    log = fit(student, loss, train, VALID, plan, seeded(7), device=device, **settings)
    timed = ("seconds", "images_per_second")
    return [{name: value for name, value in row.items() if name not in timed} for row in log]


@pytest.mark.parametrize(
    ("form", "plan"),
    [
        ("member_norm", PLAN),
        ("mimo", PLAN.replace(optimizer=AdamW(), clip=0.1)),
        ("mimo", PLAN.replace(unlabelled=0.5)),
    ],
)
def test_a_training_ends_with_the_same_weights_and_log(form: str, plan: Plan):
    there, here = made(form), made(form)
    assert trained(there, "sim", plan) == trained(here, "cpu", plan)
    assert equal(on_cpu(there), on_cpu(here))


class Stopped(Exception):  # noqa: N818 (not an error)
    """The power went out."""


class StopsAfterOne(Stage):
    """A stage after whose first save the power goes out."""

    def save(self, state):
        super().save(state)
        raise Stopped


@pytest.mark.parametrize("unlabelled", [0.0, 0.5])
@pytest.mark.parametrize(("first", "second"), [("sim", "cpu"), ("cpu", "sim")])
def test_a_training_begun_on_one_device_goes_on_on_another(
    tmp_path, first: str, second: str, unlabelled: float
):
    whole, begun, resumed = (made("batch_ensemble") for _ in range(3))
    plan = PLAN.replace(unlabelled=unlabelled)
    log = trained(whole, "cpu", plan)
    with pytest.raises(Stopped):
        trained(begun, first, plan, checkpoint=StopsAfterOne(tmp_path, {}))
    assert trained(resumed, second, plan, checkpoint=Stage(tmp_path, {})) == log
    assert equal(on_cpu(whole), on_cpu(resumed))


def test_a_split_may_be_on_the_device():
    there = replace(TRAIN, images=TRAIN.images.to("sim"), labels=TRAIN.labels.to("sim"))
    assert torch.equal(there.some(5).images.cpu(), TRAIN.some(5).images)
    assert there.statistics == TRAIN.statistics
    assert there.fingerprint == TRAIN.fingerprint
    for (x, y), (ours, labels) in zip(
        batches(there, 8, PLAN.augment, seeded(), "sim"),
        batches(TRAIN, 8, PLAN.augment, seeded()),
        strict=True,
    ):
        assert torch.equal(x.cpu(), ours)
        assert torch.equal(y.cpu(), labels)
    assert torch.equal(predict(teachers(device="sim"), there).logits, predict(teachers(), TRAIN).logits)


def test_predictions_and_a_matched_step_are_the_same():
    splits = Splits("stripes", ("a", "b", "c"), TRAIN, VALID, VALID)
    found = [match_step_size(ODS, teachers(device=name), splits, 2.0, seeded()) for name in DEVICES]
    assert found[0] == found[1]
    there, here = (predict(made("dirichlet").to(name), VALID).logits for name in DEVICES)
    assert there.device.type == "cpu"
    assert torch.equal(there, here)


def test_analyses_are_the_same():
    for student in (made("batch_ensemble"), made("mimo")):
        there, here = [], []
        for name, found in zip(DEVICES, (there, here), strict=True):
            given, student = teachers(device=name), student.to(name)
            x, y = pixels(TRAIN.images[:4].to(name)), TRAIN.labels[:4].to(name)
            found.append(analysis.jacobian_cosines(given, student, TRAIN))
            found.append(analysis.gradient_snr(student, given, x, y, Gaussian(0.1), 4.0, seeded(), 3))
            views = analysis.member_views(given, {"s": student}, VALID, ODS(0.1), 4.0, seeded())
            found.append(views["students.s"])
            found.append(
                analysis.external_predictions(given, teachers(7, name), VALID, 0.1, 4.0, seeded()).logits
            )
        for one, other in zip(there, here, strict=True):
            assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


# What the host waits for, and what it sends


class Counted:
    """A loss that keeps what passed between host and device since it was called last: a whole step."""

    def __init__(self, loss) -> None:
        self.loss, self.steps = loss, []

    def __call__(self, *arguments):
        self.steps.append(device.reset())
        return self.loss(*arguments)


@pytest.mark.parametrize(
    ("form", "perturb", "draws"),
    [
        ("batch_ensemble", "confods", [(8, 3)]),  # the guide
        ("branch", "ods", [(8, 3)]),
        ("hydra", "gaussian", [(8, 1, 5, 5)]),
        ("latent_be", "ods+mixup", [(8, 3), (8,)]),
        ("frozen", "ods", [(8, 3)]),
        ("separate", "ods", [(8, 3)]),
        ("single", "adversarial", []),
        ("batch_ensemble", "diversify", []),
        ("mimo", "confods", [(2, 16), (8, 3)]),  # which example each member sees, and the guide
        ("dirichlet", "ods", [(8, 3)]),
        ("dlf", "ods", [(8, 3)]),
        ("proxy_dirichlet", "clean", []),
    ],
)
@pytest.mark.parametrize("unlabelled", [0.0, 0.5])
def test_a_step_waits_for_nothing_and_sends_the_batch_and_its_draws_alone(form, perturb, draws, unlabelled):
    student = made(form).to("sim")
    student(torch.rand(student.members, 4, 1, 5, 5).to("sim"))  # the first images of a size are looked at
    loss = {"single": "mean", "dirichlet": "distribution", "proxy_dirichlet": "proxy", "dlf": "factors"}.get(
        form, "one_to_one"
    )
    counted = Counted(replace(loss_of(student, loss, perturb), unlabelled=unlabelled > 0))
    images = split(round(8 * (1 - unlabelled)) * (READ_EVERY + 4), 1).joined(without_labels(split(9, 5)))
    images = images if unlabelled else split(8 * (READ_EVERY + 4), 1)
    plan = PLAN.replace(epochs=1, unlabelled=unlabelled)
    fit(student, counted, images, VALID, plan, seeded(), device="sim")
    _, *steps = counted.steps
    assert len(steps) == READ_EVERY + 3
    for number, step in enumerate(steps, start=1):
        assert step.blocking == []
        assert step.waits == (["to cpu"] if number == READ_EVERY else [])
        assert step.sent == [
            *draws,
            (8, 1, 5, 5),
            (8,),
            (3, 8),
        ]  # then images, labels, augmentation of the next


# One sentence


def test_teachers_left_on_the_cpu_are_named():
    for perturb in ("clean", "confods", "diversify"):
        student = made("batch_ensemble")
        loss = loss_of(student, "one_to_one", perturb)
        with pytest.raises(ValueError, match=r"images are on sim:0, the network on cpu: move it by .to"):
            fit(student, loss, TRAIN, VALID, PLAN, seeded(), device="sim")


def test_a_generator_is_on_the_cpu():
    class Elsewhere:
        device = torch.device("cuda")

    with pytest.raises(ValueError, match="the generator must be on the CPU"):
        fit(made("single"), CrossEntropy(), TRAIN, VALID, PLAN, Elsewhere())


# How exactly a device counts


def switches() -> tuple[bool, ...]:
    backends = torch.backends
    return backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32, backends.cudnn.benchmark


def test_a_training_sets_pytorchs_switches_as_its_plan_says_and_back(monkeypatch):
    """TF32 in matrix products and in convolutions, cuDNN's search for the fastest kernel, determinism.

    Validation is always exact.
    """
    before = *switches(), torch.are_deterministic_algorithms_enabled()
    real = train.validate
    for settings, expected in (
        ({}, (False, False, True, False)),
        ({"precision": "tf32"}, (True, True, True, False)),
        ({"deterministic": True}, (False, False, False, True)),
    ):
        seen, validating = [], []

        def loss(model, x, y, rng, seen=seen):
            seen.append((*switches(), torch.are_deterministic_algorithms_enabled()))
            return CrossEntropy()(model, x, y, rng)

        def validate(*details, seen=validating):
            seen.append((*switches(), torch.are_deterministic_algorithms_enabled()))
            return real(*details)

        monkeypatch.setattr("polyphony.training.fit.validate", validate)
        fit(made("single"), loss, TRAIN, VALID, PLAN.replace(epochs=1, **settings), seeded())
        assert set(seen) == {expected}
        assert validating == [(False, False, *expected[2:])]
    assert (*switches(), torch.are_deterministic_algorithms_enabled()) == before


def test_a_float16_training_scales_its_loss_learns_and_resumes(tmp_path):
    """Gradients of 1e-8 vanish in float16; scaled they arrive. A resumed training has the same scale."""
    plan = PLAN.replace(precision=torch.float16, epochs=3)
    whole, begun, resumed = (made("hydra") for _ in range(3))
    log = trained(whole, "cpu", plan)
    assert log[-1]["loss"] < log[0]["loss"]
    with pytest.raises(Stopped):
        trained(begun, "cpu", plan, checkpoint=StopsAfterOne(tmp_path, {}))
    assert Stage(tmp_path, {}).load()["scaler"]["scale"] > 1
    assert trained(resumed, "cpu", plan, checkpoint=Stage(tmp_path, {})) == log
    assert equal(on_cpu(whole), on_cpu(resumed))


# The device itself


def test_the_device_refuses_other_tensors_and_counts():
    x = torch.arange(4.0).to("sim")
    for mixed in (
        lambda: x + torch.ones(4),
        lambda: x[torch.arange(2)],
        lambda: torch.cat([x, torch.ones(1)]),
    ):
        with pytest.raises(RuntimeError, match="got tensors on sim and on cpu"):
            mixed()
    device.reset()
    assert float(x.sum()) == 6
    assert x[x > 1].cpu().tolist() == [2, 3]
    torch.ones(2).to("sim")
    torch.ones(3).to("sim", non_blocking=True)
    found = device.reset()
    assert found.waits == ["aten::_local_scalar_dense", "aten::index", "to cpu"]
    assert (found.blocking, found.sent) == ([(2,)], [(3,)])
