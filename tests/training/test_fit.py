from __future__ import annotations

import copy
import math
from fractions import Fraction
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyphony._util.text import SettingError
from polyphony.compute.devices import choose_device
from polyphony.compute.parallel import Group
from polyphony.data import Augmentation, Split, batches
from polyphony.distill import CrossEntropy, Distill
from polyphony.distill.perturb import ODS
from polyphony.ensembles import MIMO, BatchEnsemble, DeepEnsemble, Hydra, LatentBE, Separate, Single
from polyphony.nn import resnet
from polyphony.runs.stage import Stage
from polyphony.training import fit as train
from polyphony.training.fit import Plan, ResumeError, fit, may_be_selected, parameter_groups
from polyphony.training.optimise import SGD, AdamW, Trapezoid
from polyphony.training.tally import DivergedError

PLAIN = Augmentation(pad=0, flip=False)
trapezoid = Trapezoid()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def split(n: int, seed: int) -> Split:
    """Bright stripes on noise: the label is the column."""
    labels = torch.randint(3, (n,), generator=seeded(seed))
    images = torch.randint(128, (n, 1, 5, 5), generator=seeded(seed + 1))
    images[torch.arange(n), 0, :, labels] += 60
    return Split(images.to(torch.uint8), labels)


TRAIN, VALID = split(48, 1), split(30, 3)


def network(seed: int) -> nn.Module:
    """All kinds of state in little: a convolution, BatchNorm, a linear layer with a bias."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = (nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(54, 3))
        return nn.Sequential(*layers)


def student(members: int = 2) -> BatchEnsemble:
    return BatchEnsemble(network(4), members, rng=seeded(5))


def plan(epochs: int, **settings: Any) -> Plan:
    return Plan(epochs=epochs, learning_rate=0.05, **{"batch": 16, "warm_up": 2, **settings})


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# The schedule


@pytest.mark.parametrize(
    ("number", "share"),
    [
        (1, 0.01),  # in the first five epochs, linearly from 0.01 to 1
        (2, 0.2575),
        (3, 0.505),
        (4, 0.7525),
        (5, 1.0),  # until half of all epochs, 1
        (50, 1.0),
        (100, 1.0),
        (101, 0.987625),  # from half to nine tenths, linearly to 0.01
        (120, 0.7525),
        (140, 0.505),
        (160, 0.2575),
        (179, 0.022375),
        (180, 0.01),  # from nine tenths on, 0.01
        (190, 0.01),
        (200, 0.01),
    ],
)
def test_the_schedule_is_the_authors_for_200_epochs_counted_from_one(number, share):
    assert trapezoid(number - 1, 200) == pytest.approx(share, abs=1e-12)


def authors_share(number: int, epochs: int, warm_up: int) -> Fraction:
    """The paper's four sentences, in fractions, for an epoch counted from one; the first that holds."""
    low, high = Fraction(1, 100), Fraction(1)
    half, end = Fraction(epochs, 2), Fraction(9 * epochs, 10)
    if number < warm_up:
        return low + (high - low) * Fraction(number - 1, warm_up - 1)
    if number < half:
        return high
    if number < end:
        return low + (high - low) * (end - number) / (end - half)
    return low


@pytest.mark.parametrize(("epochs", "warm_up"), [(10, 5), (60, 1), (250, 5), (300, 0), (41, 20), (7, 2)])
def test_the_schedule_is_the_four_sentences(epochs, warm_up):
    for epoch in range(epochs):
        expected = float(authors_share(epoch + 1, epochs, warm_up))
        assert trapezoid(epoch, epochs, warm_up) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("epochs", "warm_up", "shares"),
    [
        (1, 0, [1]),  # one epoch alone is not all at the lowest rate
        (1, 5, [0.01]),
        (2, 0, [1, 0.01]),
        (2, 1, [1, 0.01]),
        (2, 2, [0.01, 0.01]),
        (3, 5, [0.01, 0.2575, 0.01]),  # shorter than its warm-up: what falls comes before what rises
        (4, 2, [0.01, 1, 0.38125, 0.01]),
    ],
)
def test_short_trainings(epochs, warm_up, shares):
    assert [trapezoid(epoch, epochs, warm_up) for epoch in range(epochs)] == pytest.approx(shares)


