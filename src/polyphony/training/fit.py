"""fit: the training loop. Teachers and students of every kind differ only in their loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import BeforeValidator
from torch import Tensor

from polyphony import metrics
from polyphony._util.settings import Count, NotNegative, Positive, Share
from polyphony._util.text import SettingError, UserError, first_line
from polyphony.compute.devices import arithmetic
from polyphony.compute.parallel import Group
from polyphony.data import Augmentation, Split, batches, epoch_steps
from polyphony.ensembles import Ensemble
from polyphony.nn import factors
from polyphony.nn.rank_one import Way, set_way
from polyphony.training import collapse
from polyphony.training.collapse import Row
from polyphony.training.graphs import Compiled
from polyphony.training.optimise import Schedule
from polyphony.training.predict import predict
from polyphony.training.tally import DivergedError, Tally, advice

Loss = Callable[[Ensemble, Tensor, Tensor, torch.Generator], dict[str, Tensor]]

Precision = Annotated[
    Literal["float32", "tf32", "bfloat16", "float16"],
    BeforeValidator(
        lambda value: str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value
    ),
]

SAVED_SETTINGS = ("epochs", "batch", "learning_rate", "warm_up")  # of the plan, compared by a resume
READ_EVERY = 10  # steps between readings of the loss: a reading synchronises the device


class ResumeError(UserError, ValueError):
    """A saved state belongs to another training."""


class Plan(Schedule):
    """All settings of `fit`. The default schedule is that of the paper (B.1); recipes set the numbers."""

    epochs: Count = 200
    batch: Count = 128
    learning_rate: Positive = 0.1
    weight_decay: NotNegative = 5e-4
    factor_rate: NotNegative = 0.5
    """Learning rate of rank-one factors, relative to the learning rate."""
    augment: Augmentation = Augmentation()
    """Random changes of training images."""
    precision: Precision = "float32"
    """Precision of autocast; float16 scales the loss and synchronises at each step."""
    deterministic: bool = False
    """Use only deterministic kernels."""
    way: Way = "auto"
    """What rank-one layers scale: weights or activations."""
    compile: bool = False
    """Compile the loss and its networks with `torch.compile`."""
    unlabelled: Share = 0.0
    """Share of unlabelled images (label −1) in a batch."""

    @classmethod
    def of(cls, schedule: Schedule, **others: Any) -> Plan:
        """The plan of a table of a recipe that contains a schedule, such as `student`."""
        return cls(**{name: getattr(schedule, name) for name in Schedule.model_fields}, **others)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of autocast; TF32 has the dtype float32."""
        return torch.float32 if self.precision == "tf32" else getattr(torch, self.precision)

    @property
    def epochs_before_warnings(self) -> int:
        """Epochs that cannot start a warning about equal members: the warm-up, and the first tenth."""
        return max(self.warm_up, math.ceil(self.epochs / 10))


class Checkpoint(Protocol):
    """Saves the state of a training after each epoch."""

    def load(self) -> dict[str, Any] | None:
        """The last saved state, or None."""

    def save(self, state: dict[str, Any]) -> None:
        """Save a state atomically."""


class Watch(Protocol):
    """Receives reports of a training."""

    def step(self, done: int, steps: int, row: Row) -> None:
        """`done` of an epoch's `steps` steps are done; `row` has the means over these steps."""

    def epoch(self, row: Row) -> None:
        """An epoch has ended; `row` is its row of the log."""

    def warn(self, sentence: str) -> None:
        """There is a warning about the training."""


class NoCheckpoint:
    """A checkpoint that saves nothing."""

    def load(self) -> dict[str, Any] | None:
        return None

    def save(self, state: dict[str, Any]) -> None: ...


class Unwatched:
    """A watch that ignores all reports."""

    def step(self, done: int, steps: int, row: Row) -> None: ...

    def epoch(self, row: Row) -> None: ...

    def warn(self, sentence: str) -> None: ...


