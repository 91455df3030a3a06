"""The cost of a study before it starts: operations are counted, and a short measurement gives the time.

Models are built once for all counts, without values if possible.
A step is counted on PyTorch's meta device, where tensors have shapes and no values. Its time is so much for
every call of an operation and so much for every floating-point operation. Both are measured on a few steps of
the student's plain network, in processor time, which does not depend on how busy the machine is.
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
from polyphony.ensembles import DeepEnsemble, Ensemble, Single, evaluating
from polyphony.nn import member_share
from polyphony.nn.counting import FEW, Count, Counting
from polyphony.recipe import RecipeError, Schedule
from polyphony.runs.scores import TEACHERS
from polyphony.study.study import Study
from polyphony.training.fit import Loss
from polyphony.training.predict import BATCH

Built = TypeVar("Built")
Estimate = TypeVar("Estimate")
Name = TypeVar("Name")
MOST_FLOPS = 4e9  # floating-point operations of a measured step, unless it has few images
REPEATS, ENOUGH = 3, 0.3  # a step is measured 3 times, or until it has taken 0.3 seconds


@dataclass(frozen=True)
class Cost:
    """One training: operations of all its steps, and seconds on this machine with the study's threads.

    `memory` is a lower bound for a step, in bytes: weights, gradients, momentum, activations of a plain
    network.
    """

    name: str
    runs: int
    flops: float
    seconds: float
    memory: int


@dataclass(frozen=True)
class Speed:
    """Seconds for a call of an operation, and for a floating-point operation."""

    call: float
    flop: float

    def seconds(self, count: Count, images: int, batch: int) -> float:
        """Seconds for so many images in batches."""
        return batch_count(images, batch) * count.calls * self.call + images * count.flops * self.flop


@dataclass(frozen=True)
class Answer:
    """One image: multiply-adds, bytes of the weights, and milliseconds on this machine (PyTorch)."""

    name: str
    parameters: int
    multiply_adds: float
    weights: int
    milliseconds: float


class TooLargeError(RecipeError):
    """A step needs more memory than this machine has."""


@dataclass(frozen=True)
class Sketch:
    """A study's models before training, to be counted on a device. On the meta device they have no values.

    Models that are made from equal tables are one object.
    """

    study: Study  # with one image, so that networks are built at once
    device: str
    counting: Counting
    networks: list[nn.Module]  # one for each teacher that students learn from
    teachers: DeepEnsemble  # the same, as students learn from them
    plain: Ensemble  # the students' network without members
    students: dict[str, Ensemble]  # by method
    trained: dict[str, Ensemble]  # the students as they predict
    member_shares: dict[
        str, float
    ]  # the share of a member's weights that have factors or are its own, if any

    @property
    def parameter_counts(self) -> dict[str, int]:
        """Parameters of the teachers together, and of each method's student as it predicts."""
        teachers = sum(map(parameters, self.networks))
        return {TEACHERS: teachers} | {name: parameters(student) for name, student in self.trained.items()}


def sketched(study: Study) -> Sketch:
    """A study's models without values, or with values if the user's network needs them."""
    try:
        return sketched_on("meta", study)
    except Exception:  # the user's code can raise anything
        return sketched_on("cpu", study)


def sketched_on(device: str, study: Study) -> Sketch:
    splits = replace(study.data(), train=study.data().train[:1])
    splits.train.statistics  # noqa: B018 (computed here, once)
    study, counting = replace(study, data_instead=splits), Counting()
    recipe, table = study.recipe, study.recipe.teachers.network_of

    def folded(j: int) -> nn.Module:
        return DeepEnsemble([study.network(table(j))]).folded().networks[0]

    with torch.device(device), counting:
        networks = built_once(range(recipe.members), table, lambda j: study.network(table(j)))
        teachers = DeepEnsemble([*built_once(range(recipe.members), table, folded).values()])
        plain = Single(study.network(recipe.student_network))
        students = built_once(recipe.methods, recipe.form_table, study.blank_student)
        trained = {name: recipe.form(name).trained(student) for name, student in students.items()}
        shares = {name: share for name, student in students.items() if (share := member_share(student))}
    return Sketch(study, device, counting, [*networks.values()], teachers, plain, students, trained, shares)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def built_once(
    names: Iterable[Name], alike: Callable[[Name], object], build: Callable[[Name], Built]
) -> dict[Name, Built]:
    """Build something for each name; names whose tables look the same share it."""
    tables = {name: repr(alike(name)) for name in names}
    firsts = {table: name for name, table in reversed(tables.items())}
    built = {table: build(name) for table, name in firsts.items()}
    return {name: built[table] for name, table in tables.items()}


