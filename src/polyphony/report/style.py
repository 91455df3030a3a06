"""How figures look: a colour and a marker for each method, safe for colour-blind readers, on light and dark.

Figures are drawn in the light colours. On the page a CSS variable replaces each of them; its value is another
on a dark screen. Files keep the light colours on white.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from typing import Any

from polyphony.runs.run import Run
from polyphony.runs.scores import BEST_TEACHER, TEACHERS


@dataclass(frozen=True)
class Ink:
    """A colour: its CSS variable, and its value on light and on dark."""

    variable: str
    light: str
    dark: str


TEXT = Ink("--ink", "#1b2330", "#e9edf3")
MUTED = Ink("--muted", "#5a6675", "#9aa7b6")
RULE = Ink("--rule", "#d5dbe3", "#38424f")

# Okabe and Ito's colours, darkened on white (lightened on dark) until each has a contrast of 3 : 1. Each
# further colour is the farthest, in OKLab, from all before it.
_BY_KIND: dict[str | None, Ink] = {
    None: Ink("--scratch", "#b5568a", "#dd8fb8"),
    "clean": Ink("--clean", "#2f8fc9", "#6fc0f0"),
    "gaussian": Ink("--gaussian", "#00875f", "#36c59a"),
    "ods": Ink("--ods", "#d14f00", "#ff8a4a"),
    "confods": Ink("--confods", "#b98000", "#f0b93a"),
    "adversarial": Ink("--adversarial", "#0b5fa5", "#5b9bea"),
    "mixup": Ink("--mixup", "#275108", "#8be57f"),
    "diversify": Ink("--diversify", "#9767f2", "#b47efa"),
}
_SPARE = (
    Ink("--spare-1", "#770366", "#f5b3fa"),
    Ink("--spare-2", "#7d3317", "#ba8464"),
    Ink("--spare-3", "#bd0a3d", "#f9667c"),
    Ink("--spare-4", "#7a710d", "#9aa80c"),
    Ink("--spare-5", "#1f0e99", "#bccdf2"),
    Ink("--spare-6", "#9e299e", "#e482ed"),
    Ink("--spare-7", "#570823", "#febab1"),
    Ink("--spare-8", "#642bb4", "#a085b8"),
)
INKS = (TEXT, MUTED, RULE, *_BY_KIND.values(), *_SPARE)
# Matplotlib's markers, and the same shapes as SVG paths in a box of 12 by 12, for the page's legend.
_SHAPES = {
    "o": "M6 1a5 5 0 1 0 0 10a5 5 0 1 0 0-10z",
    "s": "M1.5 1.5h9v9h-9z",
    "^": "M6 1l5.2 9.6h-10.4z",
    "D": "M6 0.5l5.5 5.5l-5.5 5.5l-5.5-5.5z",
    "v": "M6 11l5.2-9.6h-10.4z",
    "P": "M4 1h4v3h3v4h-3v3h-4v-3h-3v-4h3z",
    "X": "M1 3.5L3.5 1L6 3.5L8.5 1L11 3.5L8.5 6L11 8.5L8.5 11L6 8.5L3.5 11L1 8.5L3.5 6z",
    "<": "M1 6l9.6-5.2v10.4z",
    ">": "M11 6l-9.6-5.2v10.4z",
    "p": "M6 0.8L11.2 4.6L9.2 10.8H2.8L0.8 4.6z",
    "*": "M6.0 0.6L7.5 4.4L11.5 4.6L8.4 7.2L9.4 11.1L6.0 8.9L2.6 11.1L3.6 7.2L0.5 4.6L4.5 4.4z",
    "h": "M6 0.5L10.8 3.2V8.8L6 11.5L1.2 8.8V3.2z",
    "d": "M6 0.3L9.4 6L6 11.7L2.6 6z",
}
_MARKERS = tuple(_SHAPES)


@dataclass(frozen=True)
class Look:
    """How a model is drawn in every figure."""

    label: str
    ink: Ink
    marker: str

    @property
    def colour(self) -> str:
        return self.ink.light

    @property
    def mark(self) -> dict[str, Any]:
        """Its colour and marker as keyword arguments for matplotlib."""
        return {"color": self.colour, "marker": self.marker}

    @property
    def shape(self) -> str:
        """Its marker as an SVG path in a box of 12 by 12."""
        return _SHAPES[self.marker]


Looks = Mapping[str, Look]  # by model


def assign(methods: Sequence[tuple[str, str | None]]) -> dict[str, Look]:
    """Different looks for the teachers and for methods, which are given with their perturbations.

    The first method with a perturbation gets the colour of the perturbation; the others get spare colours.
    """
    own: dict[str | None, Ink] = {}
    for _, kind in sorted(methods, key=lambda method: method[1] not in _BY_KIND):
        if kind not in own and (free := [ink for ink in _preferred(kind) if ink not in own.values()]):
            own[kind] = free[0]
    inks = (*_SPARE, *_BY_KIND.values())
    spare = chain([ink for ink in inks if ink not in own.values()], cycle(inks))
    looks = {TEACHERS: Look(TEACHERS, TEXT, "o"), BEST_TEACHER: Look(BEST_TEACHER, TEXT, "s")}
    for place, (name, kind) in enumerate(methods, 1):
        ink, turn = own.pop(kind) if kind in own else next(spare), place % len(_MARKERS)
        used = {look.marker for look in looks.values() if look.ink == ink}
        markers = [marker for marker in _MARKERS[turn:] + _MARKERS[:turn] if marker not in used]
        looks[name] = Look(name, ink, markers[0] if markers else _MARKERS[turn])
    return looks


def looks_of(run: Run) -> dict[str, Look]:
    """The look of each model of a run."""
    return assign([(name, run.perturbation(name)) for name in run.methods])


def _preferred(kind: str | None) -> Sequence[Ink]:
    """Colours for a perturbation, best first: its own, or spare ones that start at a hash of its name."""
    if kind in _BY_KIND:
        return [_BY_KIND[kind]]
    first = zlib.crc32(str(kind).encode()) % len(_SPARE)
    return _SPARE[first:] + _SPARE[:first]
