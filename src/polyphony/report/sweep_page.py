"""A sweep → its report: the page, and every figure and table as files."""

from __future__ import annotations

import math

from polyphony.metrics import mean_sd
from polyphony.recipe.points import PARAMETERS, text_of
from polyphony.report.chart import Absent, Chart
from polyphony.report.figures.sweep_front import sweep_front
from polyphony.report.figures.sweep_map import paper_map, sweep_map, swept_ink
from polyphony.report.page import Report, Section, render
from polyphony.report.paper import Comparison, Tuning, tuning
from polyphony.report.provenance import Facts, provenance
from polyphony.report.summary import Headline, TakeHome
from polyphony.report.sweep_run import OTHER, SYMBOLS, SweepRun, Tried, in_words
from polyphony.report.tables import Cell, Table
from polyphony.scores import HEADINGS, JUDGE, TEACHERS, mean_text
from polyphony.words import counted, duration

MOST_ROWS = 40  # points in the page's table; sweep.csv has them all
_COLUMNS = ("acc", "bs", "ece", "kld")


def sweep_report(run: SweepRun) -> Report:
    """The page of a sweep, and its figures and tables."""
    paper = run.paper
    printed = [cell for cell in tuning() if paper and cell.experiment in paper.experiments]
    maps: list[Chart | Absent] = [sweep_map(run)]
    if paper and printed:
        maps.append(paper_map(printed, paper.words, swept_ink(run)))
    sections = [
        Section("The map", "map", tuple(maps)),
        Section("Diversity", "diversity", tuple(sweep_front(run))),
    ]
    table = sweep_table(run, printed)
    groups = {**provenance(run), "Time": times(run)}
    html = render(
        "sweep.html",
        title=f"{run.asked.recipe}: sweep of {run.method}",
        subtitle=subtitle(run),
        take_home=take_home(run),
        line=run.line(run.best),
        sections=sections,
        table=table,
        paper=paper_note(run, paper) if paper and printed else "",
        provenance={title: facts for title, facts in groups.items() if facts},
    )
    return Report(html, (table, *(part for section in sections for part in section.shown)))


def subtitle(run: SweepRun) -> str:
    """What was done, in a line under the title."""
    how = "proposed by optuna" if run.is_search else "of a grid"
    fixed = in_words({k: v for k, v in run.best.settings.items() if k not in run.varied})
    kept = f"; {fixed} throughout" if fixed and run.varied else ""
    points, seeds = counted(len(run.tried), "point"), counted(run.best.nll.n, "seed")
    return f"{run.recipe.data.name}: {points} {how}, {seeds} each{kept}."


def take_home(run: SweepRun) -> TakeHome:
    """The best point in one sentence, three numbers, and what qualifies it."""
    best = run.best
    sentence = (
        f"Of {len(run.tried)} points, {best.words} has the lowest NLL on validation images:"
        f" {mean_text('nll', best.nll)}."
    )
    qualified = (*_level(run), *_edges(run), *_by_standard(run), *_diverged(run), _UNSEEN)
    return TakeHome(sentence, qualified, (_how_good(run), _how_sure(run), _how_much(run)))


_UNSEEN = (
    "Calibrated NLL decides, as in the paper’s own tables. No test image was predicted on. The best of many"
    " noisy numbers looks better than it is: train the point as a study of its own to know its test scores."
)


def _how_good(run: SweepRun) -> Headline:
    standard = mean_text("nll", run.best.scores[OTHER]["nll"])
    there = f"; the teachers have {run.teachers[0]:.3f}" if run.teachers else ""
    meaning = f"calibrated NLL on validation images; {standard} as predicted{there}"
    return Headline("How good", f"{run.best.nll.mean:.3f}", meaning)


def _how_sure(run: SweepRun) -> Headline:
    about = "How sure"
    if math.isnan(run.best.nll.sd):
        return Headline(about, "–", "each point was trained once: no difference can be told from chance")
    level = len(run.close) + 1
    meaning = (
        f"points, the best included, are within one s.d. of it (± {run.best.nll.sd:.3f} over"
        f" {run.best.nll.n} seeds)"
    )
    return Headline(about, f"{level} of {len(run.tried)}", meaning)


def _how_much(run: SweepRun) -> Headline:
    own = run.own
    if own is None or own is run.best:
        worst = run.ranked[-1]
        where = "the recipe is at the best point already; " if own else ""
        between = worst.nll.mean - run.best.nll.mean
        meaning = f"{where}NLL between the best point and the worst, {worst.words}"
        return Headline("How much it matters", f"{between:.3f}", meaning)
    gain = own.nll.mean - run.best.nll.mean
    meaning = f"NLL, against the recipe as it is: {mean_text('nll', own.nll)} at {own.words}"
    return Headline("How much better", f"−{gain:.3f}", meaning)


