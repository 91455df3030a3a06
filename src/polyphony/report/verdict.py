"""What came out of a run, in plain words: the verdict that page and terminal show, and the page's advice."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from polyphony import metrics
from polyphony._util.text import counted, listed
from polyphony.metrics import MeanSd, Predictions
from polyphony.metrics.temperature import TEMPERATURE_BOUNDS
from polyphony.runs.run import Run
from polyphony.runs.scores import BEST_TEACHER, TEACHERS, BySeed, by_shared_seeds, differ, mean_text

ALIKE = 0.05  # of the teachers' mean-KLD: below it members count as alike
LITTLE, ENOUGH, MUCH = 0.25, 0.5, 2.0  # of the teachers' disagreement on validation images
WARM = 4.0  # the temperature that is suggested
LEARNT = 0.95  # of the teachers' accuracy on training images
ONCE = "Every student was trained once, so a difference between two methods may be chance."


@dataclass(frozen=True)
class Headline:
    """One of the three numbers that matter: what it is about, the number, what it means."""

    about: str
    number: str
    meaning: str


@dataclass(frozen=True)
class Verdict:
    """One sentence, three numbers, notes that qualify them, and a sentence about each student."""

    sentence: str
    headlines: Sequence[Headline]
    notes: Sequence[str]
    students: Mapping[str, str]


def verdict(run: Run) -> Verdict:
    """The student chosen on validation images against one teacher and all teachers, and what to change."""
    name = chosen(run)
    notes = [*_certainty(run, name), *_worse(run), *_alike(run)]
    headlines = [_worth(run, name), _price(run, name), _following(run, name)]
    students = {each: _student(run, each) for each in run.methods}
    return Verdict(_sentence(run, name), headlines, notes, students)


def chosen(run: Run) -> str:
    """The method with the lowest mean calibrated NLL on validation images."""
    rows = {name: run.scored(name, "valid") for name in run.methods}
    known = {name: statistics.fmean(row.nll for row in each) for name, each in rows.items() if each}
    return min(known or run.methods, key=lambda name: known.get(name, 0.0))


def _sentence(run: Run, name: str) -> str:
    """What the student costs and is worth, beside one teacher and all teachers."""
    times, together = run.times_one_teacher(name), _nll(run, TEACHERS)
    cost = f"{_size(run, name)} of the teachers’ parameters"
    if times is not None:
        cost = f"{times:.1f}× the latency of one teacher"
    rivals = f"All {run.members} teachers together have {together}"
    if run.members == 1:
        rivals = f"Its one teacher has {together}"
    elif run.baseline:
        one = f"Your best single network has {_nll(run, BEST_TEACHER)}"
        rivals = f"{one}, all {run.members} teachers together have {together}"
    own = f"{name}, at {cost}, has a calibrated NLL of {_nll(run, name)} on test images."
    return f"{own} {rivals}.{_errors(run, name)}"


def _errors(run: Run, name: str) -> str:
    """ "At 80 % coverage it makes 14 % fewer errors than your best single network." """
    if run.baseline is None:
        return ""
    mine, one = (run.mean(model, "error_80").mean for model in (name, run.baseline))
    if math.isnan(mine) or not one > 0:  # NaN: early runs did not measure it
        return ""
    share = mine / one - 1
    word = "fewer" if share < 0 else "more"
    return f" At 80 % coverage it makes {percent(abs(share))} {word} errors than your best single network."


def _nll(run: Run, model: str) -> str:
    return f"{run.mean(model, 'nll').mean:.3f}"


def _size(run: Run, name: str) -> str:
    return percent(run.params(name) / run.params(TEACHERS))


def percent(share: float) -> str:
    """ "62 %", never broken over two lines."""
    return f"{round(100 * share)}\N{NO-BREAK SPACE}%"


# The three numbers


def _worth(run: Run, name: str) -> Headline:
    dee = run.dee(name)
    if dee is None:
        return Headline("Calibrated NLL", _nll(run, name), "on test images, lower is better")
    seeds = f"; seeds {dee.seeds}" if dee.seeds else ""
    return Headline("Worth", dee.text, f"teachers averaged have the same NLL (DEE{seeds})")


def _price(run: Run, name: str) -> Headline:
    mine, one, times = run.price(name), run.price(run.baseline or ""), run.times_one_teacher(name)
    if mine is None or one is None or times is None:
        meaning = f"of the teachers’ parameters: {run.params(name):,} of {run.params(TEACHERS):,}"
        return Headline("Price", _size(run, name), meaning)
    speed = f"{mine.milliseconds:.3g} ms against {one.milliseconds:.3g} ms"
    if mine.bytes and one.bytes:
        speed += f"; file {megabytes(mine.bytes)} against {megabytes(one.bytes)}"
    how = f"{counted(mine.batch, 'image')}, {counted(mine.threads, 'thread')}, {mine.runtime}"
    return Headline("Price", f"{times:.1f}×", f"the latency of one teacher: {speed} ({how})")


def megabytes(size: int) -> str:
    """ "1.24 MB" """
    return f"{size / 1e6:.3g} MB"


def _following(run: Run, name: str) -> Headline:
    share = run.follows(name)
    if share is None:
        why = "it has no member for each teacher, or the teachers do not disagree"
        if run.members_of(name) == 1:
            why = "it is one network without members"
        return Headline("Follows its teachers", "–", why)
    meaning = f"of the way from no teacher in particular ({percent(0)}) to exact copies ({percent(1)})"
    return Headline("Follows its teachers", percent(share), f"{meaning}{_kept(run, name)}")


def _kept(run: Run, name: str) -> str:
    """The share of the diversity that a student keeps, in words."""
    kept = run.kept(name)
    return "" if kept is None else f"; it keeps {percent(kept)} of the teachers’ diversity"


# Notes


def standing(nlls: Mapping[str, BySeed]) -> tuple[str, MeanSd, list[str]]:
    """The student with the lowest NLL, that NLL, and the students that it is not clearly better than.

    Only seeds that all students have count.
    """
    nlls = by_shared_seeds(nlls)
    means = {name: metrics.mean_sd(list(each.values())) for name, each in nlls.items()}
    best = min(means, key=lambda name: means[name].mean)
    level = [name for name in nlls if name != best and not differ(nlls[best], nlls[name])]
    return best, means[best], level


def _certainty(run: Run, name: str) -> list[str]:
    """How certain the order of the students is, and that of the chosen one and the best teacher."""
    best, nll, level = standing({method: run.by_seed(method, "nll") for method in run.methods})
    if nll.n == 1:
        return [ONCE]
    said = []
    if run.baseline:
        nlls, one = run.by_seed(name, "nll").values(), run.mean(run.baseline, "nll").mean
        ahead = f"{sum(nll < one for nll in nlls)} of {len(nlls)} seeds"
        said.append(f"{name} is better than your best network in {ahead}.")
    if len(run.methods) > 1:
        interval = f"the 95 % interval of the difference, paired over {nll.n} seeds,"
        order = f" and is clearly better than every other student: {interval} excludes zero."
        if level:
            order = f", but is not clearly better than {listed(level)}: {interval} includes zero."
        said.append(f"On test images {best} has the lowest NLL ({mean_text('nll', nll)}){order}")
    return said


def _worse(run: Run) -> list[str]:
    """Which students are worse than one teacher, and what to change."""
    names = [name for name in run.methods if is_worse(run, name)]
    if not names:
        return []
    start = ' start from a teacher (student.start = "teacher"),'
    if all(map(run.recipe.starts_from_teacher, names)):
        start = " lower student.learning_rate,"
    return [
        f"Worse than one teacher: {listed(names)}. Train longer (student.epochs),{start} or take a larger"
        " network."
    ]


def is_worse(run: Run, name: str) -> bool:
    """Whether a student has a higher NLL than the best teacher, or without one a DEE below 1."""
    if run.baseline:
        return run.mean(name, "nll").mean > run.mean(run.baseline, "nll").mean
    dee = run.dee(name)
    return dee is not None and dee.value < 1


def _alike(run: Run) -> list[str]:
    """Which distilled students have members that are alike, and what to change."""
    names = [name for name in run.methods if run.perturbation(name) is not None and is_alike(run, name)]
    if not names:
        return []
    return [
        f'The members of {listed(names)} are almost alike: one network (form = "single") would do the same'
        ' for less. To make them differ, train on perturbed images (perturb = "ods"), take a larger'
        " step_size, or a higher temperature."
    ]


def is_alike(run: Run, name: str) -> bool:
    """Whether a student's members have almost none of the teachers' diversity."""
    teachers = run.mean(TEACHERS, "kld").mean
    return run.members_of(name) > 1 and run.mean(name, "kld").mean < ALIKE * teachers


# Each student


def _student(run: Run, name: str) -> str:
    """One sentence: its quality beside one teacher's, and its members."""
    nll, dee = f"NLL {_nll(run, name)}", run.dee(name)
    quality = f"{nll}, worth {dee.text} teachers (DEE)" if dee else nll
    if run.baseline:
        word = "Worse" if is_worse(run, name) else "Better"
        quality = f"{word} than your best network ({nll} against {_nll(run, run.baseline)})"
    return f"{quality}; {_of_members(run, name)}."


