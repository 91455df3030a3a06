"""The page of a sweep: the best point, one map and one table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes

from polyphony._util.text import counted
from polyphony.recipe.points import PARAMETERS, Value, text_of
from polyphony.report.chart import MEDIUM, Absent, Chart, Margins, Panel, spread
from polyphony.report.page import Report, Section, render
from polyphony.report.paper import PaperExperiments, Tuning, experiments_of, tuning
from polyphony.report.provenance import provenance
from polyphony.report.style import TEXT, Ink, assign
from polyphony.report.sweep_run import OTHER, SYMBOLS, ScoredPoint, SweepRun, in_words
from polyphony.report.tables import DASH, Cell, Numbers, PageTable
from polyphony.report.verdict import Verdict
from polyphony.runs.scores import HEADINGS, JUDGE, mean_text

MOST_ROWS = 40  # most points in the page's table; sweep.csv has all
_TITLE = "Where the best point is"
_LABELS = {"alpha": "weight α", "temperature": "temperature τ", "step_size": "step size η"}
_MARGINS = Margins(left=64.0, bottom=44.0)  # room for labels with three digits
_ROW = 46.0  # height of a row of a grid in points
_STRONGEST, _FAINTEST = 0.5, 0.06  # opacities: text on the strongest still has a contrast of 4.5 : 1
_MOST_COLUMNS = 8  # in a wider grid the squares are too small to write the NLL on them
_NO_TEST_IMAGES = (
    "Calibrated NLL decides, as in the paper’s own tables. No test image was used. The best of many noisy"
    " numbers looks better than it is: to know the test scores of a point, train it in a separate study."
)


def sweep_report(run: SweepRun) -> Report:
    """The page of a sweep, and its figures and tables."""
    paper = experiments_of(run.recipe, run.sweep.recipe, free=PARAMETERS)  # points differ in α, τ and η
    printed = [cell for cell in tuning() if paper and cell.experiment in paper.names]
    section = Section("Points", "points", [sweep_map(run), sweep_table(run, printed)])
    teachers = "" if run.teachers_nll is None else f" The teachers have {run.teachers_nll:.3f}."
    sentence = (
        f"Of {len(run.points)} points, {run.best.words} has the lowest calibrated NLL on validation images:"
        f" {mean_text('nll', run.best.nll)}.{teachers}"
    )
    html = render(
        "sweep.html",
        title=f"{run.sweep.recipe}: sweep of {run.method}",
        subtitle=_subtitle(run),
        verdict=Verdict(sentence, (), (), {}),
        notes=notes(run),
        line=run.line(run.best),
        sections=[section],
        paper=_paper_note(run, paper) if paper and printed else "",
        provenance=provenance(run),
    )
    return Report(html, section.present)


def _subtitle(run: SweepRun) -> str:
    """The line under the title: the data, the number of points and seeds, and the settings of all points."""
    how = "proposed by optuna" if run.is_search else "of a grid"
    fixed = in_words({k: v for k, v in run.best.settings.items() if k not in run.varied})
    points, seeds = counted(len(run.points), "point"), counted(run.best.nll.n, "seed")
    constant = f"; {fixed} for all" if fixed and run.varied else ""
    return f"{run.recipe.data.label}: {points} {how}, {seeds} each{constant}."


def _paper_note(run: SweepRun, paper: PaperExperiments) -> str:
    """What the paper's numbers are for, and how its experiment differs from this sweep."""
    other = [] if run.perturbation(run.best.name) == "clean" else [f"here {run.method} was swept"]
    departures = "; ".join([*other, *paper.departures])
    only = f" They are for orientation only: {departures}." if departures else ""
    return f"The paper’s numbers are of plain distillation, {paper.words}.{only}"


def notes(run: SweepRun) -> list[str]:
    """How certain the best point is, and what to do next."""
    lines, own, best = [_certainty(run)], run.recipe_point, run.best
    if own is best:
        lines.append("The recipe already has the settings of the best point.")
    elif own:
        gain = own.nll.mean - best.nll.mean
        lines.append(f"The recipe as it is, {own.words}, has {mean_text('nll', own.nll)}: {gain:.3f} more.")
    lines += _edges(run)
    standard = min(run.points, key=lambda point: point.scores[OTHER]["nll"].mean)
    if standard is best:
        lines.append("It also has the lowest NLL without temperature scaling.")
    else:
        value = mean_text("nll", standard.scores[OTHER]["nll"])
        lines.append(f"Without temperature scaling the best point is {standard.words} ({value}).")
    if run.diverged:
        lines.append(f"Left out, because the loss became NaN: {', '.join(run.diverged)}.")
    return [*lines, _NO_TEST_IMAGES]


