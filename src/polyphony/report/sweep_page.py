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
from polyphony.report.sweep_run import OTHER, SYMBOLS, SweepRun, Tried, in_words
from polyphony.report.tables import DASH, Cell, Numbers, PageTable
from polyphony.report.verdict import Verdict
from polyphony.runs.scores import HEADINGS, JUDGE, mean_text

MOST_ROWS = 40  # points in the page's table; sweep.csv has them all
_TITLE = "Where the best point is"
_LABELS = {"alpha": "weight α", "temperature": "temperature τ", "step_size": "step size η"}
_MARGINS = Margins(left=64.0, bottom=44.0)  # for three digits
_ROW = 46.0  # height of a row of a grid in points
_STRONGEST, _FAINTEST = 0.5, 0.06  # opacities: text on the strongest still has a contrast of 4.5 : 1
_MOST_WRITTEN = 8  # columns of a grid up to which each mark has room for its NLL
_UNSEEN = (
    "Calibrated NLL decides, as in the paper’s own tables. No test image was used. The best of many noisy"
    " numbers looks better than it is: train the point in a study of its own to know its test scores."
)


def sweep_report(run: SweepRun) -> Report:
    """The page of a sweep, and its figures and tables."""
    paper = experiments_of(run.recipe, run.asked.recipe, free=PARAMETERS)  # α, τ and η are each point's own
    printed = [cell for cell in tuning() if paper and cell.experiment in paper.names]
    section = Section("Points", "points", [sweep_map(run), sweep_table(run, printed)])
    teachers = "" if run.teachers_nll is None else f" The teachers have {run.teachers_nll:.3f}."
    sentence = (
        f"Of {len(run.tried)} points, {run.best.words} has the lowest calibrated NLL on validation images:"
        f" {mean_text('nll', run.best.nll)}.{teachers}"
    )
    html = render(
        "sweep.html",
        title=f"{run.asked.recipe}: sweep of {run.method}",
        subtitle=_subtitle(run),
        verdict=Verdict(sentence, (), (), {}),
        notes=notes(run),
        line=run.line(run.best),
        sections=[section],
        paper=_paper_note(run, paper) if paper and printed else "",
        provenance=provenance(run),
    )
    return Report(html, section.shown)


def _subtitle(run: SweepRun) -> str:
    """What was done, in a line under the title."""
    how = "proposed by optuna" if run.is_search else "of a grid"
    fixed = in_words({k: v for k, v in run.best.settings.items() if k not in run.varied})
    points, seeds = counted(len(run.tried), "point"), counted(run.best.nll.n, "seed")
    constant = f"; {fixed} for all" if fixed and run.varied else ""
    return f"{run.recipe.data.label}: {points} {how}, {seeds} each{constant}."


def _paper_note(run: SweepRun, paper: PaperExperiments) -> str:
    """How far the paper's numbers are about the same thing."""
    other = [] if run.perturbation(run.best.name) == "clean" else [f"here {run.method} was swept"]
    departures = "; ".join([*other, *paper.departures])
    only = f" They are for orientation only: {departures}." if departures else ""
    return f"The paper’s numbers are of plain distillation, {paper.words}.{only}"


def notes(run: SweepRun) -> list[str]:
    """What qualifies the best point, and what to do next."""
    said, own, best = [_level(run)], run.own, run.best
    if own is best:
        said.append("The recipe is at the best point already.")
    elif own:
        gain = own.nll.mean - best.nll.mean
        said.append(f"The recipe as it is, {own.words}, has {mean_text('nll', own.nll)}: {gain:.3f} more.")
    said += _edges(run)
    standard = min(run.tried, key=lambda each: each.scores[OTHER]["nll"].mean)
    if standard is best:
        said.append("It also has the lowest NLL without temperature scaling.")
    else:
        value = mean_text("nll", standard.scores[OTHER]["nll"])
        said.append(f"Without temperature scaling the best point is {standard.words} ({value}).")
    if run.diverged:
        said.append(f"Left out, because the loss became NaN: {', '.join(run.diverged)}.")
    return [*said, _UNSEEN]


