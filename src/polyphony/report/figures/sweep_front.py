"""Quality against diversity: the points of a sweep that no other beats in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from polyphony.recipe.points import PARAMETERS
from polyphony.report.chart import Absent, Chart, Panel, spread
from polyphony.report.figures.sweep_map import ROOMY, swept_ink
from polyphony.report.style import MUTED, TEXT, Ink, Look
from polyphony.report.sweep_run import SweepRun, Tried, front
from polyphony.report.tables import Numbers, PageTable
from polyphony.runs.scores import HEADINGS, TEACHERS, mean_text

At = tuple[float, float]  # NLL, and mean-KLD
_TITLE = "Quality against diversity"
_NUMBER: dict[str, Any] = {"textcoords": "offset points", "size": 10.5, "weight": "bold", "color": TEXT.light}
_ROOM = 4.0  # the axes may be so many times as long as the points need, to have the teachers on them


def sweep_front(run: SweepRun) -> list[Chart | PageTable | Absent]:
    """Calibrated validation NLL against mean-KLD, the front marked, and a table of the front."""
    points = [each for each in run.tried if math.isfinite(each.nll.mean) and math.isfinite(each.kld.mean)]
    if len(points) < 2 or not any(each.kld.mean for each in points):
        return [Absent(_TITLE, "it takes two points whose members differ.")]
    best, ink = front(points), swept_ink(run)
    shown = run.teachers if run.teachers and near(run.teachers, points) else None
    looks = [Look("on the front", ink, "o"), Look("beaten in both", MUTED, "o")]
    looks += [Look(TEACHERS, TEXT, "D")] if shown else []
    panel = Panel("", partial(_draw, points=points, best=best, ink=ink, teachers=shown), 1.5, ROOMY)
    chart = Chart("sweep-front", _TITLE, _reading(run, shown), [panel], _numbers(run, best), looks)
    return [chart, _front_table(best)]


def near(teachers: At, points: Sequence[Tried]) -> bool:
    """Whether axes long enough for the teachers would still tell the points apart."""
    needed = zip(*((each.nll.mean, each.kld.mean) for each in points), strict=True)
    for value, own in zip(teachers, needed, strict=True):
        if max(*own, value) - min(*own, value) > _ROOM * (max(own) - min(own)):
            return False
    return True


def _reading(run: SweepRun, shown: At | None) -> str:
    there = ""
    if run.teachers and not shown:
        there = f" The teachers are outside, at {run.teachers[1]:.3f} and {run.teachers[0]:.3f}."
    return (
        "Lower is better, and further right the members differ more. The numbered points are the front: no"
        " other has both a lower NLL and a higher mean-KLD. Bars are one s.d. over seeds. Diversity is not a"
        f" goal in itself: of points level in NLL, take one as diverse as the teachers.{there}"
    )


def _numbers(run: SweepRun, best: Sequence[Tried]) -> Numbers:
    rows = []
    for each in run.ranked:
        place = best.index(each) + 1 if each in best else None
        scores = [each.kld.mean, each.kld.sd, each.nll.mean, each.nll.sd]
        rows.append([each.name, *each.settings.values(), *scores, place])
    return Numbers(["point", *PARAMETERS, "kld", "kld_sd", "nll", "nll_sd", "place_on_front"], rows)


def _front_table(best: Sequence[Tried]) -> PageTable:
    caption = "The front, from the least NLL to the most diverse; mean ± s.d. over seeds, validation images."
    rows = [
        [f"{place}: {each.words}", mean_text("nll", each.nll), mean_text("kld", each.kld)]
        for place, each in enumerate(best, 1)
    ]
    return PageTable.of("sweep-front", caption, ["Point", HEADINGS["nll"], HEADINGS["kld"]], rows)


def _draw(axes: Axes, *, points: list[Tried], best: list[Tried], ink: Ink, teachers: At | None) -> None:
    for each in points:
        if each not in best:
            _mark(axes, each, MUTED.light, 0.55)
    if len(best) > 1:
        line = [each.kld.mean for each in best], [each.nll.mean for each in best]
        axes.plot(*line, color=ink.light, linewidth=1.2, alpha=0.7)
    for place, each in enumerate(best, 1):
        _mark(axes, each, ink.light, 1.0)
        aside = (7, -12) if place % 2 else (-13, 5)  # the front rises to the right: both sides are free
        axes.annotate(str(place), (each.kld.mean, each.nll.mean), aside, **_NUMBER)
    if teachers:
        axes.axvline(teachers[1], color=TEXT.light, linewidth=1.0, linestyle=(0, (4, 3)), alpha=0.6)
        axes.plot(teachers[1], teachers[0], "D", color=TEXT.light, markersize=6.5)
    axes.margins(0.09, 0.12)
    axes.set(xlabel="mean-KLD (diversity)", ylabel="calibrated NLL on validation")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_locator(MaxNLocator(5))


def _mark(axes: Axes, each: Tried, colour: str, alpha: float) -> None:
    at, up, across = (each.kld.mean, each.nll.mean), spread(each.nll), spread(each.kld)
    axes.errorbar(*at, up, across, color=colour, linestyle="", elinewidth=1.0, alpha=0.5 * alpha)
    axes.plot(*at, "o", color=colour, markersize=6.5, markeredgewidth=0, alpha=alpha)
