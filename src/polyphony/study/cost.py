"""The cost of a study before it starts: operations are counted, and a short measurement gives the time.

A step is counted on PyTorch's meta device, where tensors have shapes and no values; models that need values
are counted on the CPU. Models are built once for all counts. The time of a step is a constant for each call
of an operation plus a constant for each floating-point operation. Both are measured on a few steps of the
student's plain network, in processor time, which does not depend on how busy the machine is.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from polyphony._util.files import memory
from polyphony.data import batch_count, labelled_rows
from polyphony.distill import CrossEntropy
from polyphony.distill.search import search_epochs, search_name
from polyphony.ensembles import DeepEnsemble, Ensemble, Single, evaluating
from polyphony.nn import member_share
from polyphony.nn.counting import FEW, Count, Counting
from polyphony.recipe import RecipeError, Schedule
from polyphony.runs.scores import TEACHERS
from polyphony.study.study import Study
from polyphony.training.fit import Loss
from polyphony.training.predict import BATCH

Item = TypeVar("Item")
Estimate = TypeVar("Estimate")
Name = TypeVar("Name")
MAX_FLOPS = 4e9  # floating-point operations of the larger measured step
REPEATS, ENOUGH_SECONDS = 3, 0.3  # a step is measured 3 times, or until 0.3 seconds have passed


@dataclass(frozen=True)
class Cost:
    """The cost of one training on this machine, with the study's threads."""

    name: str
    runs: int  # how many such trainings the study has
    flops: float  # of all steps
    seconds: float
    memory: int  # bytes, a lower bound: weights, gradients, momentum, activations of a plain network


@dataclass(frozen=True)
class Speed:
    """Seconds for a call of an operation, and for a floating-point operation."""

    call: float
    flop: float

    def seconds(self, count: Count, images: int, batch: int) -> float:
        """Seconds for this number of images, in batches."""
        return batch_count(images, batch) * count.calls * self.call + images * count.flops * self.flop


@dataclass(frozen=True)
class PredictionCost:
    """The cost of predicting one image with PyTorch on this machine."""

    name: str
    parameters: int
    multiply_adds: float
    weights: int  # bytes
    milliseconds: float


class TooLargeError(RecipeError):
    """A step needs more memory than this machine has."""


@dataclass(frozen=True)
class Sketch:
    """A study's untrained models, whose operations are counted. On the meta device they have no values.

    Models with equal tables in the recipe are the same object.
    """

    study: Study  # with one training image, so that building networks is fast
    device: str
    counting: Counting
    networks: list[nn.Module]  # of the teachers, one for each member
    teachers: DeepEnsemble  # the same teachers, folded as in a student's training
    plain: Ensemble  # the students' network without members
    students: dict[str, Ensemble]  # by method
    trained: dict[str, Ensemble]  # the students as they predict
    member_shares: dict[str, float]  # by method: share of a member's weights with factors or of its own

    @property
    def parameter_counts(self) -> dict[str, int]:
        """The number of parameters of all teachers together, and of each method's student as it predicts."""
        teachers = sum(map(parameters, self.networks))
        return {TEACHERS: teachers} | {name: parameters(student) for name, student in self.trained.items()}


def sketch_models(study: Study) -> Sketch:
    """A study's models without values, or with values if the user's network needs them."""
    try:
        return sketch_on("meta", study)
    except Exception:  # the user's code can raise anything
        return sketch_on("cpu", study)


def sketch_on(device: str, study: Study) -> Sketch:
    """A study's models on a device."""
    splits = replace(study.data(), train=study.data().train[:1])
    splits.train.statistics  # noqa: B018 (computes and caches them, outside the device context)
    study, counting = replace(study, splits_override=splits), Counting()
    recipe, table = study.recipe, study.recipe.teachers.network_of

    def folded(j: int) -> nn.Module:
        return DeepEnsemble([study.network(table(j))]).folded().networks[0]

    with torch.device(device), counting:
        networks = build_shared(range(recipe.members), table, lambda j: study.network(table(j)))
        teachers = DeepEnsemble([*build_shared(range(recipe.members), table, folded).values()])
        plain = Single(study.network(recipe.student_network))
        students = build_shared(recipe.methods, recipe.form_table, study.blank_student)
        trained = {name: recipe.form(name).trained(student) for name, student in students.items()}
        shares = {name: share for name, student in students.items() if (share := member_share(student))}
    return Sketch(study, device, counting, [*networks.values()], teachers, plain, students, trained, shares)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def build_shared(
    names: Iterable[Name], table_of: Callable[[Name], object], build: Callable[[Name], Item]
) -> dict[Name, Item]:
    """Build an item for each name; names with equal tables share the item of the first of them."""
    tables = {name: repr(table_of(name)) for name in names}
    firsts = {table: name for name, table in reversed(tables.items())}
    items = {table: build(name) for table, name in firsts.items()}
    return {name: items[table] for name, table in tables.items()}


