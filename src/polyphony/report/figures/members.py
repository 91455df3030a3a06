"""Images, and what each teacher and each member says of them, before and after the perturbation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from torch import Tensor

from polyphony.report.chart import SMALL, Absent, Chart, Margins, Panel
from polyphony.report.run import Run
from polyphony.report.style import MUTED, Look
from polyphony.report.tables import Numbers, Value
from polyphony.scores import TEACHERS

MOST = 3  # examples on the page
MODELS = 7  # models under an example, the teachers among them
_MARGINS = Margins(2.0, 12.0, 4.0, 4.0)
_TITLE = "What the members say"
_PREFIX = "students."


@dataclass(frozen=True)
class Example:
    """An image before and after [c h w], and probabilities by model [2 m k]."""

    image: Tensor
    perturbed: Tensor
    probabilities: dict[str, Tensor]


def member_predictions(run: Run) -> Chart | Absent:
    """A panel for each of a few training images."""
    tensors = run.views
    if tensors is None:
        return Absent(_TITLE, "members were not asked one by one; 'polyphony analyse RUN members' does it.")
    best = sorted(run.methods, key=lambda method: run.mean(method, "nll").mean)
    return member_chart(examples(tensors), run.look, best)


def examples(tensors: Mapping[str, Tensor]) -> list[Example]:
    """The examples of members.safetensors."""
    models = {TEACHERS: tensors[TEACHERS]}
    models |= {name.removeprefix(_PREFIX): t for name, t in tensors.items() if name.startswith(_PREFIX)}
    return [
        Example(
            tensors["images"][place],
            tensors["perturbed"][place],
            {model: each[:, :, place] for model, each in models.items()},
        )
        for place in range(len(tensors["images"]))
    ]


def member_chart(found: list[Example], look: Mapping[str, Look], best: Sequence[str]) -> Chart:
    """Images on top; under them a matrix for each model, a row a member, a column a class.

    Of many students the best that have members are shown; `best` has them in order.
    """
    here = found[0].probabilities
    kept = sorted((m for m in best if m in here), key=lambda m: here[m].shape[1] == 1)[: MODELS - 1]
    order = [model for model in look if model in here and (model == TEACHERS or model in kept)]
    left_out = [model for model in here if model not in order]
    draw = partial(_example, order=order, look=look)
    aspect = 1 / _height(len(order))
    panels = tuple(
        Panel(f"example {place + 1}", partial(draw, example=each), aspect, _MARGINS)
        for place, each in enumerate(found[:MOST])
    )
    rows: list[tuple[Value, ...]] = [
        (place + 1, model, when, member + 1, label, float(values[side, member, label]))
        for place, each in enumerate(found)
        for model, values in each.probabilities.items()
        for side, when in enumerate(("before", "after"))
        for member in range(values.shape[1])
        for label in range(values.shape[2])
    ]
    reading = (
        "On top a training image, the perturbed one, and their difference made visible. Below, left before"
        " and right after the perturbation: a row for each member, a column for each class, the fuller the"
        " more probable. Rows that are alike say the same; the perturbation should make the teachers' rows"
        " differ, and a good student's rows differ in the same way."
    )
    if left_out:
        reading += f" Shown are the {len(kept)} best students by NLL that have members; the file has all."
    numbers = Numbers(("example", "model", "when", "member", "class", "probability"), tuple(rows))
    return Chart("members", _TITLE, reading, panels, numbers, tuple(look[m] for m in order), width=SMALL)


def visible_difference(image: Tensor, perturbed: Tensor) -> np.ndarray:
    """Perturbed minus original around mid-grey, the largest change black or white. [h w 3]"""
    change = perturbed.float() - image.float()
    scaled = 0.5 + 0.5 * change / change.abs().max().clamp_min(1e-9)
    return _picture(scaled)


def _picture(image: Tensor) -> np.ndarray:
    """[c h w] in [0, 1] or uint8 → [h w 3] in [0, 1]"""
    pixels = image.float() / 255 if image.dtype.is_floating_point is False else image
    return pixels.expand(3, -1, -1).permute(1, 2, 0).numpy()


def _example(axes: Axes, *, example: Example, order: list[str], look: Mapping[str, Look]) -> None:
    axes.axis("off")
    unit = 1 / _height(len(order))  # one panel's width, as a share of its height
    pictures = {
        "image": _picture(example.image),
        "perturbed": _picture(example.perturbed),
        "difference": visible_difference(example.image, example.perturbed),
    }
    for place, (words, picture) in enumerate(pictures.items()):
        inset = axes.inset_axes((place * 0.345, 1 - 0.31 * unit, 0.31, 0.31 * unit))
        inset.imshow(picture, interpolation="none", aspect="auto")
        _bare(inset)
        inset.set_xlabel(words, fontsize=9.5, labelpad=3)
    for side, words in enumerate(("before", "after")):
        _small(axes, side * 0.52, 1 - 0.475 * unit, words, MUTED.light)
    most = max(values.shape[1] for values in example.probabilities.values())
    for place, model in enumerate(order):
        top = 1 - (0.56 + 0.24 * place) * unit
        _small(axes, 0, top, model, look[model].colour)
        for side in range(2):
            rows = example.probabilities[model][side]
            height = 0.155 * unit * (len(rows) / most) if len(rows) == 1 else 0.155 * unit
            inset = axes.inset_axes((side * 0.52, top - 0.01 * unit - height, 0.48, height))
            tinted = _tinted(rows, look[model])
            inset.imshow(tinted, interpolation="none", aspect="auto")
            _bare(inset)


def _height(models: int) -> float:
    """A panel's height over its width."""
    return 0.56 + 0.24 * models - 0.06


def _small(axes: Axes, x: float, y: float, words: str, colour: str) -> None:
    axes.text(x, y, words, transform=axes.transAxes, va="bottom", size=9.5, color=colour)


def _tinted(values: Tensor, look: Look) -> np.ndarray:
    """Probabilities [m k] as the opacity of a model's colour. → [m k 4]"""
    # Pixels cannot follow the page from light to dark: half-way between its two colours one sees both.
    light, dark = to_rgb(look.ink.light), to_rgb(look.ink.dark)
    tinted = np.empty((*values.shape, 4))
    tinted[..., :3] = [(one + other) / 2 for one, other in zip(light, dark, strict=True)]
    tinted[..., 3] = values.numpy().clip(0, 1)
    return tinted


def _bare(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.8)