def fit(
    model: Ensemble,
    loss: Loss,
    train: Split,
    valid: Split,
    plan: Plan,
    rng: torch.Generator,
    *,
    device: torch.device | str = "cpu",
    checkpoint: Checkpoint | None = None,
    watch: Watch | None = None,
    group: Group | None = None,
) -> list[Row]:
    """Train a model. It ends with the weights of its best epoch.

    The best epoch has the highest validation accuracy among the last tenth of the epochs.

    Args:
        model: A teacher (`Single`) or a student, with initial weights.
        loss: Called with the model, pixels `[b c h w]`, labels `[b]` and the generator. It returns means by
            name: `fit` minimises `"loss"` and logs all.
        train: Training images.
        valid: Validation images, which select the best epoch.
        plan: Epochs, batch, learning rate, augmentation.
        rng: Source of shuffles, augmentation and perturbations. Equal generators give equal weights.
        device: Where to train.
        checkpoint: Saves the state after every epoch. A killed training continues from there; on a CPU the
            result is the same, bit for bit.
        watch: Receives reports of steps and epochs.
        group: The processes of one training. Each calls `fit` with the same arguments.

    Returns:
        One dictionary for each epoch: epoch, learning_rate, the means of the loss's terms, images_per_second,
        valid_acc, valid_nll, seconds; with members also valid_member_acc, valid_disagreement and valid_kld.

    Examples:
        >>> data = load("digits", Options(per_class=5, valid=50, test=50))
        >>> model, rng = Single(resnet(8, classes=10, channels=1, width=4)), torch.Generator().manual_seed(0)
        >>> plan = Plan(epochs=2, batch=25, learning_rate=0.05, warm_up=1)
        >>> log = fit(model, CrossEntropy(), data.train, data.valid, plan, rng)
        >>> len(log), "valid_acc" in log[-1]
        (2, True)
    """
    group = group or Group()
    checkpoint = checkpoint if checkpoint and group.rank == 0 else NoCheckpoint()
    watch = watch if watch and group.rank == 0 else Unwatched()
    training = Training(model.to(device), plan, rng, group)
    loss = Compiled(loss, group) if plan.compile else loss
    training.restore(group.from_first(checkpoint.load))
    for epoch in range(len(training.log), plan.epochs):
        training.finish(epoch, train_and_validate(training, loss, train, valid, epoch, watch))
        if model.expects_diversity and collapse.is_new(training.log[plan.epochs_before_warnings :]):
            watch.warn(collapse.warning(training.log[-1]))
        group.from_first(lambda: checkpoint.save(training.state()))
        watch.epoch(training.log[-1])
    model.load_state_dict(training.best)
    return training.log


class Training:
    """Everything that changes while a model trains; `state` and `restore` save and load it."""

    def __init__(self, model: Ensemble, plan: Plan, rng: torch.Generator, group: Group) -> None:
        if not isinstance(model, Ensemble):
            raise SettingError(
                f"fit trains an ensemble, not a {type(model).__name__}: wrap it in Single(network)"
            )
        if rng.device.type != "cpu":
            raise SettingError(
                f"the generator must be on the CPU, for equal draws on every device, not on {rng.device}"
            )
        if halves := {weight.dtype for weight in model.parameters()} & {torch.float16, torch.bfloat16}:
            raise SettingError(
                f"weights are trained in float32, not {halves.pop()}: set the precision of the plan instead"
            )
        if not any(weight.requires_grad for weight in model.parameters()):
            raise SettingError(
                "all weights are frozen, as those of a DeepEnsemble's networks are: train a copy, after"
                " requires_grad_()"
            )
        self.model, self.plan, self.rng, self.group = model, plan, rng, group
        set_way(model, plan.way)
        self.optimiser = plan.optimizer(parameter_groups(model, plan), plan.momentum)
        self.fixed = fixed_settings(self.optimiser)
        self.scaler = torch.amp.GradScaler(model.device.type, enabled=plan.precision == "float16")
        self.best: dict[str, Tensor] = {}
        self.log: list[Row] = []

    def set_rate(self, epoch: int) -> float:
        """Set the learning rate of every parameter group for an epoch, and return the base rate."""
        rate = self.plan.learning_rate * self.plan.schedule(epoch, self.plan.epochs, self.plan.warm_up)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["share"]
        return rate

    def step(self, loss: Tensor) -> None:
        """One step of the optimiser. `loss` is the mean over this process's rows of the batch."""
        self.optimiser.zero_grad(set_to_none=True)
        self.scaler.scale(loss * self.group.weight).backward()
        self.group.sum_gradients(self.model.parameters())
        if self.plan.clip is not None:
            self.scaler.unscale_(self.optimiser)
            self.model.clip_gradients(self.plan.clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()

    @contextmanager
    def seeded_dropout(self) -> Iterator[None]:
        """Seed PyTorch's global generator, which dropout uses, from `rng`, without advancing `rng`."""
        seed = int(torch.randint(2**62, (), generator=self.rng.clone_state()))
        device = self.model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed + self.group.rank)
            yield

    def finish(self, epoch: int, row: Row) -> None:
        """Log an epoch; copy its weights to `best` if it may be selected and is the best so far."""
        epochs = self.plan.epochs
        earlier = [old["valid_acc"] for old in self.log if may_be_selected(int(old["epoch"]), epochs)]
        if may_be_selected(epoch, epochs) and row["valid_acc"] > max(earlier, default=-math.inf):
            self.best = {name: value.cpu().clone() for name, value in self.model.state_dict().items()}
        self.log.append(row)

    def state(self) -> dict[str, Any]:
        """The state, with tensors on the CPU so that any device can continue."""
        return {
            "model": on_cpu(self.model.state_dict()),
            "optimiser": on_cpu(self.optimiser.state_dict()),
            "fixed": self.fixed,
            "plan": {name: getattr(self.plan, name) for name in SAVED_SETTINGS},
            "scaler": self.scaler.state_dict(),
            "rng": self.rng.get_state(),
            "best": self.best,
            "log": self.log,
        }

    def restore(self, state: dict[str, Any] | None) -> None:
        """Continue from a saved state, if there is one; raises a ResumeError if it is of another training."""
        if state is None:
            return
        try:
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.scaler.load_state_dict(state.get("scaler", {}))  # missing in older states
            self.rng.set_state(state["rng"])
            self.best, self.log = dict(state["best"]), list(state["log"])
            self.check_plan(state)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ResumeError(f"the saved state is not of this training ({first_line(error)})") from error

    def check_plan(self, state: dict[str, Any]) -> None:
        """Raise a ValueError if a saved state is of another plan. Older states have less to compare."""
        if state.get("fixed", self.fixed) != self.fixed:
            raise ValueError("it has another weight decay or momentum")
        for name, saved in state.get("plan", {}).items():
            if (planned := getattr(self.plan, name)) != saved:
                raise ValueError(f"it has {name} = {saved}, the plan has {planned}")


