"""A few training images, and the predictions of all members on them, before and after the perturbation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from torch import Tensor

from polyphony.report.chart import SMALL, Absent, Chart, Margins, Panel
from polyphony.report.style import MUTED, Look, looks_of
from polyphony.report.tables import Numbers
from polyphony.runs.run import Run
from polyphony.runs.scores import TEACHERS

MOST_EXAMPLES = 3  # on the page
MOST_MODELS = 7  # under an example, with the teachers
_TITLE = "Predictions of the members"
_PREFIX = "students."  # students' names in the file begin with it
_SIDES = ("before", "after")
_READING = (
    "On top: a training image, the perturbed image, and their difference, amplified. Below: the predictions"
    " before (left) and after (right) the perturbation, a row for each member, a column for each class. A"
    " stronger colour is a higher probability. The perturbation should make the teachers’ rows differ, and a"
    " good student’s rows should differ in the same way."
)
Probabilities = Mapping[str, Tensor]  # by model: before and after, members, examples, classes [2 m e k]


def member_predictions(run: Run) -> Chart | Absent:
    """A panel for each of a few training images: the image, and a matrix for each model, one row per member.

    If there are many students, the best are shown: first those with members, then those with the lowest NLL.
    """
    if run.views is None:
        return Absent(_TITLE, "run 'polyphony analyse RUN members'.")
    images, perturbed = run.views["images"], run.views["perturbed"]
    students = {name.removeprefix(_PREFIX): t for name, t in run.views.items() if name.startswith(_PREFIX)}
    probabilities = {TEACHERS: run.views[TEACHERS], **students}
    models, look = _models_on_page(run, students), looks_of(run)
    aspect, margins = 1 / _height(len(models)), Margins(2.0, 12.0, 4.0, 4.0)
    panels = []
    for place in range(min(MOST_EXAMPLES, len(images))):
        rows = {look[model]: probabilities[model][:, :, place] for model in models}
        draw = partial(_draw, image=images[place], perturbed=perturbed[place], probabilities=rows)
        panels.append(Panel(f"example {place + 1}", draw, aspect, margins))
    with_members = " that have members" if all(students[name].shape[1] > 1 for name in models[1:]) else ""
    note = f" These are the {len(models) - 1} best students by NLL{with_members}; the file has all."
    reading = _READING + (note if len(models) < len(probabilities) else "")
    legend = [look[model] for model in models]
    return Chart("members", _TITLE, reading, panels, _numbers(probabilities), legend, width=SMALL)


def _models_on_page(run: Run, students: Probabilities) -> list[str]:
    """The teachers and the best students in the recipe's order; students with members have precedence."""
    methods = [method for method in run.methods if method in students]
    best = sorted(methods, key=lambda name: (students[name].shape[1] == 1, run.mean(name, "nll").mean))
    return [TEACHERS, *(method for method in methods if method in best[: MOST_MODELS - 1])]


def _numbers(probabilities: Probabilities) -> Numbers:
    rows = [
        (example + 1, model, when, member + 1, label, float(tensor[side, member, example, label]))
        for example in range(next(iter(probabilities.values())).shape[2])
        for model, tensor in probabilities.items()
        for side, when in enumerate(_SIDES)
        for member in range(tensor.shape[1])
        for label in range(tensor.shape[3])
    ]
    return Numbers(["example", "model", "when", "member", "class", "probability"], rows)


def visible_difference(image: Tensor, perturbed: Tensor) -> np.ndarray:
    """Perturbed minus original around mid-grey, the largest change black or white. [h w 3]"""
    change = perturbed.float() - image.float()
    scaled = 0.5 + 0.5 * change / change.abs().max().clamp_min(1e-9)
    return _picture(scaled)


def _picture(image: Tensor) -> np.ndarray:
    """[c h w] in [0, 1] or uint8 → [h w 3] in [0, 1]"""
    pixels = image if image.dtype.is_floating_point else image.float() / 255
    return pixels.expand(3, -1, -1).permute(1, 2, 0).numpy()


def _draw(axes: Axes, *, image: Tensor, perturbed: Tensor, probabilities: Mapping[Look, Tensor]) -> None:
    """An image before and after [c h w], and below them each model's probabilities [2 m k]."""
    axes.axis("off")
    unit = 1 / _height(len(probabilities))  # the panel's width as a share of its height
    difference = visible_difference(image, perturbed)
    pictures = {"image": _picture(image), "perturbed": _picture(perturbed), "difference": difference}
    for place, (words, picture) in enumerate(pictures.items()):
        inset = _inset(axes, picture, (place * 0.345, 1 - 0.31 * unit, 0.31, 0.31 * unit))
        inset.set_xlabel(words, fontsize=9.5, labelpad=3)
    for side, words in enumerate(_SIDES):
        _write(axes, side * 0.52, 1 - 0.475 * unit, words, MUTED.light)
    most = max(tensor.shape[1] for tensor in probabilities.values())
    for place, (look, tensor) in enumerate(probabilities.items()):
        top = 1 - (0.56 + 0.24 * place) * unit
        _write(axes, 0, top, look.label, look.colour)
        for side, rows in enumerate(tensor):
            height = 0.155 * unit * (1 / most if len(rows) == 1 else 1)
            _inset(axes, _tinted(rows, look), (side * 0.52, top - 0.01 * unit - height, 0.48, height))


def _height(models: int) -> float:
    """A panel's height over its width."""
    return 0.56 + 0.24 * models - 0.06


def _write(axes: Axes, x: float, y: float, words: str, colour: str) -> None:
    axes.text(x, y, words, transform=axes.transAxes, va="bottom", size=9.5, color=colour)


def _tinted(values: Tensor, look: Look) -> np.ndarray:
    """Probabilities [m k] as the opacity of a model's colour. → [m k 4]"""
    # Pixels cannot change with the page's scheme; the middle of the two colours is visible on light and dark.
    light, dark = to_rgb(look.ink.light), to_rgb(look.ink.dark)
    tinted = np.empty((*values.shape, 4))
    tinted[..., :3] = [(one + other) / 2 for one, other in zip(light, dark, strict=True)]
    tinted[..., 3] = values.numpy().clip(0, 1)
    return tinted


def _inset(axes: Axes, picture: np.ndarray, box: tuple[float, float, float, float]) -> Axes:
    """Draw a picture with a thin frame into a box of the axes; returns the new axes."""
    inset = axes.inset_axes(box)
    inset.imshow(picture, interpolation="none", aspect="auto")
    inset.set(xticks=[], yticks=[])
    inset.grid(visible=False)
    for spine in inset.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.8)
    return inset