def _level(run: SweepRun) -> str:
    if math.isnan(run.best.nll.sd):
        return "Every point was trained once: differences may be chance. Use several seeds."
    if not run.close:
        return "No other point is within one standard deviation of it."
    named = "; ".join(each.words for each in run.close[:4])
    more = f"; and {len(run.close) - 4} more" if len(run.close) > 4 else ""
    return f"Within one standard deviation of it: {named}{more}."


def _edges(run: SweepRun) -> list[str]:
    """The parameters whose best value is the last of a grid."""
    said = []
    for name in [] if run.is_search else run.varied:
        numbers = [value for value in run.values[name] if isinstance(value, float)]
        here = run.best.settings[name]
        nothing_beyond = name == "alpha" and here in (0.0, 1.0)
        at_edge = isinstance(here, float) and not run.has_beyond(name, here)
        if len(numbers) > 1 and at_edge and not nothing_beyond:
            side = "largest" if here == numbers[-1] else "smallest"
            best = f"{SYMBOLS[name]}, {text_of(here, name)},"
            said.append(f"The best {best} is the {side} value tried: try values beyond it.")
    return said


def sweep_table(run: SweepRun, printed: list[Tuning]) -> PageTable:
    """The points, best first, with the paper's numbers beside those it has."""
    rest = f", the best {MOST_ROWS} of {len(run.ranked)}" if len(run.ranked) > MOST_ROWS else ""
    caption = (
        f"Scores on validation images, mean ± s.d. over n = {run.best.nll.n} seeds, best first{rest}. Scores"
        " are at the temperature fitted on these images, except the standard NLL and mean-KLD. Bold: within"
        " one standard deviation of the best."
    )
    rows = [_row(run, place, each, printed) for place, each in enumerate(run.ranked[:MOST_ROWS], 1)]
    return PageTable.from_rows("sweep", caption, rows)


def _row(run: SweepRun, place: int, each: Tried, printed: list[Tuning]) -> dict[str, Cell | str]:
    at = (each.settings["alpha"], each.settings["temperature"])
    theirs = next((cell for cell in printed if (cell.alpha, cell.temperature) == at), None)
    close, nll = each is run.best or each in run.close, HEADINGS["nll"]
    texts = {column: mean_text(column, score) for column, score in each.scores[JUDGE].items()}
    return {
        "": str(place),
        **{SYMBOLS[name]: text_of(value, name) or DASH for name, value in each.settings.items()},
        nll: Cell(texts["nll"], close, theirs.nll if theirs else ""),
        f"standard {nll}": mean_text("nll", each.scores[OTHER]["nll"]),
        HEADINGS["acc"]: Cell(texts["acc"], paper=theirs.acc if theirs else ""),
        **{HEADINGS[column]: texts[column] for column in ("bs", "ece", "kld")},
    }


def sweep_map(run: SweepRun) -> Chart | Absent:
    """Calibrated validation NLL over the parameters that were varied."""
    if not run.varied:
        return Absent(_TITLE, "only one point was tried.")
    grid = not run.is_search and len(run.varied) > 1
    shade = ": the stronger the colour, the lower" if grid else "; lower is better"
    now = " The diamond is where the recipe is now." if run.own else ""
    reading = f"Calibrated NLL on validation images, mean over seeds{shade}. The ring is the best point.{now}"
    ink = assign([(run.method, run.perturbation(run.best.name))])[run.method].ink
    slices = [Panel("", partial(_slice, run=run, name=name, ink=ink), 1.4, _MARGINS) for name in run.varied]
    panels = _grid(run, ink) if grid else slices
    return Chart("sweep-map", _TITLE, reading, panels, _numbers(run))


def _numbers(run: SweepRun) -> Numbers:
    rows = []
    for each in run.ranked:
        other = each.scores[OTHER]["nll"]
        scores = [each.nll.mean, each.nll.sd, other.mean, other.sd, each.nll.n]
        rows.append([each.name, *each.settings.values(), *scores])
    return Numbers(["point", *PARAMETERS, "nll", "nll_sd", "standard_nll", "standard_nll_sd", "n"], rows)