def _of_members(run: Run, name: str) -> str:
    members, share = run.members_of(name), run.follows(name)
    if members == 1:
        return "one network without members"
    if run.perturbation(name) is None:
        return "trained on labels alone, so its members follow no teacher"
    if is_alike(run, name):
        return "its members are almost alike"
    if share is None:
        return f"{members} members"
    return f"its members follow their own teachers by {percent(share)}{_kept(run, name)}"


# Advice on how to distil, from the teachers' predictions on training images and from the logs


def advice(run: Run) -> list[str]:
    """Sentences that say what to try next."""
    return [*visible_disagreement(run), *undertrained(run), *uncalibrated(run)]


def visible_disagreement(run: Run) -> list[str]:
    """How much of the teachers' disagreement training images reveal, clean and perturbed."""
    clean, held = (run.pooled(TEACHERS, split) for split in ("train", "valid"))
    if clean is None or held is None or run.members == 1 or not held.mean_kld():
        return []
    warmth = run.recipe.student.temperature
    share = share_shown(clean, held, warmth)
    sees = "little of it"
    if share >= LITTLE:
        sees = "most of it: try that first" if share >= ENOUGH else "part of it"
    said = (
        f"At temperature {warmth:g} the teachers disagree on training images {percent(share)} as much as on"
        f" validation images. Plain distillation sees {sees}."
    )
    return [said] if share >= LITTLE else [said, *_perturbed(run, held), *_warm(clean, held, warmth)]