def _level(run: SweepRun) -> list[str]:
    if math.isnan(run.best.nll.sd):
        return ["Every point was trained once: differences may be chance; more seeds would tell."]
    if not run.close:
        return ["No other point is within one standard deviation of it."]
    named = "; ".join(each.words for each in run.close[:4])
    more = f"; and {len(run.close) - 4} more" if len(run.close) > 4 else ""
    return [f"Within one standard deviation of it: {named}{more}."]


def _edges(run: SweepRun) -> list[str]:
    said = []
    for name in run.varied:
        numbers = [value for value in run.values[name] if isinstance(value, float)]
        here = run.best.settings[name]
        if run.is_search or len(numbers) < 2 or here not in (numbers[0], numbers[-1]):
            continue
        if name == "alpha" and here in (0.0, 1.0):  # there is nothing beyond
            continue
        side = "largest" if here == numbers[-1] else "smallest"
        said.append(
            f"The best {SYMBOLS[name]}, {text_of(here, name)}, is the {side} that was tried: go on there."
        )
    return said


def _by_standard(run: SweepRun) -> list[str]:
    other = min(run.tried, key=lambda each: each.scores[OTHER]["nll"].mean)
    if other is run.best:
        return ["It has the lowest standard NLL, without temperature scaling, as well."]
    value = mean_text("nll", other.scores[OTHER]["nll"])
    return [f"By standard NLL, without temperature scaling, the best is {other.words} ({value})."]


def _diverged(run: SweepRun) -> list[str]:
    return [f"Left out because their loss stopped being a number: {', '.join(run.diverged)}."] * bool(
        run.diverged
    )


def sweep_table(run: SweepRun, printed: list[Tuning]) -> Table:
    """The points, best first, with the paper's numbers beside those it has."""
    shown = run.ranked[:MOST_ROWS]
    rest = f", the best {MOST_ROWS} of {len(run.ranked)}" if len(run.ranked) > MOST_ROWS else ""
    caption = (
        f"Scores on validation images, mean ± s.d. over n = {run.best.nll.n} seeds, best first{rest}."
        " All but the standard NLL are at the temperature fitted on these images; mean-KLD knows none."
    )
    symbols = tuple(SYMBOLS[name] for name in PARAMETERS)
    nll = HEADINGS["nll"]
    header = ("", *symbols, nll, f"standard {nll}", *(HEADINGS[column] for column in _COLUMNS))
    rows = tuple(_row(run, place, each, printed) for place, each in enumerate(shown, 1))
    return Table("sweep", caption, header, rows)


def _row(run: SweepRun, place: int, each: Tried, printed: list[Tuning]) -> tuple[Cell, ...]:
    at = (each.settings["alpha"], each.settings["temperature"])
    theirs = next((cell for cell in printed if (cell.alpha, cell.temperature) == at), None)
    close = each is run.best or each in run.close
    acc, *others = (mean_text(column, each.scores[JUDGE][column]) for column in _COLUMNS)
    return (
        Cell(f"{place}"),
        *(Cell(text_of(each.settings[name], name) or "–") for name in PARAMETERS),
        Cell(mean_text("nll", each.nll), close, theirs.text("nll") if theirs else ""),
        Cell(mean_text("nll", each.scores[OTHER]["nll"])),
        Cell(acc, paper=theirs.text("acc") if theirs else ""),
        *map(Cell, others),
    )


def paper_note(run: SweepRun, paper: Comparison) -> str:
    """How far the paper's numbers are about the same thing."""
    other = [] if run.perturbation(run.best.name) == "clean" else [f"here {run.method} was swept"]
    differences = "; ".join([*other, *paper.differences])
    told = f" They stand there for orientation only: {differences}." if differences else ""
    return f"The paper’s numbers are of plain distillation, {paper.words}.{told}"


def times(run: SweepRun) -> Facts:
    """How long the trainings took."""
    points = [seconds for name in run.methods for seconds in run.seconds(name)]
    each = {TEACHERS: run.seconds(TEACHERS), "points": points}
    facts = [
        (who, f"{duration(sum(times))} for {len(times)} trainings, {duration(mean_sd(times).mean)} each")
        for who, times in each.items()
        if times
    ]
    return [*facts, ("all", duration(sum(map(sum, each.values()))))] if facts else []