@pytest.mark.parametrize("epochs", [1, 2, 9, 10, 11, 20, 60, 70, 200, 250, 300, 1000])
def test_the_epochs_at_the_lowest_rate_may_be_kept(epochs):
    kept = [epoch + 1 for epoch in range(epochs) if may_be_selected(epoch, epochs)]
    assert kept == list(range(-(-9 * epochs // 10), epochs + 1))  # from nine tenths, rounded up
    assert epochs == 1 or all(trapezoid(number - 1, epochs, 0) == pytest.approx(0.01) for number in kept)


def test_the_log_shows_the_rates_that_were_used():
    rates = []

    def spy(model, x, y, rng):
        return CrossEntropy()(model, x, y, rng)

    step = torch.optim.SGD.step

    def recorded(self, *arguments):
        rates.append([group["lr"] for group in self.param_groups])
        return step(self, *arguments)

    with mock.patch.object(torch.optim.SGD, "step", recorded):
        log = fit(student(), spy, TRAIN, VALID, plan(10, factor_rate=0.25), seeded())
    assert len(rates) == 30
    for number, (base, factor) in enumerate(rates):
        expected = 0.05 * trapezoid(number // 3, 10, 2)
        assert base == pytest.approx(expected)
        assert factor == pytest.approx(0.25 * expected)
        assert log[number // 3]["learning_rate"] == pytest.approx(expected)


# The optimiser


def test_every_parameter_is_in_one_group_and_factors_are_slow_and_undecayed():
    model = student(3)
    groups = parameter_groups(model, Plan(learning_rate=0.4, weight_decay=5e-4))
    grouped = [(parameter, group) for group in groups for parameter in group["params"]]
    assert len(grouped) == len({id(p) for p, _ in grouped}) == len(list(model.parameters()))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    seen = set()
    for parameter, group in grouped:
        factor = names[id(parameter)].rpartition(".")[2] in ("r", "s")
        seen.add(factor)
        assert group["lr"] == pytest.approx(0.2 if factor else 0.4)
        assert group["weight_decay"] == (0.0 if factor else 5e-4)
    assert seen == {True, False}


def test_a_network_without_factors_has_one_group():
    groups = parameter_groups(Single(resnet(8, 3)), Plan())
    assert [len(group["params"]) for group in groups] == [len(list(resnet(8, 3).parameters()))]


class OwnNetwork(DeepEnsemble):
    """Two networks, the second of which is said to be a member's own."""

    def own_parameters(self):
        return self.networks[1].parameters()


def test_what_an_ensemble_calls_its_members_own_is_fast_and_little_decayed():
    model = OwnNetwork([resnet(8, 3), resnet(8, 3)]).requires_grad_(True)
    shared, own = parameter_groups(model, Plan(learning_rate=0.4, weight_decay=5e-4))
    for group, network in ((shared, model.networks[0]), (own, model.networks[1])):
        assert [id(each) for each in group["params"]] == [id(each) for each in network.parameters()]
    assert (shared["lr"], shared["weight_decay"]) == (0.4, 5e-4)
    assert (own["lr"], own["weight_decay"]) == (0.8, 2.5e-4)


@pytest.mark.parametrize(("optimizer", "rate"), [(SGD(), 2), (AdamW(), 1)])
def test_optimisers_that_ignore_the_scale_of_gradients_learn_alone_at_the_base_rate(optimizer, rate):
    settings = Plan(learning_rate=0.4, weight_decay=1e-3, optimizer=optimizer)
    (own,) = parameter_groups(Separate([resnet(8, 3), resnet(8, 3)]), settings)
    assert (own["lr"], own["weight_decay"]) == (0.4 * rate, 1e-3 / rate)
    _, latent = parameter_groups(LatentBE(resnet(8, 3), 2), settings)  # its rate is set, whatever optimises
    assert (latent["lr"], latent["weight_decay"]) == (0.8, 5e-4)


class Small(nn.Module):
    """Two layers without BatchNorm, so that a step by hand is exact."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(25, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.flatten(1)).tanh())


def test_training_is_momentum_with_coupled_weight_decay_by_hand():
    """v ← 0.9 v + (g + λ w), w ← w − η v; factors with η/2 and without λ; no Nesterov."""
    model = BatchEnsemble(Small(), 2, rng=seeded())
    weights = {name: p.detach().double() for name, p in model.named_parameters()}
    start = copy.deepcopy(model)
    settings = plan(3, weight_decay=0.1, augment=PLAIN)
    fit(model, CrossEntropy(), TRAIN, VALID, settings, seeded(6))

    velocity = {name: torch.zeros_like(value) for name, value in weights.items()}
    rng, reference = seeded(6), start.double()
    for epoch in range(3):
        for x, y in batches(TRAIN, 16, PLAIN, rng):
            leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
            pixels = x.double().expand(2, *x.shape)
            logits = torch.func.functional_call(reference, leaves, (pixels,))
            F.cross_entropy(logits.flatten(0, 1), y.repeat(2)).backward()
            for name, leaf in leaves.items():
                factor = name.endswith((".r", ".s"))
                decayed = leaf.grad + (0 if factor else 0.1) * weights[name]
                velocity[name] = 0.9 * velocity[name] + decayed
                rate = 0.05 * trapezoid(epoch, 3, 2) * (0.5 if factor else 1)
                weights[name] = weights[name] - rate * velocity[name]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), weights[name], rtol=1e-4, atol=1e-6)


# The weights that are kept


class Snapshots:
    """A watch that keeps the weights of every epoch."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.weights, self.steps = model, [], []

    def step(self, done: int, steps: int, row: dict[str, float]) -> None:
        self.steps.append((done, steps))

    def epoch(self, row: dict[str, float]) -> None:
        self.weights.append(copy.deepcopy(self.model.state_dict()))


@pytest.mark.parametrize(
    ("last_three", "kept"),
    [((0.5, 0.7, 0.6), 28), ((0.7, 0.6, 0.5), 27), ((0.5, 0.6, 0.7), 29), ((0.5, 0.6, 0.6), 28)],
    ids=["middle", "first", "last", "tie: the earlier"],
)
def test_the_best_weights_from_nine_tenths_on_are_kept(last_three, kept):
    accuracies = [0.99] * 26 + [0.4, *last_three]  # better before, but too early
    scripted = mock.Mock(side_effect=[{"valid_acc": acc, "valid_nll": 1.0} for acc in accuracies])
    model = Single(Small())
    watch = Snapshots(model)
    with mock.patch.object(train, "validate", scripted):
        fit(model, CrossEntropy(), TRAIN, VALID, plan(30), seeded(), watch=watch)
    assert same(model.state_dict(), watch.weights[kept])
    assert not any(same(watch.weights[kept], w) for i, w in enumerate(watch.weights) if i != kept)


def test_the_log_says_what_the_model_does_on_validation():
    model = student()
    log = fit(model, CrossEntropy(), TRAIN, VALID, plan(1), seeded())
    with torch.no_grad():
        logits = model.eval()((VALID.images.float() / 255).expand(2, -1, -1, -1, -1))
    mean = logits.double().softmax(-1).mean(0)
    nll = -mean[torch.arange(30), VALID.labels].log().mean()
    assert log[0]["valid_nll"] == pytest.approx(float(nll), rel=1e-5)
    assert log[0]["valid_acc"] == pytest.approx(float((mean.argmax(-1) == VALID.labels).double().mean()))


def test_training_learns():
    log = fit(student(), CrossEntropy(), TRAIN, VALID, plan(20, augment=PLAIN), seeded())
    assert log[-1]["loss"] < 0.5 * log[0]["loss"]
    assert log[-1]["valid_acc"] > 0.8


# Resume


def distill() -> Distill:
    return Distill(DeepEnsemble([network(10), network(11)]), perturb=ODS(0.1))


class Stopped(Exception):  # noqa: N818 (not an error)
    """The power went out."""


class StopsAfter:
    """A stage that saves some epochs and then, before or after the next save, dies."""

    def __init__(self, stage: Stage, epochs: int, *, before: bool) -> None:
        self.stage, self.epochs, self.before = stage, epochs, before

    def load(self) -> dict[str, Any] | None:
        return self.stage.load()

    def save(self, state: dict[str, Any]) -> None:
        self.epochs -= 1
        if self.epochs < 0 and self.before:
            raise Stopped
        self.stage.save(state)
        if self.epochs < 0:
            raise Stopped


@pytest.mark.parametrize(
    ("loss", "stops", "before"),
    [
        (CrossEntropy, (0,), False),
        (CrossEntropy, (1, 0, 3), True),
        (distill, (0,), True),
        (distill, (1, 0, 3), False),
    ],
    ids=["labels, at once", "labels, thrice", "teachers, at once", "teachers, thrice"],
)
def test_a_run_that_is_stopped_and_goes_on_ends_with_the_same_bits(tmp_path, loss, stops, before):
    whole = student()
    log = fit(whole, loss(), TRAIN, VALID, plan(12, weight_decay=1e-3), seeded(7))

    stage = Stage(tmp_path / "run", {})
    for number, epochs in enumerate(stops):
        interrupted, rng = student(), seeded(100 + number if stage.load() else 7)
        with pytest.raises(Stopped):
            fit(
                interrupted, loss(), TRAIN, VALID, plan(12, weight_decay=1e-3), rng,
                checkpoint=StopsAfter(stage, epochs, before=before),
            )  # fmt: skip
    resumed, rng = student(), seeded(7 if stage.load() is None else 99)  # a state brings its own generator
    again = fit(resumed, loss(), TRAIN, VALID, plan(12, weight_decay=1e-3), rng, checkpoint=stage)

    assert same(whole.state_dict(), resumed.state_dict())
    for row, other in zip(log, again, strict=True):
        measured = ("seconds", "images_per_second")
        assert {k: v for k, v in row.items() if k not in measured} == {
            k: v for k, v in other.items() if k not in measured
        }


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"weight_decay": 0.1}, "another weight decay or momentum"),
        ({"momentum": 0.5}, "or momentum"),
        ({"epochs": 1}, "it has epochs = 4, the plan has 1"),
        ({"epochs": 2}, "it has epochs = 4, the plan has 2"),  # it has just two
        ({"epochs": 8}, "it has epochs = 4, the plan has 8"),
        ({"batch": 8}, "it has batch = 16, the plan has 8"),
        ({"warm_up": 0}, "it has warm_up = 2, the plan has 0"),
    ],
)
def test_a_state_of_a_plan_with_other_settings_is_refused(tmp_path, settings, fault):
    stage = Stage(tmp_path / "run", {})
    with pytest.raises(Stopped):
        fit(
            student(), CrossEntropy(), TRAIN, VALID, plan(4), seeded(7),
            checkpoint=StopsAfter(stage, 2, before=True),
        )  # fmt: skip
    other = plan(**{"epochs": 4, **settings})
    with pytest.raises(ResumeError, match=fault):
        fit(student(), CrossEntropy(), TRAIN, VALID, other, seeded(7), checkpoint=stage)


class Warming(torch.optim.SGD):
    """Raises its momentum at every step."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["momentum"] = min(0.9, group["momentum"] + 0.1)
        return super().step(closure)


def test_an_optimiser_may_change_its_momentum_while_it_trains(tmp_path):
    def warming(groups, momentum):
        return Warming(groups, momentum=0.0)

    whole, stage = student(), Stage(tmp_path / "run", {})
    fit(whole, CrossEntropy(), TRAIN, VALID, plan(4, optimizer=warming), seeded(7))
    with pytest.raises(Stopped):
        fit(
            student(), CrossEntropy(), TRAIN, VALID, plan(4, optimizer=warming), seeded(7),
            checkpoint=StopsAfter(stage, 2, before=False),
        )  # fmt: skip
    resumed = student()
    fit(resumed, CrossEntropy(), TRAIN, VALID, plan(4, optimizer=warming), seeded(7), checkpoint=stage)
    assert same(whole.state_dict(), resumed.state_dict())


def test_frozen_weights_are_refused():
    frozen = network(0)
    DeepEnsemble([frozen])
    with pytest.raises(SettingError, match="all weights are frozen, as those of a DeepEnsemble"):
        fit(Single(frozen), CrossEntropy(), TRAIN, VALID, plan(1), seeded())


def test_a_network_that_draws_by_itself_goes_on_with_the_same_bits_too(tmp_path):
    def dropping() -> Single:
        torch.manual_seed(0)
        return Single(
            nn.Sequential(nn.Flatten(), nn.Linear(TRAIN.images[0].numel(), 8), nn.Dropout(), nn.Linear(8, 3))
        )

    whole, stopped, resumed = dropping(), dropping(), dropping()
    fit(whole, CrossEntropy(), TRAIN, VALID, plan(4), seeded(7))
    before = torch.random.get_rng_state()
    stage = Stage(tmp_path / "run", {})
    with pytest.raises(Stopped):
        fit(
            stopped,
            CrossEntropy(),
            TRAIN,
            VALID,
            plan(4),
            seeded(7),
            checkpoint=StopsAfter(stage, 1, before=False),
        )
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(99)
    fit(resumed, CrossEntropy(), TRAIN, VALID, plan(4), seeded(8), checkpoint=stage)
    assert same(whole.state_dict(), resumed.state_dict())


def test_what_a_network_draws_itself_differs_between_processes_and_repeats_in_each():
    """Processes have different rows of a batch: the same dropout for all would tie rows together."""

    def dropped(rank: int) -> Tensor:
        training = train.Training(student(), plan(1), seeded(7), Group(rank, 2))
        with training.seeded_dropout():
            return F.dropout(torch.ones(100), 0.5)

    first, second = dropped(0), dropped(1)
    assert not torch.equal(first, second)
    assert torch.equal(first, dropped(0))
    assert torch.equal(second, dropped(1))


def test_a_finished_run_is_not_trained_again(tmp_path):
    stage = Stage(tmp_path / "run", {})
    first, second = student(), student()
    fit(first, CrossEntropy(), TRAIN, VALID, plan(3), seeded(), checkpoint=stage)
    loss = mock.Mock(side_effect=AssertionError)
    fit(second, loss, TRAIN, VALID, plan(3), seeded(), checkpoint=stage)
    assert same(first.state_dict(), second.state_dict())


def test_equal_generators_give_equal_runs_and_the_global_one_plays_no_part():
    runs = []
    for seed in (7, 7, 8):
        torch.manual_seed(len(runs))
        runs.append(student())
        fit(runs[-1], distill(), TRAIN, VALID, plan(2), seeded(seed))
    assert same(runs[0].state_dict(), runs[1].state_dict())
    assert not same(runs[0].state_dict(), runs[2].state_dict())


# What goes wrong


class Fails:
    """Cross-entropy that is not a number at one step, or makes the weights infinite at it."""

    def __init__(self, step: int, factor: float = float("nan")) -> None:
        self.left, self.factor = step, factor

    def __call__(self, model, x, y, rng):
        self.left -= 1
        parts = CrossEntropy()(model, x, y, rng)
        return parts | {"loss": parts["loss"] * self.factor} if self.left == 0 else parts


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (1, "nan at step 1 of 24 in epoch 1; there is no good checkpoint yet"),
        (13, "nan at step 13 of 24 in epoch 1; there is no good checkpoint yet"),
        (24, "nan at step 24 of 24 in epoch 1; there is no good checkpoint yet"),
        (24 + 13, "nan at step 13 of 24 in epoch 2; the last good checkpoint is that of epoch 1"),
        (2 * 24 + 10, "nan at step 10 of 24 in epoch 3; the last good checkpoint is that of epoch 2"),
    ],
)
def test_a_loss_that_is_not_a_number_names_the_step_and_the_last_good_checkpoint(tmp_path, step, message):
    stage = Stage(tmp_path / "run", {})
    settings = Plan(epochs=3, batch=2, learning_rate=0.01, warm_up=0)
    with pytest.raises(DivergedError, match=message) as caught:
        fit(student(), Fails(step), TRAIN, VALID, settings, seeded(), checkpoint=stage)
    assert "\n" not in str(caught.value)
    state = stage.load()
    assert len(state["log"] if state else []) == (step - 1) // 24
    assert state is None or all(v.isfinite().all() for v in state["model"].values())


def test_weights_that_blow_up_at_the_last_step_of_an_epoch_are_refused_too(tmp_path):
    stage = Stage(tmp_path / "run", {})
    with pytest.raises(DivergedError, match=r"epoch 2.*checkpoint is that of epoch 1"):
        fit(student(), Fails(6, 1e38), TRAIN, VALID, plan(3, warm_up=0), seeded(), checkpoint=stage)
    assert len(stage.load()["log"]) == 1


def test_a_watch_hears_of_the_last_step_of_every_epoch():
    model = student()
    watch = Snapshots(model)
    fit(
        model,
        CrossEntropy(),
        TRAIN,
        VALID,
        Plan(epochs=2, batch=2, learning_rate=0.01),
        seeded(),
        watch=watch,
    )
    assert watch.steps == 2 * [(10, 24), (20, 24), (24, 24)]


class Rows:
    """A loss that notes how many rows it was given, and says a number of its own for each step."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, model, x, y, rng):
        self.rows.append(len(x))
        parts = CrossEntropy()(model, x, y, rng)
        return parts | {"step": torch.tensor(float(len(self.rows)))}


def test_an_incomplete_last_batch_is_trained_on_and_means_are_over_images():
    loss, watch = Rows(), Snapshots(Single(Small()))
    log = fit(watch.model, loss, TRAIN, VALID, plan(1, batch=20), seeded(), watch=watch)
    assert loss.rows == [20, 20, 8]
    assert watch.steps == [(3, 3)]
    assert log[0]["step"] == pytest.approx((20 * 1 + 20 * 2 + 8 * 3) / 48)


@pytest.mark.parametrize(("images", "rows"), [(33, [16, 16]), (34, [16, 16, 2]), (16, [16])])
@pytest.mark.parametrize(
    "build",
    [
        lambda network: Single(network),
        lambda network: BatchEnsemble(network, 3, rng=seeded(), member_norm=True),
        lambda network: MIMO(resnet(8, 9, 3, 4, rng=seeded()), 3, batch_repetition=2, input_repetition=0.5),
        lambda network: Hydra(network, 3, rng=seeded()),
    ],
    ids=["single", "member norm", "mimo", "hydra"],
)
def test_a_last_batch_that_can_be_normalised_is_used(build, images, rows):
    """On 4×4 pixels the last BatchNorm sees one pixel an image, so that one row has no variance."""
    model = build(resnet(8, 3, 1, 4, rng=seeded()))
    small = Split(split(images, 5).images[..., :4, :4], split(images, 5).labels)
    loss = Rows()
    log = fit(model, loss, small, small, plan(1), seeded())
    assert loss.rows == rows
    assert math.isfinite(log[0]["loss"])
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_devices():
    assert choose_device("cpu") == "cpu"
    assert choose_device() in ("cpu", "cuda", "mps")
    with pytest.raises(ValueError, match="no device 'gpu'"):
        choose_device("gpu")