def _certainty(run: SweepRun) -> str:
    """Which other points are within one standard deviation of the best."""
    if math.isnan(run.best.nll.sd):
        return "Every point was trained once: differences may be chance. Use several seeds."
    if not run.close:
        return "No other point is within one standard deviation of it."
    names = "; ".join(point.words for point in run.close[:4])
    more = f"; and {len(run.close) - 4} more" if len(run.close) > 4 else ""
    return f"Within one standard deviation of it: {names}{more}."


def _edges(run: SweepRun) -> list[str]:
    """A note for each parameter whose best value is at an edge of the grid."""
    lines = []
    for name in [] if run.is_search else run.varied:
        numbers = [value for value in run.values[name] if isinstance(value, float)]
        value = run.best.settings[name]
        nothing_beyond = name == "alpha" and value in (0.0, 1.0)
        at_edge = isinstance(value, float) and not run.is_inside(name, value)
        if len(numbers) > 1 and at_edge and not nothing_beyond:
            side = "largest" if value == numbers[-1] else "smallest"
            best = f"{SYMBOLS[name]}, {text_of(value, name)},"
            lines.append(f"The best {best} is the {side} value tried: try values beyond it.")
    return lines


def sweep_table(run: SweepRun, printed: list[Tuning]) -> PageTable:
    """The points, best first, with the paper's numbers at the same settings."""
    rest = f", the best {MOST_ROWS} of {len(run.ranked)}" if len(run.ranked) > MOST_ROWS else ""
    caption = (
        f"Scores on validation images, mean ± s.d. over n = {run.best.nll.n} seeds, best first{rest}. Scores"
        " are at the temperature fitted on these images, except the standard NLL and mean-KLD. Bold: within"
        " one standard deviation of the best."
    )
    rows = [_row(run, place, point, printed) for place, point in enumerate(run.ranked[:MOST_ROWS], 1)]
    return PageTable.from_rows("sweep", caption, rows)


def _row(run: SweepRun, place: int, point: ScoredPoint, printed: list[Tuning]) -> dict[str, Cell | str]:
    settings = (point.settings["alpha"], point.settings["temperature"])
    paper = next((cell for cell in printed if (cell.alpha, cell.temperature) == settings), None)
    close, nll = point is run.best or point in run.close, HEADINGS["nll"]
    texts = {column: mean_text(column, score) for column, score in point.scores[JUDGE].items()}
    return {
        "": str(place),
        **{SYMBOLS[name]: text_of(value, name) or DASH for name, value in point.settings.items()},
        nll: Cell(texts["nll"], close, paper.nll if paper else ""),
        f"standard {nll}": mean_text("nll", point.scores[OTHER]["nll"]),
        HEADINGS["acc"]: Cell(texts["acc"], paper=paper.acc if paper else ""),
        **{HEADINGS[column]: texts[column] for column in ("bs", "ece", "kld")},
    }


def sweep_map(run: SweepRun) -> Chart | Absent:
    """Calibrated validation NLL over the parameters that were varied."""
    if not run.varied:
        return Absent(_TITLE, "only one point was tried.")
    grid = not run.is_search and len(run.varied) > 1
    shade = ". A stronger colour is a lower NLL" if grid else "; lower is better"
    own = " The diamond is the recipe’s own point." if run.recipe_point else ""
    reading = f"Calibrated NLL on validation images, mean over seeds{shade}. The ring is the best point.{own}"
    ink = assign([(run.method, run.perturbation(run.best.name))])[run.method].ink
    slices = [Panel("", partial(_slice, run=run, name=name, ink=ink), 1.4, _MARGINS) for name in run.varied]
    panels = _grid(run, ink) if grid else slices
    return Chart("sweep-map", _TITLE, reading, panels, _numbers(run))


def _numbers(run: SweepRun) -> Numbers:
    rows = []
    for point in run.ranked:
        other = point.scores[OTHER]["nll"]
        scores = [point.nll.mean, point.nll.sd, other.mean, other.sd, point.nll.n]
        rows.append([point.name, *point.settings.values(), *scores])
    return Numbers(["point", *PARAMETERS, "nll", "nll_sd", "standard_nll", "standard_nll_sd", "n"], rows)


