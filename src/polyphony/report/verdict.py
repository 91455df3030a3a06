"""The result of a run in plain sentences: the verdict for page and terminal, and advice for the page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from polyphony import metrics
from polyphony._util.text import counted, listed
from polyphony.distill.match import is_at_end
from polyphony.metrics import MeanSd, Predictions
from polyphony.metrics.temperature import TEMPERATURE_BOUNDS
from polyphony.runs.run import Run
from polyphony.runs.scores import BEST_TEACHER, TEACHERS, BySeed, by_shared_seeds, differ, mean_text

ALIKE = 0.05  # members are alike if their mean-KLD is below this share of the teachers'
LITTLE, ENOUGH, MUCH = 0.25, 0.5, 2.0  # shares of the teachers' disagreement on validation images
SUGGESTED_TEMPERATURE = 4.0
TRAINED = 0.95  # a student below this share of the teachers' training accuracy needs longer training
CHEAPER = 0.75  # of the best student's milliseconds: below it, another student is worth a note
SIMILAR = 1.02  # times the best student's NLL: above it, a student is not named, however unsure the seeds
ONE_SEED = "Every student was trained once, so a difference between two methods may be chance."


@dataclass(frozen=True)
class Headline:
    """One of the three main numbers: its title, the number, what it means."""

    about: str
    number: str
    meaning: str


@dataclass(frozen=True)
class Verdict:
    """One sentence, three main numbers, notes on how far to trust them, and a sentence on each student."""

    sentence: str
    headlines: Sequence[Headline]
    notes: Sequence[str]
    students: Mapping[str, str]


def verdict(run: Run) -> Verdict:
    """Compare the student that is best on validation images with one teacher and with all teachers."""
    name = best_on_validation(run)
    notes = [*_certainty_notes(run, name), *_cheaper_note(run, name), *warnings_of(run, run.methods)]
    headlines = [_worth(run, name), _price(run, name), _following(run, name)]
    students = {method: _student(run, method) for method in run.methods}
    return Verdict(_sentence(run, name), headlines, notes, students)


def best_on_validation(run: Run) -> str:
    """The method with the lowest mean calibrated NLL on validation images; the first if none has scores."""
    return min(run.methods, key=lambda name: _mean_valid_nll(run, name))


def _mean_valid_nll(run: Run, name: str) -> float:
    """A method's calibrated NLL on validation images, mean over seeds; infinite without scores."""
    return statistics.fmean(run.valid_nll(name).values() or [math.inf])


def _sentence(run: Run, name: str) -> str:
    """The student's cost and NLL, beside the NLLs of one teacher and of all teachers."""
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
    student = f"{name}, at {cost}, has a calibrated NLL of {_nll(run, name)} on test images."
    return f"{student} {rivals}.{_errors(run, name)}"


def _errors(run: Run, name: str) -> str:
    """ "At 80 % coverage its error rate is 8.6 %, that of your best single network 10.0 %.", or nothing."""
    if run.baseline is None:
        return ""
    student, teacher = (run.mean(model, "error_80").mean for model in (name, run.baseline))
    if math.isnan(student) or math.isnan(teacher):  # older runs did not measure it
        return ""
    rates = f"{100 * student:.1f} %, that of your best single network {100 * teacher:.1f} %"
    return f" At 80 % coverage its error rate is {rates}.".replace(" %", "\N{NO-BREAK SPACE}%")


def _nll(run: Run, model: str) -> str:
    return f"{run.mean(model, 'nll').mean:.3f}"


def _size(run: Run, name: str) -> str:
    return percent(run.params(name) / run.params(TEACHERS))


def percent(share: float) -> str:
    """ "62 %" with a no-break space."""
    return f"{round(100 * share)}\N{NO-BREAK SPACE}%"


# The three numbers


def _worth(run: Run, name: str) -> Headline:
    dee = run.dee(name)
    if dee is None:
        return Headline("Calibrated NLL", _nll(run, name), "on test images, lower is better")
    seeds = f"; seeds {dee.seeds}" if dee.seeds else ""
    return Headline("Worth", dee.text, f"teachers averaged have the same NLL (DEE{seeds})")


def _price(run: Run, name: str) -> Headline:
    student, teacher, times = run.price(name), run.price(run.baseline or ""), run.times_one_teacher(name)
    if student is None or teacher is None or times is None:
        meaning = f"of the teachers’ parameters: {run.params(name):,} of {run.params(TEACHERS):,}"
        return Headline("Price", _size(run, name), meaning)
    speed = f"{student.milliseconds:.3g} ms against {teacher.milliseconds:.3g} ms"
    if student.bytes and teacher.bytes:
        speed += f"; file {megabytes(student.bytes)} against {megabytes(teacher.bytes)}"
    how = f"{counted(student.batch, 'image')}, {counted(student.threads, 'thread')}, {student.runtime}"
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
    return Headline("Follows its teachers", percent(share), f"{meaning}{_diversity(run, name)}")


