"""What the page says before any figure: the verdict, advice on how to distil, and the health check."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from polyphony import metrics
from polyphony._util.text import listed
from polyphony.metrics import Health, Predictions
from polyphony.metrics.temperature import TEMPERATURE_BOUNDS
from polyphony.report.run import Run
from polyphony.runs.rows import FactorDistance
from polyphony.runs.scores import TEACHERS, TRAINED_ONCE, Standing, differ, score_text

LITTLE, ENOUGH, MUCH = 0.25, 0.5, 2.0  # of the teachers' disagreement on validation images
WARM = 4.0  # the temperature that is suggested
LEARNT = 0.95  # of the share of training images that the teachers have right


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


def take_home(run: Run, health: Mapping[str, Health]) -> TakeHome:
    """The student chosen on validation images against its teachers, and what else a reader must know."""
    standing = Standing.of({method: run.by_seed(method, "nll") for method in run.methods})
    champion = chosen(run)
    small = run.params(champion) / run.params(TEACHERS)
    sentence = (
        f"The student chosen on validation images, {champion}, {_as_diverse_as(run, champion)}"
        f" and {_as_good_as(run, champion)}, with {small:.0%} of the teachers’ parameters."
    )
    qualified = [*_spread(run, champion, standing), *_most_diverse(run, champion), *_collapsed(health)]
    headlines = [_how_diverse(run, champion), _how_good(run, champion), _how_small(run, champion)]
    return TakeHome(sentence, [*qualified, *hints(run), *unlearnt(run), *uncalibrated(run)], headlines)


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
    """The calibrated DEE of the median seed, the lower of two where one of them is past the curve."""
    known = [score.dee for score in run.scored(model) if score.dee is not None]
    middle = statistics.median_low if math.inf in known else statistics.median
    return middle(known) if known else None


def _as_diverse_as(run: Run, model: str) -> str:
    kld, share = run.mean(model, "kld").mean, kept(run, model)
    if run.members_of(model) == 1:
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
    count = score_text("dee", [dee], run.teacher_count).replace(">", "more than ")
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
    klds = {name: run.by_seed(name, "kld") for name in distilled if run.members_of(name) > 1}
    if not klds:
        return ["No distilled student has members: all are one network."]
    means = {name: statistics.fmean(each.values()) for name, each in klds.items()}
    top = max(means, key=lambda name: means[name])
    if top == champion:
        return [f"No distilled student is more diverse than {top}."] if len(klds) > 1 else []
    more = [name for name, mean in means.items() if mean > means.get(champion, 0.0)]
    told = [name for name in more if champion not in klds or differ(klds[name], klds[champion])]
    if not told and len(klds[top]) > 1:
        return [f"No distilled student can be told to be more diverse than {champion}."]
    top = max(told or more, key=lambda name: means[name])
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
    return Headline("How good", score_text("dee", [dee], run.teacher_count), meaning)


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
    own_start = getattr(run.recipe.form_table(method), "factor_std", 0.0) is not None
    fresh = not (run.recipe.starts_from_teacher(method) or own_start)
    beside = " (fresh ones: about 0.85)" if fresh else ""
    return [f"Their rank-one factors are apart by {statistics.fmean(distances):.2f} of their norm{beside}."]


def hints(run: Run) -> list[str]:
    """Whether the teachers show on training images what they know, at the student's temperature."""
    clean, held = (run.pooled(TEACHERS, split) for split in ("train", "valid"))
    if clean is None or held is None or run.members == 1 or not held.mean_kld():
        return []
    warmth = run.recipe.student.temperature
    share = share_shown(clean, held, warmth)
    said = (
        f"At τ = {warmth:g} the teachers’ disagreement on training images is {_kld(clean, warmth):.2g}"
        f" (mean-KLD), {share:.0%} of that on validation images:"
    )
    if share >= LITTLE:
        rest = "most of it; try that first" if share >= ENOUGH else "a part of it"
        return [f"{said} plain distillation is shown {rest}."]
    ways_out = [_of_perturbation(*each, held) for each in moved_alike(run)]
    warm = share_shown(clean, held, WARM)
    if warmth < WARM and warm >= LITTLE:
        ways_out.append(
            f"At τ = {WARM:g} training images show {warm:.0%} of it without any: a temperature is the cheaper"
            " way to try, and validation images say whether it is the better one. Such a student may be"
            " overconfident until its own temperature is fitted."
        )
    return [f"{said} plain distillation is shown little of it.", *ways_out]


def moved_alike(run: Run) -> Iterator[tuple[list[str], float, Predictions]]:
    """Methods with the same moved images and temperature, that, and what the teachers predicted there."""
    for names, seen in run.moved:
        warmths = {name: float(run.recipe.setting(name, "temperature")) for name in names}
        for warmth in dict.fromkeys(warmths.values()):
            yield [name for name in names if warmths[name] == warmth], warmth, seen


def _of_perturbation(names: list[str], warmth: float, seen: Predictions, held: Predictions) -> str:
    """How far methods that perturb alike bring the disagreement out, at the temperature they have."""
    share = share_shown(seen, held, warmth)
    verb = "moves" if len(names) == 1 else "move"
    shown = f"Where {listed(names)} {verb} them, at τ = {warmth:g}, they show {share:.0%} of it"
    if share > MUCH:
        return f"{shown}: try other steps on validation images, smaller ones too."
    return f"{shown}{': a larger step would show more, which need not be better' if share < ENOUGH else ''}."


def unlearnt(run: Run) -> list[str]:
    """Which plain distillation has not learnt its training images as far as the teachers have, if any."""
    taught = _learnt(run, TEACHERS)
    shares = {name: _learnt(run, name) for name in run.methods_with("clean")}
    behind = [f"{name} ({share:.0%})" for name, share in shares.items() if share < LEARNT * taught]
    if not behind:
        return []
    return [
        f"Students of {listed(behind)} end with fewer of their training images right than their teachers"
        f" ({taught:.0%}): train them longer before a perturbation is judged by them."
    ]


def _learnt(run: Run, model: str) -> float:
    """The mean share of training images right in the last epoch of a model's trainings; NaN without logs."""
    last = [log[-1].get("acc", math.nan) for log in run.logs(model) if log]
    return statistics.fmean(last) if last else math.nan


def uncalibrated(run: Run) -> list[str]:
    """Which models' temperatures were fitted at an end of the range, of whichever seed, if any."""
    ends = [model for (model, _), fitted in run.temperatures.items() if fitted in TEMPERATURE_BOUNDS]
    if not ends:
        return []
    low, high = TEMPERATURE_BOUNDS
    return [
        f"A temperature fitted for {listed(list(dict.fromkeys(ends)))} is at an end of the range that was"
        f" searched, {low:g} to {high:,.0f}: calibrated scores mean little there."
    ]


def share_shown(seen: Predictions, held: Predictions, temperature: float) -> float:
    """The teachers' mean-KLD on some images as a share of that on held-out ones, both at a temperature."""
    return _kld(seen, temperature) / _kld(held, temperature)


def _kld(teachers: Predictions, temperature: float) -> float:
    return Predictions(teachers.logits / temperature, teachers.labels).mean_kld()