def _slice(axes: Axes, *, run: SweepRun, name: str, ink: Ink) -> None:
    for each in run.tried:
        at = run.values[name].index(each.settings[name])
        axes.errorbar(at, each.nll.mean, spread(each.nll), color=ink.light, marker="o", elinewidth=1.2)
        _ring(axes, run, each, (at, each.nll.mean), 7)
    values = run.values[name]
    some = range(0, len(values), math.ceil(len(values) / 8))
    axes.set_xticks(list(some), [text_of(values[at], name) for at in some])
    axes.set(xlabel=_LABELS[name], ylabel="calibrated NLL")
    axes.grid(visible=False, axis="x")


def _ring(axes: Axes, run: SweepRun, each: Tried, at: tuple[float, float], size: float) -> None:
    for special, marker in ((run.best, "o"), (run.own, "D")):
        if each is special:
            axes.plot(*at, marker, markersize=size + 7, fillstyle="none", color=TEXT.light)


def _grid(run: SweepRun, ink: Ink) -> list[Panel]:
    """Squares over two parameters, a panel for each value of the third."""
    across, down, third = layout(run.values)
    aspect = MEDIUM / (len(run.values[down]) * _ROW + _MARGINS.bottom + _MARGINS.top)
    panels = []
    for value in run.values[third]:
        here = [each for each in run.tried if each.settings[third] == value]
        title = "" if value is None else f"{SYMBOLS[third]} = {text_of(value, third)}"
        draw = partial(_squares, run=run, points=here, across=across, down=down, ink=ink)
        panels.append(Panel(title, draw, aspect, _MARGINS))
    return panels


def layout(values: Mapping[str, Sequence[Value]]) -> tuple[str, str, str]:
    """(across, down, panels): the parameter of most values goes down, that of fewest makes the panels.

    Of equals α goes across and τ down, as in the paper's table, and η makes the panels.
    """
    usual = ("temperature", "alpha", "step_size")
    down, across, panels = sorted(usual, key=lambda name: -len(values[name]))
    return across, down, panels


def _squares(axes: Axes, *, run: SweepRun, points: Sequence[Tried], across: str, down: str, ink: Ink) -> None:
    columns, rows = run.values[across], run.values[down]
    shades = dict(zip(run.methods, strengths([each.nll.mean for each in run.tried]), strict=True))
    size = min(40.0, 230.0 / len(columns))
    for each in points:
        at = (columns.index(each.settings[across]), rows.index(each.settings[down]))
        alpha = _FAINTEST + (_STRONGEST - _FAINTEST) * shades[each.name]
        axes.plot(*at, "s", markersize=size, color=ink.light, alpha=alpha, markeredgewidth=0)
        _ring(axes, run, each, at, size)
        if len(columns) <= _MOST_WRITTEN:
            axes.text(*at, f"{each.nll.mean:.3f}", ha="center", va="center", color=TEXT.light, size=10)
    axes.set_xticks(range(len(columns)), [text_of(value, across) for value in columns])
    axes.set_yticks(range(len(rows)), [text_of(value, down) for value in rows])
    axes.set(xlim=(-0.7, len(columns) - 0.3), ylim=(len(rows) - 0.3, -0.7))
    axes.set(xlabel=_LABELS[across], ylabel=_LABELS[down])
    axes.grid(visible=False)


def strengths(values: Sequence[float]) -> list[float]:
    """How strong a colour each NLL has: 1 for the best, 0 for the worst.

    An NLL more than four times as far from the best as the median has 0 too, so that one point that failed
    does not make all others look alike.
    """
    finite = [value for value in values if math.isfinite(value)]
    best, worst, median = min(finite), max(finite), statistics.median(finite)
    worst = min(worst, best + 4 * (median - best)) if median > best else worst
    if worst <= best:
        return [1.0] * len(values)
    return [min(1.0, max(0.0, (worst - value) / (worst - best))) for value in values]