def costs(study: Study, sketch: Sketch | None = None) -> list[Cost]:
    """The cost of one teacher, unless they are pretrained, and of one student of each method."""
    return with_values_if_needed(estimates, study, sketch or sketched(study))


def answers(study: Study, sketch: Sketch) -> list[Answer]:
    """The cost of one image for one teacher, for all teachers together, and for each method's student."""
    return with_values_if_needed(prices, study, sketch)


def with_values_if_needed(
    estimate: Callable[[Study, Sketch], list[Estimate]], study: Study, sketch: Sketch
) -> list[Estimate]:
    """An estimate from models without values, or with values if the user's network needs them."""
    try:
        return estimate(study, sketch)
    except RecipeError:
        raise
    except Exception:  # the user's code can raise anything
        return estimate(study, sketched_on("cpu", study))


def prices(study: Study, sketch: Sketch) -> list[Answer]:
    """The answers, counted on the device of the models and timed on the study's."""
    counting, x = sketch.counting, blank(study, FEW, sketch.device)
    looking = partial(look_twice, counting, x=x)
    speed = measured_speed(study, sketch.plain, looking(sketch.plain), look)

    def answer(name: str, models: Sequence[Ensemble]) -> Answer:
        counts = [looking(model) for model in models]
        calls, flops = sum(count.calls for count in counts), sum(count.flops for count in counts)
        weights = [value for model in models for value in model.state_dict().values()]
        return Answer(
            name,
            sum(map(parameters, models)),
            flops / 2,
            sum(value.nbytes for value in weights),
            1000 * speed.seconds(Count(calls, flops), images=1, batch=1),
        )

    teachers = [Single(network) for network in sketch.networks]
    students = [answer(name, [student]) for name, student in sketch.trained.items()]
    return [answer("one teacher", teachers[:1]), answer(TEACHERS, teachers), *students]


def estimates(study: Study, sketch: Sketch) -> list[Cost]:
    """The costs, counted on the device of the models and timed on the study's."""
    counting, x = sketch.counting, blank(study, FEW, sketch.device)
    plain = sketch.plain
    weights = 3 * sum(weight.nbytes for weight in plain.parameters())
    with counting:
        an_image = (saved_bytes(plain, blank(study, 2 * FEW, sketch.device)) - saved_bytes(plain, x)) // FEW
    check_memory(study, weights + FEW * an_image)
    speed = measured_speed(study, plain, counting.of(partial(learn, plain, x)), learn)
    looking = cache(partial(look_twice, counting, x=x))  # several methods may have the same student

    def cost(name: str, runs: int, schedule: Schedule, model: Ensemble, loss: Loss) -> Cost:
        looked, stepping = looking(model), counting.of(partial(step, model, loss, x))
        batch, valid = study.plan(schedule).batch, len(study.data().valid)
        share = study.unlabelled_share(name) if name in study.recipe.methods else 0.0
        images = round(len(study.data().train) * batch / labelled_rows(batch, share))
        seconds = speed.seconds(stepping, images, batch) + speed.seconds(looked, valid, BATCH)
        flops = schedule.epochs * images * stepping.flops
        return Cost(name, runs, flops, schedule.epochs * seconds, weights + batch * an_image)

    return [cost(*training) for training in trainings(sketch)]


def trainings(sketch: Sketch) -> Iterator[tuple[str, int, Schedule, Ensemble, Loss]]:
    """Each kind of training: name, how often it runs, schedule, model and loss."""
    study, recipe = sketch.study, sketch.study.recipe
    if isinstance(recipe.teachers, Schedule):
        yield "teacher", study.teacher_count, recipe.teachers, Single(sketch.networks[0]), CrossEntropy()
    for name, student in sketch.students.items():
        loss = loss_for_counting(study, name, sketch.teachers)
        yield name, len(recipe.seeds), recipe.schedule(name), student, loss