def costs(study: Study, sketch: Sketch | None = None) -> list[Cost]:
    """The cost of training one teacher, unless they are pretrained, and one student of each method."""
    return with_values_if_needed(estimate_trainings, study, sketch or sketch_models(study))


def prediction_costs(study: Study, sketch: Sketch) -> list[PredictionCost]:
    """The cost of predicting one image: by one teacher, by all teachers, and by each method's student."""
    return with_values_if_needed(estimate_predictions, study, sketch)


def with_values_if_needed(
    estimate: Callable[[Study, Sketch], list[Estimate]], study: Study, sketch: Sketch
) -> list[Estimate]:
    """An estimate from the sketch; if the user's network fails without values, from models with values."""
    try:
        return estimate(study, sketch)
    except RecipeError:
        raise
    except Exception:  # the user's code can raise anything
        return estimate(study, sketch_on("cpu", study))


def estimate_predictions(study: Study, sketch: Sketch) -> list[PredictionCost]:
    """Prediction costs, counted on the sketch's device and timed on the study's."""
    counting, x = sketch.counting, blank(study, FEW, sketch.device)
    count_prediction = partial(count_forward, counting, x=x)
    speed = measure_speed(study, sketch.plain, count_prediction(sketch.plain), forward)

    def cost(name: str, models: Sequence[Ensemble]) -> PredictionCost:
        counts = [count_prediction(model) for model in models]
        calls, flops = sum(count.calls for count in counts), sum(count.flops for count in counts)
        weights = [value for model in models for value in model.state_dict().values()]
        return PredictionCost(
            name,
            sum(map(parameters, models)),
            flops / 2,
            sum(value.nbytes for value in weights),
            1000 * speed.seconds(Count(calls, flops), images=1, batch=1),
        )

    teachers = [Single(network) for network in sketch.networks]
    students = [cost(name, [student]) for name, student in sketch.trained.items()]
    return [cost("one teacher", teachers[:1]), cost(TEACHERS, teachers), *students]


def estimate_trainings(study: Study, sketch: Sketch) -> list[Cost]:
    """Training costs, counted on the sketch's device and timed on the study's; raises a TooLargeError."""
    counting, x = sketch.counting, blank(study, FEW, sketch.device)
    plain = sketch.plain
    state_bytes = 3 * sum(weight.nbytes for weight in plain.parameters())  # weights, gradients, momentum
    with counting:
        twice = saved_bytes(plain, blank(study, 2 * FEW, sketch.device))
        image_bytes = (twice - saved_bytes(plain, x)) // FEW
    check_memory(study, state_bytes + FEW * image_bytes)
    speed = measure_speed(study, plain, counting.of(partial(plain_step, plain, x)), plain_step)
    count_prediction = cache(partial(count_forward, counting, x=x))  # methods may share a student

    def epoch_cost(model: Ensemble, loss: Loss, schedule: Schedule, share: float) -> tuple[float, float]:
        prediction, step = count_prediction(model), counting.of(partial(training_step, model, loss, x))
        batch, valid = study.training_plan(schedule).batch, len(study.data().valid)
        images = round(len(study.data().train) * batch / labelled_rows(batch, share))
        seconds = speed.seconds(step, images, batch) + speed.seconds(prediction, valid, BATCH)
        return images * step.flops, seconds

    estimates = []
    for kind in kinds(sketch):
        flops, seconds = epoch_cost(kind.model, kind.loss, kind.schedule, kind.share)
        memory = state_bytes + kind.schedule.batch * image_bytes
        for name, (runs, epochs) in kind.trainings.items():
            estimates.append(Cost(name, runs, epochs * flops, epochs * seconds, memory))
    return estimates


@dataclass(frozen=True)
class Kind:
    """Trainings of one model with one loss, which differ only in their epochs."""

    model: Ensemble
    loss: Loss
    schedule: Schedule
    trainings: dict[str, tuple[int, int]]  # by name: how often it runs, and its epochs
    share: float = 0.0  # of unlabelled images in a batch


def kinds(sketch: Sketch) -> Iterator[Kind]:
    """The kinds of trainings: teachers, then for each method the search for its step and its students."""
    study, recipe, teachers = sketch.study, sketch.study.recipe, sketch.study.recipe.teachers
    if isinstance(teachers, Schedule):
        runs = {"teacher": (study.teacher_count, teachers.epochs)}
        yield Kind(Single(sketch.networks[0]), CrossEntropy(), teachers, runs)
    for name, student in sketch.students.items():
        schedule, loss = recipe.schedule(name), loss_for_counting(study, name, sketch.teachers)
        search = {search_name(name): (1, search_epochs(schedule))} if recipe.searches_step(name) else {}
        runs = {**search, name: (len(recipe.seeds), schedule.epochs)}
        yield Kind(student, loss, schedule, runs, study.unlabelled_share(name))


def loss_for_counting(study: Study, name: str, teachers: DeepEnsemble) -> Loss:
    """A method's loss with an arbitrary step size, since the cost does not depend on it."""
    method = study.recipe.distillation(name)
    if method is None:
        return CrossEntropy()
    source = DeepEnsemble([teachers.networks[0]]) if method.source else None
    perturb = method.perturbation(1 / 255, source)
    steps = max(1, study.student_steps(name, study.recipe.schedule(name).epochs))
    return study.recipe.form(name).loss(teachers, method, perturb, steps)


