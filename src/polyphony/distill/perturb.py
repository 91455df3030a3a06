"""Perturbations x → x̃. In all of them `step_size` is the RMS change of a pixel.

A perturbation is called with pixels x [b c h w] in [0, 1], labels y [b] (−1: none), the frozen teachers, the
student, the temperature τ and a generator. It returns pixels of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from torch import Generator as Rng
from torch import Tensor

from polyphony._util.settings import NotNegative, Positive, Settings, Temperature, at_most_one, fraction
from polyphony._util.text import SettingError
from polyphony.compute.devices import full_precision
from polyphony.compute.parallel import drawn, gather
from polyphony.distill.losses import check_labels
from polyphony.ensembles import DeepEnsemble as Teachers
from polyphony.ensembles import Ensemble, evaluating

# A number or a string such as "1/255".
StepSize = Annotated[NotNegative, AfterValidator(at_most_one), BeforeValidator(fraction)]


class Perturbation(Protocol):
    """x [b c h w], y [b] → x̃ [b c h w]. Any callable with these arguments is a perturbation.

    `student` is the ensemble in training, or None if there is none, as in `match_step_size`.
    """

    def __call__(
        self, x: Tensor, y: Tensor, teachers: Teachers, student: Ensemble | None, temperature: float, rng: Rng
    ) -> Tensor: ...


class BuiltIn(Settings):
    """A perturbation that a recipe names by its `kind`; the other fields are the keys of its table."""

    reads_temperature: ClassVar[bool] = False  # does it depend on the temperature of the distillation?
    needs_student: ClassVar[bool] = False  # does it use the student's gradients?
    takes_source: ClassVar[bool] = False  # can it take directions from networks other than the teachers?
    mixes_images: ClassVar[bool] = False  # does it mix images, so that their labels are no longer right?

    @property
    def takes_step(self) -> bool:
        """Whether it has a step size that its table does not set."""
        return "step_size" in type(self).model_fields and "step_size" not in self.model_fields_set

    def build(self, step_size: float) -> Self:
        """A copy with this step size; unchanged if it has none, or if its table sets it."""
        return self.model_copy(update={"step_size": step_size}) if self.takes_step else self

    def spec(self, only: Collection[str] | None = None) -> dict[str, Any]:
        """Its kind, settings that differ from the defaults, and the step size if its table sets it."""
        default = type(self)(kind=self.kind)  # type: ignore[call-arg, attr-defined]
        always = self.model_fields_set & {"step_size"} | {"kind"}
        return {name: value for name, value in self if name in always or value != getattr(default, name)}


class Clean(BuiltIn):
    """x̃ = x: plain one-to-one distillation (§2.3)."""

    kind: Literal["clean"] = Field(default="clean", repr=False)

    def __call__(
        self, x: Tensor, y: Tensor, teachers: Teachers, student: Ensemble | None, temperature: float, rng: Rng
    ) -> Tensor:
        return x


class Gaussian(BuiltIn):
    """A step in a random direction, uniform on the sphere of radius η√D."""

    kind: Literal["gaussian"] = Field(default="gaussian", repr=False)
    step_size: StepSize = 1 / 255
    """η: RMS change of a pixel."""

    def __call__(
        self, x: Tensor, y: Tensor, teachers: Teachers, student: Ensemble | None, temperature: float, rng: Rng
    ) -> Tensor:
        noise = drawn(lambda rows: torch.randn(rows, *x.shape[1:], generator=rng), len(x), x.device)
        return step(x, unit_rms(noise), self.step_size)


class ODS(BuiltIn):
    """A step that moves one random teacher's output along a random guide w ~ U(−1, 1)^K (§2.4, §3.1).

    `scale_by_confidence` multiplies each example's step by the teacher's confidence. This is ConfODS; its
    kind in a recipe is "confods".

    Examples:
        >>> teachers = DeepEnsemble([resnet(8, classes=10) for _ in range(2)])
        >>> x = torch.full((3, 3, 16, 16), 0.5)
        >>> x_tilde = ODS(step_size=4 / 255)(x, torch.zeros(3), teachers, None, 1.0, torch.Generator())
        >>> round(float((x_tilde - x).square().mean().sqrt()) * 255, 2)  # RMS change of a pixel
        4.0
    """

    reads_temperature: ClassVar[bool] = True
    takes_source: ClassVar[bool] = True
    kind: Literal["ods", "confods"] = Field(default="ods", repr=False)
    step_size: StepSize = 1 / 255
    """η: RMS change of a pixel."""
    scale_by_confidence: bool = False
    """Shorten the step where the teacher is not confident (ConfODS)."""

    @model_validator(mode="before")
    @classmethod
    def _complete_confods(cls, table: Any) -> Any:
        if isinstance(table, dict) and (table.get("kind") == "confods" or table.get("scale_by_confidence")):
            if table.get("scale_by_confidence") is False:
                raise ValueError("'confods' scales by confidence; 'ods' does not")
            return table | {"kind": "confods", "scale_by_confidence": True}
        return table

    def __call__(
        self, x: Tensor, y: Tensor, teachers: Teachers, student: Ensemble | None, temperature: float, rng: Rng
    ) -> Tensor:
        x, logits = logits_of_one(teachers, x, rng)
        scaled = logits.detach().float() / temperature
        guide = 2 * drawn(lambda rows: torch.rand(rows, scaled.shape[1], generator=rng), len(x), x.device) - 1
        size: float | Tensor = self.step_size
        if self.scale_by_confidence:
            size = size * scaled.softmax(-1).amax(-1).view(-1, 1, 1, 1)
        return step(x.detach(), ascent(x, logits, ods_seed(scaled, guide)), size)


class Adversarial(BuiltIn):
    """A step that raises one random teacher's classification loss at τ (appendix, non-targeted attack).

    For an unlabelled image (label −1), the label is the teacher's own prediction.
    """

    reads_temperature: ClassVar[bool] = True
    kind: Literal["adversarial"] = Field(default="adversarial", repr=False)
    step_size: StepSize = 1 / 255
    """η: RMS change of a pixel."""

    def __call__(
        self, x: Tensor, y: Tensor, teachers: Teachers, student: Ensemble | None, temperature: float, rng: Rng
    ) -> Tensor:
        x, logits = logits_of_one(teachers, x, rng)
        labels = torch.where(y < 0, logits.detach().argmax(-1), y)
        seed = adversarial_seed(logits.detach().float() / temperature, labels)
        return step(x.detach(), ascent(x, logits, seed), self.step_size)


class Diversify(BuiltIn):
    """A step to where two teachers disagree but the student's members do not yet (Nam et al., ICML 2022).

    For two random members i ≠ j, the direction is ∇ₓ [CE(T_i(x), T_j(x)) − CE(S_i(x), S_j(x))]; the first of
    each pair is a fixed target. The student runs in eval mode and in float32, and does not change. Softmax is
    at `temperature` (default: 1, as in the authors' code); the τ of the distillation is ignored.
    """

    needs_student: ClassVar[bool] = True
    kind: Literal["diversify"] = Field(default="diversify", repr=False)
    step_size: StepSize = 1 / 255
    """η: RMS change of a pixel."""
    temperature: Temperature = 1.0
    """Temperature of the predictions that are compared."""

    def __call__(
        self, x: Tensor, y: Tensor, teachers: Teachers, student: Ensemble | None, temperature: float, rng: Rng
    ) -> Tensor:
        if student is None:
            raise SettingError("the perturbation Diversify needs a student")
        i, j = two_members(teachers.members, student.members, rng)
        x = x.detach().requires_grad_()
        with torch.enable_grad(), full_precision(x.device), evaluating(student):
            members = student.ask_all(x)
            teacher_pair = teachers.ask(i, x.detach()), teachers.ask(j, x)
            member_pair = members[i], members[j]
            scaled = [
                [v.detach().float() / self.temperature for v in pair] for pair in (teacher_pair, member_pair)
            ]
            up, down = disagreement_seeds(scaled)
            seeds = (up.to(teacher_pair[1].dtype), -down.to(member_pair[1].dtype))
            (gradient,) = torch.autograd.grad((teacher_pair[1], member_pair[1]), x, seeds)
        return step(x.detach(), unit_rms(gradient.float()), self.step_size)


class Mixup(BuiltIn):
    """Mixes each image with another of its batch: λ x + (1 − λ) x', with one λ ~ Beta(a, a) for the batch.

    Labels are not mixed: the student learns the teachers' predictions on x̃.
    """

    mixes_images: ClassVar[bool] = True
    kind: Literal["mixup"] = Field(default="mixup", repr=False)
    concentration: Positive = 1.0
    """a of Beta(a, a), the distribution of the mixing weight."""

    def __call__(
        self, x: Tensor, y: Tensor, teachers: Teachers, student: Ensemble | None, temperature: float, rng: Rng
    ) -> Tensor:
        others = gather(x)[drawn(lambda rows: torch.randperm(rows, generator=rng), len(x), x.device)]
        return torch.lerp(others, x, beta(self.concentration, rng))


@dataclass(frozen=True)
class Chain:
    """Applies perturbations one after the other, each to the result of the one before.

    After one that mixes images, the next ones get the label −1, as for images without labels.
    """

    perturbations: Sequence[Perturbation]

    @property
    def mixes_images(self) -> bool:
        """Whether any of them mixes images."""
        return any(map(mixes_images, self.perturbations))

    @property
    def source(self) -> Teachers | None:
        """The networks that a part takes its directions from, if they are not the teachers."""
        sources = (getattr(perturb, "source", None) for perturb in self.perturbations)
        return next(filter(None, sources), None)

    def __call__(
        self, x: Tensor, y: Tensor, teachers: Teachers, student: Ensemble | None, temperature: float, rng: Rng
    ) -> Tensor:
        for perturb in self.perturbations:
            x = perturb(x, y, teachers, student, temperature, rng)
            y = torch.full_like(y, -1) if mixes_images(perturb) else y
        return x


@dataclass(frozen=True)
class WithSource:
    """A perturbation with directions from `source` instead of the teachers (§4.2)."""

    perturb: Perturbation
    source: Teachers

    @property
    def mixes_images(self) -> bool:
        return mixes_images(self.perturb)

    def __call__(
        self, x: Tensor, y: Tensor, teachers: Teachers, student: Ensemble | None, temperature: float, rng: Rng
    ) -> Tensor:
        return self.perturb(x, y, self.source, student, temperature, rng)


@dataclass(frozen=True)
class MixesImages:
    """A perturbation that mixes images, but does not say so itself."""

    perturb: Perturbation
    mixes_images: ClassVar[bool] = True

    def __call__(
        self, x: Tensor, y: Tensor, teachers: Teachers, student: Ensemble | None, temperature: float, rng: Rng
    ) -> Tensor:
        return self.perturb(x, y, teachers, student, temperature, rng)


def mixes_images(perturb: Perturbation) -> bool:
    """Whether a perturbation mixes images, so that their labels are no longer right."""
    return getattr(perturb, "mixes_images", False) is True


def applied(
    perturb: Perturbation, teachers: Teachers, student: Ensemble | None, temperature: float, rng: Rng
) -> Callable[[Tensor, Tensor], Tensor]:
    """The function x, y → x̃ with the other arguments fixed, for `predict(before=…)`."""
    return lambda x, y: perturb(x, y, teachers, student, temperature, rng)


def ods_seed(logits: Tensor, guide: Tensor) -> Tensor:
    """The direction of ∇_z wᵀ softmax(z), accurate however confident z is. [b k], [b k] → [b k]

    ∂/∂z_i = p_i (w_i − Σ_j p_j w_j). With k = argmax z the guide is shifted to d = w − w_k, so that no large
    terms cancel. `zero_sum_direction` prevents underflow and computes component k.
    """
    top = logits.argmax(-1, keepdim=True)
    d = guide - guide.gather(-1, top)
    m = (logits.softmax(-1) * d).sum(-1, keepdim=True)
    return zero_sum_direction(logits, top, d - m)


def adversarial_seed(logits: Tensor, labels: Tensor) -> Tensor:
    """The direction of ∇_z −log softmax(z)_y = p − e_y, accurate for any p_y. [b k], [b] → [b k]"""
    check_labels(logits, labels)
    return zero_sum_direction(logits, labels[:, None], torch.ones_like(logits))


def zero_sum_direction(logits: Tensor, pivot: Tensor, slope: Tensor) -> Tensor:
    """The unit vector along v with v_j = p_j slope_j for j ≠ pivot and v_pivot = −Σ_{j≠pivot} v_j. [b k]

    The rows of a softmax's Jacobian sum to zero, so v_pivot needs no difference of large terms. The others
    are scaled by their largest probability, so that not all of them underflow. Zeros if all slopes are zero.
    """
    if logits.shape[-1] < 2:
        raise SettingError("the networks have only one class: a perturbation needs two or more")
    others = logits.scatter(-1, pivot, -torch.inf)
    v = (others - others.amax(-1, keepdim=True)).exp() * slope
    v = v.scatter(-1, pivot, -v.sum(-1, keepdim=True))
    return F.normalize(v, dim=-1, eps=torch.finfo(v.dtype).tiny)


def disagreement_seeds(pairs: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """∇_z CE(softmax(t), softmax(z)) = softmax(z) − softmax(t) for each pair (t, z). 2 × [b k] → [b k] each

    All pairs of an example are scaled by the same number: this prevents underflow and keeps the direction of
    their sum. With k = argmax z, component k is minus the sum of the others: a difference would cancel for
    confident predictions.
    """
    tops = [z.argmax(-1, keepdim=True) for _, z in pairs]
    others = [
        [F.log_softmax(v, -1).scatter(-1, top, -torch.inf) for v in pair]
        for pair, top in zip(pairs, tops, strict=True)
    ]
    largest = torch.stack([v for pair in others for v in pair]).amax((0, -1))[:, None]
    seeds = [(z - largest).exp() - (t - largest).exp() for t, z in others]
    return [v.scatter(-1, top, -v.sum(-1, keepdim=True)) for v, top in zip(seeds, tops, strict=True)]


def two_members(teachers: int, members: int, rng: Rng) -> tuple[int, int]:
    """Two different random members, and so two teachers. Raises a ValueError if that is impossible."""
    if members != teachers or members < 2:
        raise ValueError(
            "the perturbation Diversify needs two members or more and a teacher for each:"
            f" there are {members} members and {teachers} teachers"
        )
    i, j = torch.randperm(members, generator=rng)[:2].tolist()
    return i, j


def beta(concentration: float, rng: Rng) -> float:
    """A draw from Beta(a, a), by NumPy: PyTorch's Beta accepts no generator."""
    seed = int(torch.randint(2**63 - 1, (), generator=rng))
    return float(np.random.default_rng(seed).beta(concentration, concentration))


def logits_of_one(teachers: Teachers, x: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
    """x with gradients enabled, and the logits of one random teacher. [b c h w] → …, [b k]"""
    r = int(torch.randint(teachers.members, (), generator=rng))
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = teachers.ask(r, x)
    return x, logits


def ascent(x: Tensor, logits: Tensor, seed: Tensor) -> Tensor:
    """The direction Jᵀ seed with unit RMS per pixel, by one backward pass to the input. [b c h w]"""
    (gradient,) = torch.autograd.grad(logits, x, seed.to(logits.dtype))
    return unit_rms(gradient.float())


def unit_rms(direction: Tensor) -> Tensor:
    """Scale each image's direction to a root mean square of one; zeros stay zeros."""
    tiny = torch.finfo(direction.dtype).tiny
    pixels = (1, 2, 3)
    direction = direction / direction.abs().amax(pixels, keepdim=True).clamp_min(tiny)
    return direction / direction.square().mean(pixels, keepdim=True).sqrt().clamp_min(tiny)


def step(x: Tensor, direction: Tensor, size: float | Tensor) -> Tensor:
    """clamp(x + size · direction, 0, 1)"""
    return (x + size * direction).clamp(0, 1)
