"""The main tables, the verdict in words, and the health check: what the page says before any figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyphony import metrics
from polyphony.metrics import Health, MeanSd
from polyphony.report.hints import hints
from polyphony.report.paper import PaperRow
from polyphony.report.run import Run
from polyphony.report.tables import Cell, PageTable
from polyphony.rows import FactorDistance
from polyphony.scores import HEADINGS, TEACHERS, TRAINED_ONCE, Standing, differ
from polyphony.words import counted, listed

_LARGER_IS_BETTER = {name: "↑" in text for name, text in HEADINGS.items() if "↑" in text or "↓" in text}
_HOW = {
    "calibrated": "at the temperature fitted on validation",
    "standard": "as predicted, without temperature scaling",
}


@dataclass(frozen=True)
class Headline:
    """One of the three numbers that matter: what it is about, the number, what it means."""

    about: str
    number: str
    meaning: str


@dataclass(frozen=True)
class TakeHome:
    """What a person should take home: one sentence, then what qualifies it, then three numbers."""

    sentence: str
    qualified: Sequence[str]
    headlines: Sequence[Headline]


def score_table(run: Run, calibration: str) -> PageTable:
    """Mean ± s.d. over seeds on test of the teachers and every student, the paper's numbers beside them."""
    count = " or ".join(map(str, sorted({len(run.seeds(method)) for method in run.methods})))
    noun = "seed" if count == "1" else "seeds"
    caption = (
        f"{run.name}: test scores, {_HOW[calibration]}; mean ± s.d. over n = {count} {noun} of the student."
    )
    winners = {}
    for column, larger in _LARGER_IS_BETTER.items():
        means = {method: run.mean(method, column, calibration) for method in run.methods}
        winners[column] = clear_winner(means, larger=larger)
    rows = [_score_row(run, model, calibration, winners) for model in run.models]
    header = ["Model", "Parameters", *HEADINGS.values()]
    return PageTable.of(f"scores-{calibration}", caption, header, rows)


def _score_row(run: Run, model: str, calibration: str, winners: Mapping[str, str | None]) -> list[Cell | str]:
    printed = paper_row(run, model, calibration)
    label = f"teachers ({counted(run.members, 'network')})" if model == TEACHERS else model
    cells = [
        Cell(
            run.text(model, column, calibration),
            winners.get(column) == model,
            printed.text(column) if printed else "",
        )
        for column in HEADINGS
    ]
    return [label, f"{run.params(model):,}", *cells]


def paper_row(run: Run, model: str, calibration: str, table: str | None = None) -> PaperRow | None:
    """The paper's row of a model, if it has one: none where a method changes the student's settings."""
    paper, recipe = run.paper, run.recipe
    if paper is None:
        return None
    if model == TEACHERS:
        return paper.row(model, calibration, table)
    form, method = recipe.form_table(model), run.perturbation(model) or "scratch"
    if form.label == "dirichlet":  # whose settings the paper does not state
        return paper.row("endd", calibration, table, form.label) if method == "clean" else None
    own = recipe.methods[model].model_dump(exclude_none=True, exclude={"perturb", "form"})
    changed = any(value != getattr(recipe.student, key, None) for key, value in own.items())
    if changed or getattr(form, "member_norm", False):
        return None
    return paper.row(method, calibration, table, form.label)


def clear_winner(values: Mapping[str, MeanSd], *, larger: bool) -> str | None:
    """Whose mean is ahead of every other's by more than √(s.d.² + s.d.²), the spread of their difference.

    None where there is no other, or where one has no spread (one seed, or an infinite value).
    """
    sign = 1 if larger else -1
    order = sorted(values, key=lambda name: sign * values[name].mean, reverse=True)
    if len(order) < 2 or any(math.isnan(value.mean) for value in values.values()):
        return None
    ahead = all(differ(values[order[0]], values[other]) for other in order[1:])
    return order[0] if ahead else None


def take_home(run: Run, health: Mapping[str, Health]) -> TakeHome:
    """The student chosen on validation images against its teachers, and what else a reader must know."""
    standing = Standing.of({method: run.mean(method, "nll") for method in run.methods})
    champion = chosen(run)
    small = run.params(champion) / run.params(TEACHERS)
    sentence = (
        f"The student chosen on validation images, {champion}, {_as_diverse_as(run, champion)}"
        f" and {_as_good_as(run, champion)}, with {small:.0%} of the teachers’ parameters."
    )
    qualified = [*_spread(run, champion, standing), *_most_diverse(run, champion), *_collapsed(health)]
    headlines = [_how_diverse(run, champion), _how_good(run, champion), _how_small(run, champion)]
    return TakeHome(sentence, [*qualified, *hints(run)], headlines)


def chosen(run: Run) -> str:
    """The distilled student of least calibrated NLL on validation images; of all where none is distilled."""
    rows = {name: run.scored(name, "valid") for name in run.methods}
    known = {name: statistics.fmean(row.nll for row in each) for name, each in rows.items() if each}
    distilled = [name for name in known if run.perturbation(name) is not None]
    return min(distilled or known or run.methods, key=lambda name: known.get(name, 0.0))


