"""Several runs → one page: the same scores side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes

from polyphony.metrics import MeanSd
from polyphony.report.chart import BESIDE, MEDIUM, SMALL, Chart, Panel, spread
from polyphony.report.page import render
from polyphony.report.provenance import one_line, provenance
from polyphony.report.run import Run
from polyphony.report.style import Look, assign
from polyphony.report.summary import kept, scored_text
from polyphony.report.tables import Cell, Numbers, Table
from polyphony.scores import HEADINGS, TEACHERS

_SHOWN = {
    "nll": "calibrated NLL ↓",
    "dee": "DEE ↑",
    "kld": "mean-KLD (diversity)",
}


@dataclass(frozen=True)
class Compared:
    """A model's score in one run."""

    run: str
    model: str
    value: MeanSd


def comparison_page(runs: Sequence[Run]) -> str:
    """The page that compares runs."""
    names = labels(runs)
    methods = dict.fromkeys((method, run.perturbation(method)) for run in runs for method in run.methods)
    look = assign(list({name: (name, kind) for name, kind in methods}.values()))
    return render(
        "comparison.html",
        title=", ".join(names),
        table=comparison_table(runs, names),
        chart=comparison_chart(runs, names, look),
        warnings=warnings(runs),
        runs=[(name, one_line(run), provenance(run)) for name, run in zip(names, runs, strict=True)],
    )


def labels(runs: Sequence[Run]) -> list[str]:
    """A name for each run: its recipe's, or its folder's where two have the same recipe."""
    names = [run.name for run in runs]
    folders = [run.folder.resolve().name for run in runs]
    if len(set(names)) == len(runs):
        return names
    return folders if len(set(folders)) == len(runs) else [str(run.folder) for run in runs]


def warnings(runs: Sequence[Run]) -> list[str]:
    """What makes the runs' numbers hard to compare."""
    said = []
    if len({str(run.facts.data.get("test")) for run in runs}) > 1:
        said.append("These runs were tested on different images: their scores cannot be compared directly.")
    if len({run.teacher_count for run in runs}) > 1:
        said.append("Their DEE curves have different numbers of teachers, so “>N” means different things.")
    return said


def comparison_table(runs: Sequence[Run], names: Sequence[str]) -> Table:
    """All models of all runs in one table, calibrated."""
    rows = [
        (
            Cell(f"{name}: {model}"),
            Cell(f"{run.scored(model)[0].params:,}"),
            *(Cell(scored_text(run, model, column, "calibrated")) for column in HEADINGS),
            Cell(_share(run, model)),
            Cell(str(len(run.seeds(model)))),
        )
        for name, run in zip(names, runs, strict=True)
        for model in run.models
    ]
    header = ("Run: model", "Parameters", *HEADINGS.values(), "of teachers' KLD", "n")
    caption = "Test scores at the temperature fitted on validation; mean ± s.d. over n seeds."
    return Table("comparison", caption, header, tuple(rows))


def _share(run: Run, model: str) -> str:
    share = None if model == TEACHERS else kept(run, model)
    return f"{share:.0%}" if share else "–"


def comparison_chart(runs: Sequence[Run], names: Sequence[str], look: Mapping[str, Look]) -> Chart:
    """NLL, DEE and mean-KLD: a column for each run, a mark for each model."""
    found = {
        column: [
            Compared(name, model, run.mean(model, column))
            for name, run in zip(names, runs, strict=True)
            for model in run.models
        ]
        for column in _SHOWN
    }
    panels = tuple(
        Panel(words, partial(_marks, found=found[column], names=names, look=look), 1.15)
        for column, words in _SHOWN.items()
    )
    rows = [
        (column, each.run, each.model, each.value.mean, each.value.sd, each.value.n)
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
        place, drawn = names.index(each.run) + offset, look[each.model]
        axes.errorbar(
            place, each.value.mean, spread(each.value), color=drawn.colour, marker=drawn.marker,
            markersize=6.5, linestyle="", elinewidth=1.4,
        )  # fmt: skip
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xticks(range(len(names)), [_short(name) for name in names], rotation=20, ha="right")
    axes.grid(visible=False, axis="x")


def _short(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:17]}…"
