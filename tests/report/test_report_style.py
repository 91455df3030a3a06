from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

from polyphony.report.style import INKS, RULE, Ink, assign

KINDS = [None, "clean", "gaussian", "ods", "confods", "adversarial", "mixup", "diversify", *8 * ["other"]]
PAPER = re.findall(
    r"--paper: (#[0-9a-f]{6})", (files("polyphony.report") / "templates/base.html").read_text()
)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ink", [ink for ink in INKS if ink != RULE], ids=lambda ink: ink.variable)
def test_every_colour_stands_out_on_light_and_on_dark(ink: Ink):
    light, dark = PAPER
    assert contrast(ink.light, light) >= 3
    assert contrast(ink.dark, dark) >= 3


def oklab(colour: str) -> np.ndarray:
    """A colour in OKLab, a perceptually uniform space (Ottosson 2020)."""
    channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    cones = np.array(
        [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
    ) @ linear  # fmt: skip
    opponents = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    return np.array(opponents) @ np.cbrt(cones)


@pytest.mark.parametrize("side", ["light", "dark"])
def test_any_two_methods_have_distinguishable_colours(side: str):
    inks = [look.ink for look in assign([(str(place), kind) for place, kind in enumerate(KINDS)]).values()]
    assert len(set(inks)) == 17  # the teachers and the best of them have one colour
    colours = [oklab(getattr(ink, side)) for ink in set(inks)]
    nearest = min(np.linalg.norm(one - other) for one, other in combinations(colours, 2))
    assert nearest > 0.08


def test_methods_of_one_perturbation_look_different():
    looks = assign([("a", "ods"), ("b", "ods"), ("c", None), ("d", "unheard-of"), ("e", "clean")])
    assert len({look.ink for look in looks.values()}) == 6
    assert len({look.marker for look in looks.values()}) == 6


def test_a_users_own_perturbation_has_the_same_colour_in_every_run():
    alone = assign([("mine", "my_module:Twist")])["mine"].ink
    others = [(str(place), kind) for place, kind in enumerate([None, "ods", "ods", "clean", "mixup"])]
    assert assign([*others, ("mine", "my_module:Twist")])["mine"].ink == alone
    assert assign([("called-otherwise", "my_module:Twist"), *others])["called-otherwise"].ink == alone


def test_no_two_of_many_methods_look_the_same():
    for kinds in ([None, "clean", "gaussian", "ods"], [f"own-{place}" for place in range(20)]):
        looks = assign([(f"{kind}-{place}", kind) for kind in kinds for place in range(8)])
        assert len({(look.ink, look.marker) for look in looks.values()}) == len(looks)


def test_looks_repeat_if_there_are_too_many_methods():
    assert len(assign([(str(place), None) for place in range(300)])) == 302


def test_no_colour_is_another_ones_stand_in():
    assert len({ink.light for ink in INKS}) == len({ink.variable for ink in INKS}) == len(INKS)