def loss_for_counting(study: Study, name: str, teachers: DeepEnsemble) -> Loss:
    """A method's loss with any step size: the cost does not depend on it."""
    method = study.recipe.distillation(name)
    if method is None:
        return CrossEntropy()
    source = DeepEnsemble([teachers.networks[0]]) if method.source else None
    perturb = method.perturbation(1 / 255, source)
    return study.recipe.form(name).loss(teachers, method, perturb, max(1, study.student_steps(name)))


def learn(model: Ensemble, x: Tensor) -> Tensor:
    return step(model, CrossEntropy(), x)


def step(model: Ensemble, loss: Loss, x: Tensor) -> Tensor:
    y = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    found = loss(model.train(), x, y, torch.Generator().manual_seed(0))["loss"]
    model.zero_grad(set_to_none=True)
    found.backward()
    return found


def saved_bytes(model: Ensemble, x: Tensor) -> int:
    """Bytes that a step holds until its backward pass."""
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        learn(model, x)
    return sum(sizes)


def check_memory(study: Study, size: int) -> None:
    """Raise a TooLargeError if a step needs more memory than this machine has and trains on its CPU."""
    if study.device == "cpu" and size > memory():
        raise TooLargeError(
            f"a step takes at least {size / 2**30:,.1f} GiB of memory where this machine has"
            f" {memory() / 2**30:,.1f}: take smaller images, a smaller network or a smaller batch"
        )


def look(model: Ensemble, x: Tensor) -> Tensor:
    """The predictions of all members, as one number."""
    with torch.no_grad(), evaluating(model):
        return model(x.expand(model.members, *x.shape)).sum()


def look_twice(counting: Counting, model: Ensemble, x: Tensor) -> Count:
    """The cost of a prediction after the first, which also checks images of a new size."""
    counting.of(partial(look, model, x))
    return counting.of(partial(look, model, x))


def blank(study: Study, images: int, device: str) -> Tensor:
    shape = (images, *study.data().train.images.shape[1:])
    return torch.zeros(shape, device=device).contiguous(memory_format=torch.channels_last)


def measured_speed(
    study: Study, plain: Ensemble, count: Count, use: Callable[[Ensemble, Tensor], Tensor]
) -> Speed:
    """The speed of a network in one thread. More threads speed up arithmetic, not calls."""
    model = all_zeros(plain, study.device)
    precision, on_cpu = getattr(torch, study.recipe.precision, torch.float32), study.device == "cpu"

    def measure(images: int) -> float:
        x, clock = blank(study, images, study.device), time.process_time if on_cpu else time.perf_counter
        start = clock()
        with torch.autocast(x.device.type, precision, enabled=precision != torch.float32):
            use(model, x).item()  # waits for the device
        return clock() - start

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        speed = fitted_speed(measure, count, study.recipe.student.batch)
    finally:
        torch.set_num_threads(threads)
    return Speed(speed.call, speed.flop / study.threads()) if on_cpu else speed


def all_zeros(model: Ensemble, device: str) -> Ensemble:
    """A copy on a device whose weights share the same zeros and keep no gradient: allocation is slow."""
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


def fitted_speed(measure: Callable[[int], float], count: Count, largest: int) -> Speed:
    """Seconds a call and a floating-point operation, from steps with few and with many images."""
    if not count.flops:  # no products or convolutions
        return Speed(best(measure, min(FEW, largest)) / count.calls, 0.0)
    many = min(largest, int(MOST_FLOPS // count.flops))
    if many < 1:
        return Speed(0.0, seconds_of_one(measure) / count.flops)
    few, seconds = min(FEW, largest), best(measure, min(FEW, largest))
    if many <= few:  # the network is so large that calls do not matter
        return Speed(0.0, seconds / (few * count.flops))
    flop = max(0.0, best(measure, many) - seconds) / ((many - few) * count.flops)
    return Speed(max(0.0, seconds - few * count.flops * flop) / count.calls, flop)


def seconds_of_one(measure: Callable[[int], float]) -> float:
    """Seconds for an image of a very large network; BatchNorm may need several images."""
    try:
        return best(measure, 1)
    except ValueError:  # BatchNorm needs more than one value
        return best(measure, FEW) / FEW


def best(measure: Callable[[int], float], images: int) -> float:
    """The fastest of several measurements, or of fewer if they take long."""
    found = [measure(images)]
    while len(found) < REPEATS and sum(found) < ENOUGH:
        found.append(measure(images))
    return min(found)