def plain_step(model: Ensemble, x: Tensor) -> Tensor:
    return training_step(model, CrossEntropy(), x)


def training_step(model: Ensemble, loss: Loss, x: Tensor) -> Tensor:
    """One step without an optimiser, on labels 0; returns the loss."""
    y = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    value = loss(model.train(), x, y, torch.Generator().manual_seed(0))["loss"]
    model.zero_grad(set_to_none=True)
    value.backward()
    return value


def saved_bytes(model: Ensemble, x: Tensor) -> int:
    """The bytes that a step keeps for its backward pass."""
    sizes: list[int] = []

    def record(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        plain_step(model, x)
    return sum(sizes)


def check_memory(study: Study, size: int) -> None:
    """Raise a TooLargeError if a step on the CPU needs more memory than this machine has."""
    if study.device == "cpu" and size > memory():
        raise TooLargeError(
            f"a step needs at least {size / 2**30:,.1f} GiB of memory, but this machine has"
            f" {memory() / 2**30:,.1f}: use smaller images, a smaller network or a smaller batch"
        )


def forward(model: Ensemble, x: Tensor) -> Tensor:
    """The sum of the predictions of all members."""
    with torch.no_grad(), evaluating(model):
        return model(x.expand(model.members, *x.shape)).sum()


def count_forward(counting: Counting, model: Ensemble, x: Tensor) -> Count:
    """The operations of the second prediction: the first one also checks images of a new size."""
    counting.of(partial(forward, model, x))
    return counting.of(partial(forward, model, x))


def blank(study: Study, images: int, device: str) -> Tensor:
    """Black images of the study's shape. [b c h w]"""
    shape = (images, *study.data().train.images.shape[1:])
    return torch.zeros(shape, device=device).contiguous(memory_format=torch.channels_last)


def measure_speed(
    study: Study, plain: Ensemble, count: Count, run: Callable[[Ensemble, Tensor], Tensor]
) -> Speed:
    """The speed of `run` on a network with these counts.

    It is measured in one thread; more threads speed up floating-point operations, not calls.
    """
    model = all_zeros(plain, study.device)
    precision, on_cpu = getattr(torch, study.recipe.precision, torch.float32), study.device == "cpu"

    def measure(images: int) -> float:
        x, clock = blank(study, images, study.device), time.process_time if on_cpu else time.perf_counter
        start = clock()
        with torch.autocast(x.device.type, precision, enabled=precision != torch.float32):
            run(model, x).item()  # waits for the device
        return clock() - start

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        speed = fit_speed(measure, count, study.recipe.student.batch)
    finally:
        torch.set_num_threads(threads)
    return Speed(speed.call, speed.flop / study.threads()) if on_cpu else speed


def all_zeros(model: Ensemble, device: str) -> Ensemble:
    """A copy of a model on a device. Its weights share one block of zeros and keep no gradients.

    Allocating memory for every weight and gradient would be slow.
    """
    model = copy.deepcopy(model).to_empty(device=device)
    size = max((weight.nbytes for weight in model.parameters()), default=0)
    zeros = torch.zeros(size, dtype=torch.uint8, device=device)
    for weight in model.parameters():
        memory = zeros[: weight.nbytes].view(weight.dtype)
        weight.data = memory.as_strided(weight.shape, weight.stride())
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
    for buffer in model.buffers():
        buffer.zero_()
    return model


def fit_speed(measure: Callable[[int], float], count: Count, largest: int) -> Speed:
    """The speed from two measurements, with few and with many images (at most `largest`)."""
    if not count.flops:  # no products or convolutions
        return Speed(fastest(measure, min(FEW, largest)) / count.calls, 0.0)
    many = min(largest, int(MAX_FLOPS // count.flops))
    if many < 1:
        return Speed(0.0, seconds_per_image(measure) / count.flops)
    few, seconds = min(FEW, largest), fastest(measure, min(FEW, largest))
    if many <= few:  # the network is so large that calls do not matter
        return Speed(0.0, seconds / (few * count.flops))
    flop = max(0.0, fastest(measure, many) - seconds) / ((many - few) * count.flops)
    return Speed(max(0.0, seconds - few * count.flops * flop) / count.calls, flop)


def seconds_per_image(measure: Callable[[int], float]) -> float:
    """Seconds for one image of a very large network."""
    try:
        return fastest(measure, 1)
    except ValueError:  # BatchNorm needs more than one value
        return fastest(measure, FEW) / FEW


def fastest(measure: Callable[[int], float], images: int) -> float:
    """The smallest of `REPEATS` measurements, or of fewer if they take long."""
    seconds = [measure(images)]
    while len(seconds) < REPEATS and sum(seconds) < ENOUGH_SECONDS:
        seconds.append(measure(images))
    return min(seconds)
