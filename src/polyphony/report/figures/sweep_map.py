"""Where the best of a sweep is: cells of a grid, a line over one parameter, or the marks of a search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from polyphony.metrics import MeanSd
from polyphony.recipe.points import PARAMETERS, Value, text_of
from polyphony.report.chart import Absent, Chart, Margins, Panel, spread
from polyphony.report.figures.sweep_cells import LABELS, Cells, Corner, Shade
from polyphony.report.paper import Tuning
from polyphony.report.style import MUTED, TEXT, Ink, Look, assign
from polyphony.report.sweep_run import OTHER, SYMBOLS, SweepRun, Tried
from polyphony.report.tables import Numbers

_TITLE = "Where the best is"


def sweep_map(run: SweepRun) -> Chart | Absent:
    """Calibrated validation NLL over the parameters that were varied."""
    ink = swept_ink(run)
    if not run.varied:
        return Absent(_TITLE, "one point alone was tried.")
    if len(run.varied) == 1:
        return _line_chart(run, run.varied[0], ink)
    return _search_chart(run, ink) if run.is_search else _grid_chart(run, ink)


def swept_ink(run: SweepRun) -> Ink:
    """The colour of the method that was swept."""
    return assign([(run.method, run.perturbation(run.best.name))])[run.method].ink


def paper_map(cells: Sequence[Tuning], words: str, ink: Ink) -> Chart:
    """The paper's own table of hyper-parameters, drawn the same way."""
    alphas, temperatures = (
        sorted({getattr(cell, name) for cell in cells}) for name in ("alpha", "temperature")
    )
    nll: dict[Corner, MeanSd] = {
        (cell.alpha, cell.temperature): MeanSd(
            cell.n, cell.nll, math.nan if cell.nll_sd is None else cell.nll_sd
        )
        for cell in cells
    }
    best = min(nll, key=lambda corner: nll[corner].mean)
    drawn = Cells("alpha", "temperature", alphas, temperatures, nll, best)
    shade = Shade.of(ink, [value.mean for value in nll.values()])
    rows = [
        (cell.alpha, cell.temperature, cell.n, cell.nll, cell.nll_sd, cell.acc, cell.acc_sd) for cell in cells
    ]
    reading = (
        f"Calibrated NLL on validation images of plain distillation, {words}, as the paper prints it"
        f" (n = {cells[0].n}). The heavy frame is its lowest."
    )
    header = ("alpha", "temperature", "n", "nll", "nll_sd", "acc", "acc_sd")
    panels = (drawn.panel("", shade),)
    return Chart("sweep-paper", "What the paper found", reading, panels, Numbers(header, tuple(rows)))


def layout(values: Mapping[str, Sequence[Value]]) -> tuple[str, str, str]:
    """(across, down, panels): the parameter of most values goes down, that of fewest makes the panels.

    Of equals α goes across and τ down, as in the paper's table, and η makes the panels.
    """
    usual = ("temperature", "alpha", "step_size")
    down, across, panels = sorted(usual, key=lambda name: -len(values[name]))
    return across, down, panels


def _grid_chart(run: SweepRun, ink: Ink) -> Chart:
    across, down, third = layout(run.values)
    shade = Shade.of(ink, [each.nll.mean for each in run.tried])
    panels = []
    for value in run.values[third]:
        here = {_corner(each, across, down): each for each in run.tried if each.settings[third] == value}
        cells = Cells(
            across,
            down,
            run.values[across],
            run.values[down],
            {corner: each.nll for corner, each in here.items()},
            next((corner for corner, each in here.items() if each is run.best), None),
            frozenset(corner for corner, each in here.items() if each in run.close),
            next((corner for corner, each in here.items() if each is run.own), None),
        )
        panels.append(cells.panel(_words(third, value), shade))
    return _chart(run, tuple(panels), _cell_reading(run))


def _cell_reading(run: SweepRun) -> str:
    spread = f"mean ± s.d. over {run.best.nll.n} seeds" if run.best.nll.n > 1 else "one seed"
    parts = [
        f"Calibrated NLL on validation images, {spread}: the stronger the shade, the lower.",
        "The heavy frame is the best point"
        + (", thin frames are within one s.d. of it." if run.close else "."),
        "The dot is where the recipe is now." if run.own else "",
    ]
    return " ".join(filter(None, parts))


