"""Saved predictions → scores.csv: one tidy row for each model, seed, split and calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from polyphony import metrics
from polyphony.compute.seeds import generator
from polyphony.execute.job import Job
from polyphony.metrics import Predictions
from polyphony.recipe import Recipe
from polyphony.runs.predictions import UNLABELLED
from polyphony.runs.rows import EnsembleNll, Score, TableRow, Temperature, UnlabelledKld, columns
from polyphony.runs.scores import TEACHERS, by_quality, mean_of, score_text, select
from polyphony.study.plan import predictions_of
from polyphony.study.saved import write_table
from polyphony.study.sketch import sketched
from polyphony.study.study import Study
from polyphony.study.trust import write_trust


def write_scores(study: Study, jobs: Sequence[Job]) -> list[Score]:
    """Score what the jobs of a plan predicted: scores.csv, and the curves and temperatures behind it."""
    saved = {what: file.load() for what, file in predictions_of(jobs).items()}
    unlabelled = saved.pop((TEACHERS, None, UNLABELLED), None)
    teachers = {split: saved[TEACHERS, None, split] for split in ("valid", "test")}
    curves = [row for split, each in teachers.items() for row in dee_curves(split, each, teachers["valid"])]
    saved |= {key: each.first(study.recipe.members) for key, each in saved.items() if key[0] == TEACHERS}
    valid = {(model, seed): each for (model, seed, split), each in saved.items() if split == "valid"}
    temperatures = [Temperature(*who, each.fit_temperature()) for who, each in valid.items()]
    rows = list(score(saved, temperatures, curves, parameter_counts(study)))
    write_table(study.folder, EnsembleNll, curves)
    write_table(study.folder, Temperature, temperatures)
    write_table(study.folder, Score, rows)
    write_trust(study.folder, saved, temperatures, study.splits.classes)
    if unlabelled:
        klds = unlabelled.mean_kld(), saved[TEACHERS, None, "valid"].mean_kld()
        shown = UnlabelledKld(len(unlabelled.labels), *klds)
        write_table(study.folder, UnlabelledKld, [shown])
    return rows


def dee_curves(split: str, teachers: Predictions, valid: Predictions) -> Iterator[EnsembleNll]:
    """The NLL of deep ensembles of size 0, 1, 2, … of all teachers on a split, for both calibrations."""
    for kind, on in {"calibrated": valid, "standard": None}.items():
        curve = metrics.dee_curve(teachers, generator("subsets", 0), on)
        yield from (EnsembleNll(split, kind, size, nll) for size, nll in enumerate(curve))


def score(
    saved: Mapping[tuple[str, int | None, str], Predictions],
    temperatures: Sequence[Temperature],
    curves: Sequence[EnsembleNll],
    params: Mapping[str, int],
) -> Iterator[Score]:
    """A row for each model, seed, split and calibration of saved predictions."""
    fit = {(row.model, row.seed): row.temperature for row in temperatures}
    for (model, seed, split), predictions in saved.items():
        beside = {} if model == TEACHERS else fidelity(predictions, saved[TEACHERS, None, split])
        for kind, measured in by_calibration(predictions, fit[model, seed], Score).items():
            curve = [row.nll for row in curves if (row.split, row.calibration) == (split, kind)]
            dee = metrics.dee(measured["nll"], curve) if curve else None
            yield Score(model, seed, split, kind, dee=dee, params=params[model], **measured, **beside)


def fidelity(student: Predictions, teachers: Predictions) -> dict[str, Any]:
    """The columns of a student beside its teachers on the same images: all that `Fidelity` has of a row."""
    found = student.fidelity(teachers)
    return {name: getattr(found, name) for name in columns(Score) if hasattr(found, name)}


def by_calibration(
    predictions: Predictions, temperature: float, kind: type[TableRow]
) -> dict[str, dict[str, Any]]:
    """The columns of a table that predictions have by themselves, as predicted and at a temperature."""
    scores = {"standard": predictions.scores(), "calibrated": predictions.scores(temperature)}
    wanted = set(columns(kind))
    return {name: {column: each[column] for column in each.keys() & wanted} for name, each in scores.items()}


def parameter_counts(study: Study) -> dict[str, int]:
    """Parameters of the teachers together, and of each method's student as it predicts."""
    return sketched(study).parameter_counts


def verdict(study: Study, rows: list[Score]) -> str:
    """What a newcomer should take home, in plain words: what one network keeps, and which is the best."""
    tested = {name: select(rows, name) for name in study.recipe.methods}
    nlls = {name: {row.seed: row.nll for row in each} for name, each in tested.items()}
    return f"{by_diversity(study, rows)} {by_quality(nlls)}".rstrip()


def by_diversity(study: Study, rows: list[Score]) -> str:
    """How much students keep of the teachers' diversity and quality, and of their parameters."""
    teachers = select(rows, TEACHERS)[0]
    if teachers.kld == 0:
        return "The teachers do not disagree on test images: there is no diversity to keep."
    said = f"The teachers' diversity on test images is {teachers.kld:.3f} (mean-KLD)"
    names = told_of(study.recipe)
    if not names:
        return f"{said}; no student was distilled."
    students = {name: select(rows, name) for name in names}
    size = students[names[0]][0].params
    alike = {name: each for name, each in students.items() if each[0].params == size}
    kept = "; ".join(kept_by(name, each, teachers, study) for name, each in alike.items())
    return f"{said}. One network with {size / teachers.params:.0%} of their parameters: {kept}."


def kept_by(name: str, student: list[Score], teachers: Score, study: Study) -> str:
    """What one method's students keep, over seeds."""
    share = mean_of(student, "kld").mean / teachers.kld
    dee = score_text("dee", [row.dee or 0.0 for row in student], study.teacher_count)
    keeps = f"keeps {share:.0%} of it" if share else "has none"
    words = f"is {share:.1f} times as diverse" if share > 1.05 else keeps  # as the page says it
    return f"{name} {words}, and is worth {dee} networks (DEE)"


MOST_TOLD_OF = 4


def told_of(recipe: Recipe) -> list[str]:
    """The first few methods with teachers, of the recipe's own form if any are."""
    names = [name for name, method in recipe.methods.items() if method.perturb]
    own = [name for name in names if recipe.form_table(name) == recipe.student.form]
    return (own or names)[:MOST_TOLD_OF]