def _perturbed(run: Run, held: Predictions) -> Iterator[str]:
    """What each perturbation reveals, at the temperature of its methods."""
    for names, seen in run.moved:
        warmths: dict[float, list[str]] = {}
        for name in names:
            warmths.setdefault(float(run.recipe.setting(name, "temperature")), []).append(name)
        for warmth, alike in warmths.items():
            share = share_shown(seen, held, warmth)
            hint = ": a larger step would reveal more" if share < ENOUGH else ""
            if share > MUCH:
                hint = ": the step may be too large; try smaller ones on validation images"
            how = f"perturbed as in {listed(alike)} (temperature {warmth:g})"
            yield f"On images {how} it is {percent(share)}{hint}."


def _warm(clean: Predictions, held: Predictions, warmth: float) -> list[str]:
    warm = share_shown(clean, held, WARM)
    if warmth >= WARM or warm < LITTLE:
        return []
    return [
        f"At temperature {WARM:g} it is {percent(warm)} on clean training images. That is cheaper to try;"
        " validation images tell which is better."
    ]


def share_shown(seen: Predictions, held: Predictions, temperature: float) -> float:
    """The teachers' mean-KLD on some images as a share of that on held-out ones, both at a temperature."""
    mine, others = (Predictions(each.logits / temperature, each.labels).mean_kld() for each in (seen, held))
    return mine / others


def undertrained(run: Run) -> list[str]:
    """Which students of plain distillation have learnt their training images less than the teachers."""
    taught = _accuracy(run, TEACHERS)
    shares = {name: _accuracy(run, name) for name in run.methods_with("clean")}
    behind = [f"{name} ({percent(share)})" for name, share in shares.items() if share < LEARNT * taught]
    if not behind:
        return []
    return [
        "After training, these students get fewer training images right than the teachers"
        f" ({percent(taught)}): {listed(behind)}. Train them longer before you compare a perturbation with"
        " them."
    ]


def _accuracy(run: Run, model: str) -> float:
    """The mean training accuracy in the last epoch of a model's trainings; NaN without logs."""
    last = [log[-1].get("acc", math.nan) for log in run.logs(model) if log]
    return statistics.fmean(last) if last else math.nan


def uncalibrated(run: Run) -> list[str]:
    """Which models have a temperature at a bound of the search range, for any seed."""
    ends = [model for (model, _), fitted in run.temperatures.items() if fitted in TEMPERATURE_BOUNDS]
    if not ends:
        return []
    low, high = TEMPERATURE_BOUNDS
    return [
        f"The temperature fitted for {listed(list(dict.fromkeys(ends)))} is at a bound of the search range"
        f" ({low:g} to {high:,.0f}): calibrated scores mean little there."
    ]