def kept(run: Run, model: str) -> float | None:
    """A student's mean-KLD on test as a share of its teachers'; nothing where they do not disagree."""
    teachers = run.mean(TEACHERS, "kld").mean
    return run.mean(model, "kld").mean / teachers if teachers else None


def median_dee(run: Run, model: str) -> float | None:
    """The calibrated DEE of the median seed, which a seed past the curve does not make infinite."""
    known = [score.dee for score in run.scored(model) if score.dee is not None]
    return statistics.median(known) if known else None


def _as_diverse_as(run: Run, model: str) -> str:
    kld, share = run.mean(model, "kld").mean, kept(run, model)
    if kld == 0:
        return "is one network without members"
    if share is None:
        return f"has a mean-KLD of {kld:.3f}, though its teachers do not disagree,"
    if share > 1.05:
        return f"is {share:.1f} times as diverse as its teachers"
    return f"keeps {share:.0%} of its teachers’ diversity"


def _as_good_as(run: Run, model: str) -> str:
    dee = median_dee(run, model)
    if dee is None:
        return f"has an NLL of {run.mean(model, 'nll').mean:.3f}"
    if dee < 1:
        return f"predicts worse than a single teacher (DEE {dee:.2f})"
    count = metrics.format_dee(dee, run.teacher_count).replace(">", "more than ")
    return f"predicts as well as {count} teachers averaged"


def _spread(run: Run, champion: str, standing: Standing) -> list[str]:
    if standing.nll.n == 1:
        return [f"{TRAINED_ONCE.capitalize()}."]
    if champion != standing.best:
        return [f"On test images {standing.best} has the least NLL, {standing.words}."]
    return [f"In NLL it is {standing.words}."] if len(run.methods) > 1 else []


def _most_diverse(run: Run, champion: str) -> list[str]:
    distilled = [name for name in run.methods if run.perturbation(name) is not None]
    if not distilled:
        return ["No student was distilled: all were trained on labels alone."]
    distilled = [name for name in distilled if run.mean(name, "kld").mean > 0]
    if not distilled:
        return ["No distilled student has members: all are one network."]
    top = max(distilled, key=lambda name: run.mean(name, "kld").mean)
    if top == champion:
        return [f"No distilled student is more diverse than {top}."] if len(distilled) > 1 else []
    return [f"The most diverse distilled student is {top}: it {_as_diverse_as(run, top).rstrip(',')}."]


def _collapsed(health: Mapping[str, Health]) -> list[str]:
    dead = [name for name, found in health.items() if found.verdict == metrics.Verdict.COLLAPSED]
    return [f"The members of {listed(dead)} have collapsed into one predictor."] if dead else []


def _how_diverse(run: Run, champion: str) -> Headline:
    kld, theirs = (run.mean(model, "kld").mean for model in (champion, TEACHERS))
    share = kept(run, champion)
    if share is None:
        meaning = "mean-KLD on test; the teachers do not disagree there: there is no diversity to keep"
        return Headline("How diverse", f"{kld:.3f}", meaning)
    meaning = f"of the teachers’ diversity: mean-KLD {kld:.3f} against {theirs:.3f} on test"
    return Headline("How diverse", f"{share:.0%}", meaning)


def _how_good(run: Run, champion: str) -> Headline:
    nll, dee = run.mean(champion, "nll").mean, median_dee(run, champion)
    whose = "the one teacher" if run.members == 1 else f"all {run.members} teachers"
    against = f"{nll:.3f} against {run.mean(TEACHERS, 'nll').mean:.3f} of {whose}"
    if dee is None:
        return Headline("How good", f"{nll:.3f}", f"calibrated NLL {against}")
    meaning = f"teachers’ worth (DEE, median seed), NLL {against}"
    return Headline("How good", metrics.format_dee(dee, run.teacher_count), meaning)


def _how_small(run: Run, champion: str) -> Headline:
    mine, theirs = run.params(champion), run.params(TEACHERS)
    meaning = f"of the teachers’ parameters: {mine:,} against {theirs:,}"
    return Headline("How small", f"{mine / theirs:.0%}", meaning)


def health_checks(run: Run) -> dict[str, Health]:
    """Is each student an ensemble? Seeds pooled; the DEE is that of the median seed."""
    teachers_kld = run.mean(TEACHERS, "kld").mean
    found = {}
    for method in run.methods:
        if (tested := run.pooled(method, "test")) is not None:
            health = tested.health(teachers_kld, median_dee(run, method))
            found[method] = Health(health.verdict, (*health.findings, *_factors(run, method)))
    return found


def _factors(run: Run, method: str) -> list[str]:
    distances = [row.distance for row in run.table(FactorDistance) if row.model == method]
    if not distances:
        return []
    distance = statistics.fmean(distances)
    return [f"Their rank-one factors are apart by {distance:.2f} of their norm (fresh ones: about 0.85)."]
