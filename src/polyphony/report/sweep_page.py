"""Sweeps → their pages: of one sweep, or of several beside that of plain distillation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from polyphony._util.text import counted, listed
from polyphony.metrics import MeanSd, mean_sd
from polyphony.recipe.points import PARAMETERS, Point, text_of
from polyphony.report.chart import Chart
from polyphony.report.figures.sweep_front import sweep_front
from polyphony.report.figures.sweep_map import Cells, Corner, Shade, paper_map, sweep_map, swept_ink
from polyphony.report.page import Piece, Report, Section, render
from polyphony.report.paper import PaperExperiments, Tuning, tuning
from polyphony.report.provenance import provenance
from polyphony.report.sweep_run import OTHER, SYMBOLS, SweepRun, Tried, in_words
from polyphony.report.tables import Cell, Numbers, PageTable
from polyphony.report.verdict import Headline, TakeHome
from polyphony.runs.scores import HEADINGS, JUDGE, mean_text
from polyphony.runs.store import StoreError

MOST_ROWS = 40  # points in the page's table; sweep.csv has them all
_COLUMNS = ("acc", "bs", "ece", "kld")
Gains = Mapping[SweepRun, Mapping[Point, MeanSd]]


def sweep_report(run: SweepRun) -> Report:
    """The page of a sweep, and its figures and tables."""
    paper = run.paper
    printed = [cell for cell in tuning() if paper and cell.experiment in paper.names]
    maps: list[Piece] = [sweep_map(run)]
    if paper and printed:
        maps.append(paper_map(printed, paper.words, swept_ink(run)))
    sections = [Section("The map", "map", maps), Section("Diversity", "diversity", sweep_front(run))]
    table = sweep_table(run, printed)
    html = render(
        "sweep.html",
        title=f"{run.asked.recipe}: sweep of {run.method}",
        subtitle=subtitle(run),
        take_home=take_home(run),
        line=run.line(run.best),
        sections=sections,
        table=table,
        paper=paper_note(run, paper) if paper and printed else "",
        provenance=provenance(run),
    )
    return Report(html, [table, *(piece for section in sections for piece in section.shown)])


def subtitle(run: SweepRun) -> str:
    """What was done, in a line under the title."""
    how = "proposed by optuna" if run.is_search else "of a grid"
    fixed = in_words({k: v for k, v in run.best.settings.items() if k not in run.varied})
    kept = f"; {fixed} throughout" if fixed and run.varied else ""
    points, seeds = counted(len(run.tried), "point"), counted(run.best.nll.n, "seed")
    return f"{run.recipe.data.label}: {points} {how}, {seeds} each{kept}."


def take_home(run: SweepRun) -> TakeHome:
    """The best point in one sentence, three numbers, and what qualifies it."""
    best = run.best
    sentence = (
        f"Of {len(run.tried)} points, {best.words} has the lowest NLL on validation images:"
        f" {mean_text('nll', best.nll)}."
    )
    qualified = [_level(run), *_edges(run), _by_standard(run), *_diverged(run), _UNSEEN]
    return TakeHome(sentence, qualified, [_how_good(run), _how_sure(run), _how_much(run)])


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
    nll = run.best.nll
    if math.isnan(nll.sd):
        return Headline("How sure", "–", "each point was trained once: no difference can be told from chance")
    meaning = f"points, the best included, are within one s.d. of it (± {nll.sd:.3f} over {nll.n} seeds)"
    return Headline("How sure", f"{len(run.close) + 1} of {len(run.tried)}", meaning)


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


def _level(run: SweepRun) -> str:
    if math.isnan(run.best.nll.sd):
        return "Every point was trained once: differences may be chance; more seeds would tell."
    if not run.close:
        return "No other point is within one standard deviation of it."
    named = "; ".join(each.words for each in run.close[:4])
    more = f"; and {len(run.close) - 4} more" if len(run.close) > 4 else ""
    return f"Within one standard deviation of it: {named}{more}."


def _edges(run: SweepRun) -> list[str]:
    """The parameters whose best value is the last of a grid, with more beyond it."""
    said = []
    for name in [] if run.is_search else run.varied:
        numbers = [value for value in run.values[name] if isinstance(value, float)]
        here = run.best.settings[name]
        nothing_beyond = name == "alpha" and here in (0.0, 1.0)
        at_edge = isinstance(here, float) and not run.has_beyond(name, here)
        if len(numbers) > 1 and at_edge and not nothing_beyond:
            side = "largest" if here == numbers[-1] else "smallest"
            best = f"{SYMBOLS[name]}, {text_of(here, name)}"
            said.append(f"The best {best}, is the {side} that was tried: go on there.")
    return said


def _by_standard(run: SweepRun) -> str:
    other = min(run.tried, key=lambda each: each.scores[OTHER]["nll"].mean)
    if other is run.best:
        return "It has the lowest standard NLL, without temperature scaling, as well."
    value = mean_text("nll", other.scores[OTHER]["nll"])
    return f"By standard NLL, without temperature scaling, the best is {other.words} ({value})."


def _diverged(run: SweepRun) -> list[str]:
    words = f"Left out because their loss stopped being a number: {', '.join(run.diverged)}."
    return [words] if run.diverged else []


def sweep_table(run: SweepRun, printed: list[Tuning]) -> PageTable:
    """The points, best first, with the paper's numbers beside those it has."""
    rest = f", the best {MOST_ROWS} of {len(run.ranked)}" if len(run.ranked) > MOST_ROWS else ""
    caption = (
        f"Scores on validation images, mean ± s.d. over n = {run.best.nll.n} seeds, best first{rest}."
        " All but the standard NLL are at the temperature fitted on these images; mean-KLD knows none."
    )
    nll, *others = (HEADINGS[column] for column in ("nll", *_COLUMNS))
    header = ["", *SYMBOLS.values(), nll, f"standard {nll}", *others]
    rows = [_row(run, place, each, printed) for place, each in enumerate(run.ranked[:MOST_ROWS], 1)]
    return PageTable.of("sweep", caption, header, rows)


