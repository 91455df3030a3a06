"""How figures look: one colour and one marker per method, safe for colour-blind eyes, on light and dark.

Figures are drawn in the light colours. On the page each of them is replaced by a CSS variable, which has
another value where the reader's screen is dark; the files keep the light ones on white.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyphony.report.run import TEACHERS, Run


@dataclass(frozen=True)
class Ink:
    """A colour: its CSS variable, and its value on light and on dark."""

    variable: str
    light: str
    dark: str


TEXT = Ink("--ink", "#1b2330", "#e9edf3")
MUTED = Ink("--muted", "#5a6675", "#9aa7b6")
RULE = Ink("--rule", "#d5dbe3", "#38424f")

# Okabe and Ito's colours, darkened for white paper until each has a contrast of 3 : 1, lightened for dark.
_BY_KIND: dict[str | None, Ink] = {
    None: Ink("--scratch", "#b5568a", "#dd8fb8"),
    "clean": Ink("--clean", "#2f8fc9", "#6fc0f0"),
    "gaussian": Ink("--gaussian", "#00875f", "#36c59a"),
    "ods": Ink("--ods", "#d14f00", "#ff8a4a"),
    "confods": Ink("--confods", "#b98000", "#f0b93a"),
    "adversarial": Ink("--adversarial", "#0b5fa5", "#5b9bea"),
}
_SPARE = (
    Ink("--spare-1", "#6b4fc0", "#a994f5"),
    Ink("--spare-2", "#7a6a1f", "#c9b75a"),
    Ink("--spare-3", "#a03030", "#f08080"),
    Ink("--spare-4", "#4f7a7a", "#8cc4c4"),
    Ink("--spare-5", "#8a4fa0", "#cf9be3"),
    Ink("--spare-6", "#3d6b2f", "#8fcb7c"),
)
INKS = (TEXT, MUTED, RULE, *_BY_KIND.values(), *_SPARE)
# Markers, and the same shapes for the page's legend in a box of 12 by 12.
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
}
_MARKERS = tuple(_SHAPES)


@dataclass(frozen=True)
class Look:
    """How a model is drawn everywhere."""

    label: str
    ink: Ink
    marker: str

    @property
    def colour(self) -> str:
        """Its colour in figures."""
        return self.ink.light

    @property
    def shape(self) -> str:
        """Its marker as an SVG path in a box of 12 by 12."""
        return _SHAPES[self.marker]


def looks(run: Run) -> dict[str, Look]:
    """A look for each model of a run: the perturbation's own colour, a spare one for a second of its kind."""
    return assign([(name, run.perturbation(name)) for name in run.methods])


def assign(methods: Sequence[tuple[str, str | None]]) -> dict[str, Look]:
    """Looks for methods given with their perturbations, and for the teachers."""
    found = {TEACHERS: Look(TEACHERS, TEXT, "o")}
    spare = 0
    taken: set[Ink] = set()
    for place, (name, kind) in enumerate(methods):
        ink = _BY_KIND.get(kind)
        if ink is None or ink in taken:
            ink, spare = _SPARE[spare % len(_SPARE)], spare + 1
        taken.add(ink)
        found[name] = Look(name, ink, _MARKERS[(place + 1) % len(_MARKERS)])
    return found