def _diversity(run: Run, name: str) -> str:
    """ "; its mean-KLD is 62 % of the teachers’"; empty if unknown."""
    share = run.diversity_share(name)
    return "" if share is None else f"; its mean-KLD is {percent(share)} of the teachers’"


# Notes


def best_and_ties(nlls: Mapping[str, BySeed]) -> tuple[str, MeanSd, list[str]]:
    """The student with the lowest NLL, that NLL, and the students that it is not clearly better than.

    Only seeds that all students have count.
    """
    nlls = by_shared_seeds(nlls)
    means = {name: metrics.mean_sd(list(seeds.values())) for name, seeds in nlls.items()}
    best = min(means, key=lambda name: means[name].mean)
    ties = [name for name in nlls if name != best and not differ(nlls[best], nlls[name])]
    return best, means[best], ties


def _certainty_notes(run: Run, name: str) -> list[str]:
    """In how many seeds a student beats the best teacher, and whether the best student is clearly best."""
    best, nll, ties = best_and_ties({method: run.by_seed(method, "nll") for method in run.methods})
    if nll.n == 1:
        return [ONE_SEED]
    notes = []
    if run.baseline:
        nlls, one = run.by_seed(name, "nll").values(), run.mean(run.baseline, "nll").mean
        seeds = f"{sum(nll < one for nll in nlls)} of {len(nlls)} seeds"
        notes.append(f"{name} is better than your best network in {seeds}.")
    if len(run.methods) > 1:
        interval = f"the 95 % interval of the difference, paired over {nll.n} seeds,"
        order = f" and is clearly better than every other student: {interval} excludes zero."
        if ties:
            order = f", but is not clearly better than {listed(ties)}: {interval} includes zero."
        notes.append(f"On test images {best} has the lowest NLL ({mean_text('nll', nll)}){order}")
    return notes


def _cheaper_note(run: Run, name: str) -> list[str]:
    """The cheapest student with about the NLL of `name` on validation images; empty if there is none."""
    mine, nlls = run.price(name), run.valid_nll(name)
    if mine is None or len(nlls) < 2:
        return []
    shares = {
        method: price.milliseconds / mine.milliseconds
        for method in run.methods
        if (price := run.price(method)) and not differ(nlls, run.valid_nll(method))
        if not run.is_worse(method)
        if _mean_valid_nll(run, method) <= SIMILAR * _mean_valid_nll(run, name)
    }
    cheapest = min(shares, key=shares.__getitem__, default=name)
    if shares.get(cheapest, 1) > CHEAPER:
        return []
    own, other = (_mean_valid_nll(run, method) for method in (name, cheapest))
    return [
        f"{cheapest} takes {percent(shares[cheapest])} of the time of {name} and is not clearly worse on"
        f" validation images (NLL {other:.3f} against {own:.3f}): use it if milliseconds count."
    ]


def warnings_of(run: Run, methods: Sequence[str]) -> list[str]:
    """Which methods are worse than one teacher or have members that are alike, and what to change."""
    return [*_worse_note(run, methods), *_alike_note(run, methods)]


def _worse_note(run: Run, methods: Sequence[str]) -> list[str]:
    worse = [name for name in methods if run.is_worse(name)]
    if not worse:
        return []
    start = ' start from a teacher (student.start = "teacher"),'
    if all(map(run.recipe.starts_from_teacher, worse)):
        start = " lower student.learning_rate,"
    nlls = {name: run.mean(name, "nll").mean for name in worse}
    teacher = f" (calibrated test NLL {run.mean(run.baseline, 'nll').mean:.3f})" if run.baseline else ""
    return [
        f"Worse than one teacher{teacher}: {listed([f'{name} ({nll:.3f})' for name, nll in nlls.items()])}."
        f" Train longer (student.epochs),{start} or use a larger network."
    ]


def _alike_note(run: Run, methods: Sequence[str]) -> list[str]:
    names = [name for name in methods if run.perturbation(name) is not None and is_alike(run, name)]
    if not names:
        return []
    return [
        f'The members of {listed(names)} are almost alike: one network (form = "single") would do the same'
        ' at a lower cost. To make them differ, train on perturbed images (perturb = "ods"), or use a larger'
        " step_size or a higher temperature."
    ]


def is_alike(run: Run, name: str) -> bool:
    """Whether a student's members differ much less than the teachers, by mean-KLD."""
    teachers = run.mean(TEACHERS, "kld").mean
    return run.mean(name, "kld").mean < ALIKE * teachers and run.members_of(name) > 1


# Each student


def _student(run: Run, name: str) -> str:
    """One sentence: the student's NLL beside one teacher's, and what its members do."""
    nll, dee = f"NLL {_nll(run, name)}", run.dee(name)
    quality = f"{nll}, worth {dee.text} teachers (DEE)" if dee else nll
    if run.baseline:
        word = "Worse" if run.is_worse(name) else "Better"
        quality = f"{word} than your best network ({nll} against {_nll(run, run.baseline)})"
    return f"{quality}; {_members(run, name)}{_found_step(run, name)}."