def _line_chart(run: SweepRun, name: str, ink: Ink) -> Chart:
    looks = (Look("calibrated, which decides", ink, "o"), Look("standard", MUTED, "s"))
    panel = Panel("", partial(_line, run=run, name=name, looks=looks), 1.5, Margins(left=58.0))
    reading = (
        f"NLL on validation images over the {LABELS[name]}, mean and s.d. over seeds; lower is better. The"
        " ring is the best point."
    )
    return _chart(run, (panel,), reading, looks)


def _search_chart(run: SweepRun, ink: Ink) -> Chart:
    shade = Shade.of(ink, [each.nll.mean for each in run.tried])
    pairs = list(itertools.combinations(run.varied, 2))
    panels = tuple(
        Panel(
            f"{SYMBOLS[down]} against {SYMBOLS[across]}",
            partial(_marks, run=run, across=across, down=down, shade=shade),
            1.2,
            Margins(left=58.0, bottom=44.0),
        )
        for across, down in pairs
    )
    reading = (
        "Each mark is a point that the search tried: the stronger its shade, the lower the calibrated NLL on"
        " validation images. The ring is the best"
        + ("; the diamond is where the recipe is now." if run.own else ".")
    )
    return _chart(run, panels, reading)


def _chart(run: SweepRun, panels: tuple[Panel, ...], reading: str, looks: tuple[Look, ...] = ()) -> Chart:
    rows = [
        (
            each.name,
            *(each.settings[name] for name in PARAMETERS),
            each.nll.mean, each.nll.sd, each.scores[OTHER]["nll"].mean, each.scores[OTHER]["nll"].sd,
            each.nll.n, "best" if each is run.best else "within one s.d." if each in run.close else None,
        )
        for each in run.ranked
    ]  # fmt: skip
    header = ("point", *PARAMETERS, "nll", "nll_sd", "standard_nll", "standard_nll_sd", "n", "rank")
    return Chart("sweep-map", _TITLE, reading, panels, Numbers(header, tuple(rows)), looks)


def _corner(each: Tried, across: str, down: str) -> Corner:
    return each.settings[across], each.settings[down]


def _words(name: str, value: Value) -> str:
    return "" if value is None else f"{LABELS[name]} = {text_of(value, name)}"


def _line(axes: Axes, *, run: SweepRun, name: str, looks: Sequence[Look]) -> None:
    order = [next(each for each in run.tried if each.settings[name] == v) for v in run.values[name]]
    places = range(len(order))
    for kind, look in reversed(list(zip(("calibrated", OTHER), looks, strict=True))):
        nll = [each.scores[kind]["nll"] for each in order]
        axes.errorbar(
            places, [value.mean for value in nll], [*map(spread, nll)], color=look.colour, marker=look.marker,
            markersize=5.5, elinewidth=1.3, linewidth=1.5,
        )  # fmt: skip
    best = order.index(run.best)
    axes.plot(best, run.best.nll.mean, "o", markersize=13, fillstyle="none", color=TEXT.light)
    axes.set_xticks(places, [text_of(value, name) for value in run.values[name]])
    axes.set(xlabel=LABELS[name], ylabel="NLL on validation")
    axes.grid(visible=False, axis="x")


def _marks(axes: Axes, *, run: SweepRun, across: str, down: str, shade: Shade) -> None:
    for each in reversed(run.ranked):  # the best on top
        x, y = (_number(each.settings[name], name) for name in (across, down))
        strength = 0.12 + 0.88 * shade.strength(each.nll.mean)
        axes.plot(x, y, "o", markersize=9, color=shade.ink.light, alpha=strength, markeredgewidth=0)
        if each is run.best:
            axes.plot(x, y, "o", markersize=15, fillstyle="none", color=TEXT.light)
        if each is run.own:
            axes.plot(x, y, "D", markersize=13, fillstyle="none", color=TEXT.light)
    axes.set(xscale=_scale(across), yscale=_scale(down))
    for axis, name in ((axes.xaxis, across), (axes.yaxis, down)):
        if _scale(name) == "log":
            axis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 3.0, 5.0)))
            axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    units = {"step_size": "step size η × 255"}
    axes.set(xlabel=units.get(across, LABELS[across]), ylabel=units.get(down, LABELS[down]))


def _scale(name: str) -> str:
    return "linear" if name == "alpha" else "log"


def _number(value: Value, name: str) -> float:
    number = value if isinstance(value, float) else math.nan
    return 255 * number if name == "step_size" else number
