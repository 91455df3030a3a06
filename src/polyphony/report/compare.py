"""Several runs → one page: the same scores side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from matplotlib.axes import Axes

from polyphony.metrics import MeanSd
from polyphony.report.chart import BESIDE, MEDIUM, SMALL, Chart, Panel, spread
from polyphony.report.differences import difference_chart, difference_table
from polyphony.report.page import Report, render
from polyphony.report.pool import Pool, differences, pools
from polyphony.report.provenance import one_line, provenance
from polyphony.report.run import Run
from polyphony.report.style import Look, assign
from polyphony.report.tables import Cell, Numbers, Table
from polyphony.scores import HEADINGS, TEACHERS

_SHOWN = {
    "nll": "calibrated NLL ↓",
    "dee": "DEE ↑",
    "kld": "mean-KLD (diversity)",
}


@dataclass(frozen=True)
class Compared:
    """A model's score in one study."""

    study: str
    model: str
    value: MeanSd


def comparison(runs: Sequence[Run]) -> Report:
    """The page that compares runs, and its figures and tables; sets of teachers of one study are one."""
    studies = pools(runs)
    methods = {name: study.first.perturbation(name) for study in studies for name in study.methods}
    look = assign(list(methods.items()))
    tables = [comparison_table(studies)]
    charts = [comparison_chart(studies, look)]
    if found := [each for study in studies for each in differences(study)]:
        tables.append(difference_table(found))
        charts.append(difference_chart(found, look))
    html = render(
        "comparison.html",
        title=", ".join(study.name for study in studies),
        tables=tables,
        charts=charts,
        warnings=warnings(studies),
        runs=[
            (
                f"{study.name}: {run.folder}" if len(study.runs) > 1 else study.name,
                one_line(run),
                provenance(run),
            )
            for study in studies
            for run in study.runs
        ],
    )
    return Report(html, (*tables, *charts))


def warnings(studies: Sequence[Pool]) -> list[str]:
    """What makes the studies' numbers hard to compare."""
    said = []
    if len({tuple(str(run.facts.data.get("test")) for run in study.runs) for study in studies}) > 1:
        said.append("They were tested on different images: their scores cannot be compared directly.")
    if len({study.first.teacher_count for study in studies}) > 1:
        said.append("Their DEE curves have different numbers of teachers, so “>N” means different things.")
    return said


def comparison_table(studies: Sequence[Pool]) -> Table:
    """All models of all studies in one table, calibrated."""
    rows = [
        (
            Cell(f"{study.name}: {model}"),
            Cell(f"{study.first.scored(model)[0].params:,}"),
            *(Cell(study.text(model, column)) for column in HEADINGS),
            Cell(study.text(model, "nll", "standard")),
            Cell(_share(study, model)),
            Cell(str(len(study.scored(model)))),
        )
        for study in studies
        for model in study.models
    ]
    header = ("Run: model", "Parameters", *HEADINGS.values(), "NLL, as predicted ↓", "of teachers' KLD", "n")
    caption = (
        "Test scores at the temperature fitted on validation, and NLL without it; mean ± s.d. over n seeds,"
        " in all sets of teachers where a study has several."
    )
    return Table("comparison", caption, header, tuple(rows))


def _share(study: Pool, model: str) -> str:
    shares = {} if model == TEACHERS else study.kept(model)
    return f"{fmean(shares.values()):.0%}" if any(shares.values()) else "–"


def comparison_chart(studies: Sequence[Pool], look: Mapping[str, Look]) -> Chart:
    """NLL, DEE and mean-KLD: a column for each study, a mark for each model."""
    names = [study.name for study in studies]
    found = {
        column: [
            Compared(study.name, model, study.mean(model, column))
            for study in studies
            for model in study.models
        ]
        for column in _SHOWN
    }
    panels = tuple(
        Panel(words, partial(_marks, found=found[column], names=names, look=look), 1.15)
        for column, words in _SHOWN.items()
    )
    rows = [
        (column, each.study, each.model, each.value.mean, each.value.sd, each.value.n)
        for column, values in found.items()
        for each in values
    ]
    numbers = Numbers(("score", "run", "model", "mean", "sd", "n"), tuple(rows))
    reading = (
        "Marks are means over seeds, bars one standard deviation; a run's marks stand in one column."
        " A DEE past the curve of teachers has no mark."
    )
    shown = tuple(look.values())
    width = SMALL if len(shown) <= BESIDE else MEDIUM  # a legend above them leaves room for larger panels
    return Chart("comparison", "Side by side", reading, panels, numbers, shown, width=width)


def _marks(axes: Axes, *, found: Sequence[Compared], names: Sequence[str], look: Mapping[str, Look]) -> None:
    order = list(look)
    for each in found:
        if not math.isfinite(each.value.mean):
            continue
        offset = (order.index(each.model) - (len(order) - 1) / 2) * 0.7 / len(order)
        place, drawn = names.index(each.study) + offset, look[each.model]
        axes.errorbar(
            place, each.value.mean, spread(each.value), color=drawn.colour, marker=drawn.marker,
            markersize=6.5, linestyle="", elinewidth=1.4,
        )  # fmt: skip
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xticks(range(len(names)), [_short(name) for name in names], rotation=20, ha="right")
    axes.grid(visible=False, axis="x")


def _short(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:17]}…"