def _row(run: SweepRun, place: int, each: Tried, printed: list[Tuning]) -> list[Cell | str]:
    at = (each.settings["alpha"], each.settings["temperature"])
    theirs = next((cell for cell in printed if (cell.alpha, cell.temperature) == at), None)
    close = each is run.best or each in run.close
    acc, *others = (mean_text(column, each.scores[JUDGE][column]) for column in _COLUMNS)
    return [
        str(place),
        *(text_of(value, name) or "–" for name, value in each.settings.items()),
        Cell(mean_text("nll", each.nll), close, theirs.nll if theirs else ""),
        mean_text("nll", each.scores[OTHER]["nll"]),
        Cell(acc, paper=theirs.acc if theirs else ""),
        *others,
    ]


def paper_note(run: SweepRun, paper: PaperExperiments) -> str:
    """How far the paper's numbers are about the same thing."""
    other = [] if run.perturbation(run.best.name) == "clean" else [f"here {run.method} was swept"]
    departures = "; ".join([*other, *paper.departures])
    told = f" They stand there for orientation only: {departures}." if departures else ""
    return f"The paper’s numbers are of plain distillation, {paper.words}.{told}"


def gains(runs: Sequence[SweepRun]) -> Report:
    """The page that compares sweeps with that of plain distillation among them."""
    plain = [run for run in runs if run.perturbation(run.best.name) == "clean"]
    if len(plain) != 1:
        raise StoreError('sweeps are compared with one of plain distillation (perturb = "clean") among them')
    found = {run: gained(run, plain[0]) for run in runs if run is not plain[0]}
    for run, gain in found.items():
        check_comparable(run, plain[0])
        if not gain:
            raise StoreError(f"{run.folder} and {plain[0].folder} have no temperature, α and seed in common")
    table, chart = gain_table(found), gain_chart(found)
    html = render(
        "comparison.html",
        title=f"{plain[0].asked.recipe}: what perturbations gain over {plain[0].method}",
        tables=[table],
        charts=[chart],
        warnings=[],
        runs=[(f"sweep of {run.method}", subtitle(run), provenance(run)) for run in runs],
    )
    return Report(html, [table, chart])


def check_comparable(run: SweepRun, plain: SweepRun) -> None:
    """Raise unless two sweeps have the same images and teachers, and students trained alike."""
    one, other = (_beside_what_is_swept(each) for each in (run, plain))
    if unlike := [what for what in one if one[what] != other[what]]:
        raise StoreError(
            f"{run.folder} and {plain.folder} cannot be compared: they differ in {listed(unlike)}"
        )


def _beside_what_is_swept(run: SweepRun) -> dict[str, object]:
    recipe = run.recipe
    student = recipe.student.model_dump(exclude={*PARAMETERS, "match_share"})
    return {"images": run.facts.data, "teachers": (recipe.members, recipe.teachers), "student": student}


def gained(run: SweepRun, plain: SweepRun) -> dict[Point, MeanSd]:
    """Each point's calibrated validation NLL less plain distillation's at its τ and α, over shared seeds."""
    theirs = {(row.alpha, row.temperature, row.seed): row.nll for row in plain.judged}
    apart: dict[Point, list[float]] = {}
    for row in run.judged:
        nll = theirs.get((row.alpha, row.temperature, row.seed))
        if nll is not None:
            point = Point(row.alpha, row.temperature, row.step_size)
            apart.setdefault(point, []).append(row.nll - nll)
    return {point: mean_sd(values) for point, values in apart.items()}


def gain_table(found: Gains) -> PageTable:
    """A row for each point."""
    rows = []
    for run, gain in found.items():
        for point, value in gain.items():
            settings = [text_of(getattr(point, name), name) for name in PARAMETERS]
            rows.append([run.method, *settings, mean_text("nll", value).replace("-", "−"), str(value.n)])
    caption = (
        "Calibrated NLL on validation images less that of plain distillation at the same temperature, α and"
        " seed: mean ± s.d. over n seeds; below zero the perturbation is better."
    )
    return PageTable.of("gains", caption, ["Sweep", *SYMBOLS.values(), "NLL less plain's", "n"], rows)


def gain_chart(found: Gains) -> Chart:
    """A panel for each sweep and α: step sizes across, temperatures down."""
    panels, rows = [], []
    for run, gain in found.items():
        shade = Shade.of(swept_ink(run), [value.mean for value in gain.values()])
        for alpha in sorted({point.alpha for point in gain}):
            here: dict[Corner, MeanSd] = {}
            here |= {(p.step_size, p.temperature): value for p, value in gain.items() if p.alpha == alpha}
            steps, temperatures = run.values["step_size"], run.values["temperature"]
            cells = Cells("step_size", "temperature", steps, temperatures, here)
            panels.append(cells.panel(f"{run.method}, α = {alpha:g}", shade))
        for point, value in gain.items():
            settings = [getattr(point, name) for name in PARAMETERS]
            rows.append([run.method, *settings, value.mean, value.sd, value.n])
    numbers = Numbers(["sweep", *PARAMETERS, "gain", "sd", "n"], rows)
    reading = (
        "Calibrated NLL on validation images less that of plain distillation at the same temperature and"
        " seed, mean ± s.d.: below zero, and the stronger the shade, the more the perturbation gains."
    )
    return Chart("gains", "What a perturbation gains", reading, panels, numbers)