def _slice(axes: Axes, *, run: SweepRun, name: str, ink: Ink) -> None:
    """NLL against one parameter, whose values are evenly spaced."""
    values = run.values[name]
    for point in run.points:
        x = values.index(point.settings[name])
        axes.errorbar(x, point.nll.mean, spread(point.nll), color=ink.light, marker="o", elinewidth=1.2)
        _ring(axes, run, point, (x, point.nll.mean), 7)
    ticks = range(0, len(values), math.ceil(len(values) / 8))
    axes.set_xticks(list(ticks), [text_of(values[tick], name) for tick in ticks])
    axes.set(xlabel=_LABELS[name], ylabel="calibrated NLL")
    axes.grid(visible=False, axis="x")


def _ring(axes: Axes, run: SweepRun, point: ScoredPoint, at: tuple[float, float], size: float) -> None:
    """Draw a ring around the best point, a diamond around the recipe's own."""
    for special, marker in ((run.best, "o"), (run.recipe_point, "D")):
        if point is special:
            axes.plot(*at, marker, markersize=size + 7, fillstyle="none", color=TEXT.light)


def _grid(run: SweepRun, ink: Ink) -> list[Panel]:
    """Squares over two parameters, a panel for each value of the third."""
    across, down, third = layout(run.values)
    aspect = MEDIUM / (len(run.values[down]) * _ROW + _MARGINS.bottom + _MARGINS.top)
    panels = []
    for value in run.values[third]:
        points = [point for point in run.points if point.settings[third] == value]
        title = "" if value is None else f"{SYMBOLS[third]} = {text_of(value, third)}"
        draw = partial(_squares, run=run, points=points, across=across, down=down, ink=ink)
        panels.append(Panel(title, draw, aspect, _MARGINS))
    return panels


def layout(values: Mapping[str, Sequence[Value]]) -> tuple[str, str, str]:
    """The parameters of the columns, of the rows and of the panels of a grid.

    The rows have the parameter with the most values, the panels that with the fewest. If numbers are equal, α
    has the columns and τ the rows, as in the paper's table, and η the panels.
    """
    order = ("temperature", "alpha", "step_size")
    down, across, panels = sorted(order, key=lambda name: -len(values[name]))
    return across, down, panels


def _squares(
    axes: Axes, *, run: SweepRun, points: Sequence[ScoredPoint], across: str, down: str, ink: Ink
) -> None:
    columns, rows = run.values[across], run.values[down]
    shades = dict(zip(run.methods, strengths([point.nll.mean for point in run.points]), strict=True))
    size = min(40.0, 230.0 / len(columns))
    for point in points:
        at = (columns.index(point.settings[across]), rows.index(point.settings[down]))
        alpha = _FAINTEST + (_STRONGEST - _FAINTEST) * shades[point.name]
        axes.plot(*at, "s", markersize=size, color=ink.light, alpha=alpha, markeredgewidth=0)
        _ring(axes, run, point, at, size)
        if len(columns) <= _MOST_COLUMNS:
            axes.text(*at, f"{point.nll.mean:.3f}", ha="center", va="center", color=TEXT.light, size=10)
    axes.set_xticks(range(len(columns)), [text_of(value, across) for value in columns])
    axes.set_yticks(range(len(rows)), [text_of(value, down) for value in rows])
    axes.set(xlim=(-0.7, len(columns) - 0.3), ylim=(len(rows) - 0.3, -0.7))
    axes.set(xlabel=_LABELS[across], ylabel=_LABELS[down])
    axes.grid(visible=False)


def strengths(values: Sequence[float]) -> list[float]:
    """The strength of the colour of each NLL: 1 for the best, 0 for the worst.

    It is also 0 for an NLL more than four times as far from the best as the median, so that one failed point
    does not give all others the same colour.
    """
    finite = [value for value in values if math.isfinite(value)]
    best, worst, median = min(finite), max(finite), statistics.median(finite)
    worst = min(worst, best + 4 * (median - best)) if median > best else worst
    if worst <= best:
        return [1.0] * len(values)
    return [min(1.0, max(0.0, (worst - value) / (worst - best))) for value in values]