def fixed_settings(optimiser: torch.optim.Optimizer) -> list[list[float]]:
    """The weight decay and the momentum with which each parameter group starts."""
    names = ("weight_decay", "momentum")
    return [[group.get(name, 0.0) for name in names] for group in optimiser.param_groups]


def on_cpu(state: Any) -> Any:
    """A state dict with its tensors on the CPU."""
    if isinstance(state, dict):
        return {name: on_cpu(value) for name, value in state.items()}
    return state.cpu() if isinstance(state, Tensor) else state


def train_and_validate(
    training: Training, loss: Loss, train: Split, valid: Split, epoch: int, watch: Watch
) -> Row:
    """Run one epoch, then validate; returns the epoch's row of the log."""
    start, plan, group = time.perf_counter(), training.plan, training.group
    row = {"epoch": epoch, "learning_rate": training.set_rate(epoch)}
    kernels = arithmetic(plan.precision == "tf32", plan.deterministic)
    with group.training(training.model), kernels, training.seeded_dropout():
        row |= run_epoch(training, loss, train, epoch, watch)
    with arithmetic(deterministic=plan.deterministic):
        scores = group.from_first(partial(validate, training.model, valid))
    if scores is None:  # raised by every process, since a caller may go on after it
        raise DivergedError(f"the validation outputs are not finite after epoch {epoch + 1}; {advice(epoch)}")
    return row | scores | {"seconds": time.perf_counter() - start}


def run_epoch(training: Training, loss: Loss, train: Split, epoch: int, watch: Watch) -> Row:
    """Train for one epoch. Returns the means over images of the loss's terms, and images per second."""
    plan, model, tally = training.plan, training.model.train(), Tally(training.group)
    steps, start = epoch_steps(train, plan.batch, plan.unlabelled), time.perf_counter()
    for x, y in batches(train, plan.batch, plan.augment, training.rng, model.device, plan.unlabelled):
        with torch.autocast(x.device.type, plan.dtype, enabled=plan.dtype != torch.float32):
            terms = loss(model, x, y, training.rng)
        training.step(terms["loss"])
        tally.add(terms)
        if tally.steps % READ_EVERY == 0 or tally.steps == steps:
            means = tally.read(epoch, steps)
            means["images_per_second"] = sum(tally.rows) / (time.perf_counter() - start)
            watch.step(tally.steps, steps, {"epoch": epoch, **means})
    training.group.check_draws(training.rng)
    return means


def validate(model: Ensemble, valid: Split) -> Row | None:
    """Validation accuracy and NLL of the members' mean prediction, and how much members differ.

    Returns None if a logit is not finite.
    """
    predictions = predict(model, valid)
    if not bool(predictions.logits.isfinite().all()):
        return None
    log_probs = metrics.ensemble_log_probs(predictions.logits)
    return {
        "valid_acc": metrics.accuracy(log_probs, valid.labels),
        "valid_nll": metrics.nll(log_probs, valid.labels),
        **collapse.spread(model, predictions.logits, predictions.labels),
    }


def may_be_selected(epoch: int, epochs: int) -> bool:
    """Whether an epoch (counted from 0) is in the last tenth, where the paper's learning rate is constant."""
    return 10 * (epoch + 1) >= 9 * epochs


def parameter_groups(model: Ensemble, plan: Plan) -> list[dict[str, Any]]:
    """The optimiser's parameter groups, each with its learning rate and weight decay.

    Rank-one factors have their own rate and no weight decay. Parameters of single members
    (`own_parameters`) have M times the base rate and 1/M of the decay. If M times the rate only makes up for
    gradients of 1/M (`scales_gradients`), an optimiser that ignores the scale of gradients needs neither.
    All others have the base rate and decay.
    """
    scale_free = model.scales_gradients and getattr(plan.optimizer, "scale_free", False)
    times = 1.0 if scale_free else float(model.members)
    own, rank_one = set(model.own_parameters()), set(factors(model))
    shared = set(model.parameters()) - own - rank_one
    groups = [
        {
            "params": [parameter for parameter in model.parameters() if parameter in parameters],
            "share": share,
            "lr": plan.learning_rate * share,
            "weight_decay": decay,
        }
        for parameters, share, decay in (
            (shared, 1.0, plan.weight_decay),
            (rank_one, plan.factor_rate, 0.0),
            (own, times, plan.weight_decay / times),
        )
    ]
    return [group for group in groups if group["params"]]