def _found_step(run: Run, name: str) -> str:
    """ "; step size 12/255, chosen by short trainings"; empty if the recipe states the step."""
    rule = run.recipe.setting(name, "step_size")
    steps = [done.step_size for done in run.trainings[name] if done.step_size]
    if not isinstance(rule, str) or not steps:
        return ""
    how = {"search": "chosen by short trainings", "match": "matched to the teachers’ disagreement"}[rule]
    if rule == "match" and is_at_end(steps[0]):
        how = "an end of the range of “match”: set a number, such as 3/255"
    return f"; step size {255 * steps[0]:.3g}/255, {how}"


def _members(run: Run, name: str) -> str:
    members, share = run.members_of(name), run.follows(name)
    if members == 1:
        return "one network without members"
    if run.perturbation(name) is None:
        return "trained on labels alone, so its members follow no teacher"
    if is_alike(run, name):
        return "its members are almost alike"
    if share is None:
        return f"{members} members"
    return f"its members follow their own teachers by {percent(share)}{_diversity(run, name)}"


# Advice on how to distil, from the teachers' predictions on training images and from the logs


def advice(run: Run) -> list[str]:
    """Sentences that say what to try next."""
    return [*visible_disagreement(run), *undertrained(run), *uncalibrated(run)]


def visible_disagreement(run: Run) -> list[str]:
    """How much of the teachers' disagreement training images reveal, clean and perturbed."""
    train, valid = (run.pooled(TEACHERS, split) for split in ("train", "valid"))
    if train is None or valid is None or run.members == 1 or not valid.mean_kld():
        return []
    temperature = run.recipe.student.temperature
    share = visible_share(train, valid, temperature)
    sees = "little of it"
    if share >= LITTLE:
        sees = "most of it: try that first" if share >= ENOUGH else "part of it"
    note = (
        f"At temperature {temperature:g} the teachers disagree on training images {percent(share)} as much as"
        f" on validation images. Plain distillation sees {sees}."
    )
    if share >= LITTLE:
        return [note]
    return [note, *_perturbation_notes(run, valid), *_temperature_note(train, valid, temperature)]


def _perturbation_notes(run: Run, valid: Predictions) -> Iterator[str]:
    """How much disagreement each perturbation reveals, at the temperature of its methods."""
    for names, perturbed in run.perturbed_training:
        by_temperature: dict[float, list[str]] = {}
        for name in names:
            by_temperature.setdefault(float(run.recipe.setting(name, "temperature")), []).append(name)
        for temperature, methods in by_temperature.items():
            share = visible_share(perturbed, valid, temperature)
            hint = ": a larger step would reveal more" if share < ENOUGH else ""
            if share > MUCH:
                hint = ": the step may be too large; try smaller ones on validation images"
            how = f"perturbed as in {listed(methods)} (temperature {temperature:g})"
            yield f"On images {how} they disagree {percent(share)} as much{hint}."


def _temperature_note(train: Predictions, valid: Predictions, temperature: float) -> list[str]:
    """How much clean images reveal at the suggested temperature; empty if that is little, or not higher."""
    share = visible_share(train, valid, SUGGESTED_TEMPERATURE)
    if temperature >= SUGGESTED_TEMPERATURE or share < LITTLE:
        return []
    return [
        f"At temperature {SUGGESTED_TEMPERATURE:g} they disagree {percent(share)} as much on clean training"
        " images. That is cheaper to try; compare both on validation images."
    ]


def visible_share(images: Predictions, valid: Predictions, temperature: float) -> float:
    """The teachers' mean-KLD on some images divided by that on validation images, both at a temperature."""
    mean_klds = [Predictions(each.logits / temperature, each.labels).mean_kld() for each in (images, valid)]
    return mean_klds[0] / mean_klds[1]


def undertrained(run: Run) -> list[str]:
    """Which students of plain distillation have a lower training accuracy than the teachers, if any."""
    teachers = _accuracy(run, TEACHERS)
    students = {name: _accuracy(run, name) for name in run.methods_with("clean")}
    behind = [f"{name} ({percent(acc)})" for name, acc in students.items() if acc < TRAINED * teachers]
    if not behind:
        return []
    return [
        "After training, these students get fewer training images right than the teachers"
        f" ({percent(teachers)}): {listed(behind)}. Train them longer before you compare a perturbation with"
        " them."
    ]


def _accuracy(run: Run, model: str) -> float:
    """The training accuracy in the last epoch, mean over a model's trainings; NaN without logs."""
    accuracies = [log[-1].get("acc", math.nan) for log in run.logs(model) if log]
    return statistics.fmean(accuracies) if accuracies else math.nan


def uncalibrated(run: Run) -> list[str]:
    """Which models have, for any seed, a temperature at a bound of the search range; empty if none."""
    models = dict.fromkeys(model for (model, _), t in run.temperatures.items() if t in TEMPERATURE_BOUNDS)
    if not models:
        return []
    low, high = TEMPERATURE_BOUNDS
    return [
        f"The temperature fitted for {listed(list(models))} is at a bound of the search range"
        f" ({low:g} to {high:,.0f}): calibrated scores mean little there."
    ]
