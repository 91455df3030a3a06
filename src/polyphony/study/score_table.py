"""Saved predictions → scores.csv: one tidy row for each model, seed, split and calibration."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from polyphony import metrics
from polyphony.compute.seeds import generator
from polyphony.execute.job import Job
from polyphony.metrics import Predictions
from polyphony.runs.predictions import UNLABELLED
from polyphony.runs.rows import EnsembleNll, Score, TableRow, Temperature, UnlabelledKld, columns
from polyphony.runs.scores import BEST_TEACHER, TEACHERS
from polyphony.study.cost import parameters, sketch_models
from polyphony.study.plan import predictions_of
from polyphony.study.saved import Saved, write_table
from polyphony.study.study import Study
from polyphony.study.trust import write_trust


def write_scores(study: Study, jobs: Sequence[Job]) -> list[Score]:
    """Write scores.csv and the run's other tables from the predictions of a plan; returns the scores."""
    predictions = {key: file.load() for key, file in predictions_of(jobs).items()}
    unlabelled = predictions.pop((TEACHERS, None, UNLABELLED), None)
    valid, test = (predictions[TEACHERS, None, split] for split in ("valid", "test"))
    curves = [*dee_curves("valid", valid, valid), *dee_curves("test", test, valid)]
    saved = with_best_teacher(predictions, study.recipe.members)
    temperatures = [
        Temperature(model, seed, logits.fit_temperature())
        for (model, seed, split), logits in saved.items()
        if split == "valid"
    ]
    without_voice = [name for name in study.recipe.methods if not study.recipe.form(name).one_to_one]
    sketch = sketch_models(study)
    best = {model: parameters(sketch.networks[j or 0]) for model, j, _ in saved if model == BEST_TEACHER}
    rows = list(score(saved, temperatures, curves, sketch.parameter_counts | best, without_voice))
    write_table(study.folder, EnsembleNll, curves)
    write_table(study.folder, Temperature, temperatures)
    write_table(study.folder, Score, rows)
    write_trust(study.folder, saved, temperatures, study.data().classes)
    if unlabelled:
        klds = unlabelled.mean_kld(), saved[TEACHERS, None, "valid"].mean_kld()
        write_table(study.folder, UnlabelledKld, [UnlabelledKld(len(unlabelled.labels), *klds)])
    return rows


def with_best_teacher(saved: Saved, members: int) -> Saved:
    """Predictions of one teacher for each member, then of the best of them alone, then of the students."""
    teachers = {key: predictions.first(members) for key, predictions in saved.items() if key[0] == TEACHERS}
    students = {key: predictions for key, predictions in saved.items() if key not in teachers}
    if members == 1:
        return teachers | students
    best = best_member(teachers[TEACHERS, None, "valid"])
    alone = {
        (BEST_TEACHER, best, split): teachers[TEACHERS, None, split].member(best)
        for split in ("valid", "test")
    }
    return teachers | alone | students


def best_member(valid: Predictions) -> int:
    """The member with the lowest NLL on validation images, each at its best temperature."""
    members = [valid.member(j) for j in range(valid.members)]
    nlls = [metrics.nll(member.log_probs(member.fit_temperature()), member.labels) for member in members]
    return nlls.index(min(nlls))


def dee_curves(split: str, teachers: Predictions, valid: Predictions) -> Iterator[EnsembleNll]:
    """The mean NLL on a split of deep ensembles of 0, 1, 2, … teachers, calibrated and not."""
    for kind, calibrate_on in {"calibrated": valid, "standard": None}.items():
        curve = metrics.dee_curve(teachers, generator("subsets", 0), calibrate_on)
        yield from (EnsembleNll(split, kind, size, nll) for size, nll in enumerate(curve))


def score(
    saved: Saved,
    temperatures: Sequence[Temperature],
    curves: Sequence[EnsembleNll],
    params: Mapping[str, int],
    without_voice: Collection[str],
) -> Iterator[Score]:
    """A row for each model, seed, split and calibration.

    The column `voice` is empty for the methods in `without_voice`: no member of theirs has its own teacher.
    """
    fit = {(row.model, row.seed): row.temperature for row in temperatures}
    for (model, seed, split), predictions in saved.items():
        baseline = model in (TEACHERS, BEST_TEACHER)
        compared = {} if baseline else fidelity(predictions, saved[TEACHERS, None, split])
        compared |= {"voice": None} if model in without_voice else {}
        for kind, own in by_calibration(predictions, fit[model, seed], Score).items():
            curve = [row.nll for row in curves if (row.split, row.calibration) == (split, kind)]
            dee = metrics.dee(own["nll"], curve) if curve else None
            yield Score(model, seed, split, kind, dee=dee, params=params[model], **own, **compared)


def fidelity(student: Predictions, teachers: Predictions) -> dict[str, Any]:
    """The columns that compare a student with its teachers on the same images (fields of `Fidelity`)."""
    result = student.fidelity(teachers)
    return {name: getattr(result, name) for name in columns(Score) if hasattr(result, name)}


def by_calibration(
    predictions: Predictions, temperature: float, kind: type[TableRow]
) -> dict[str, dict[str, Any]]:
    """The scores that are columns of `kind`, by calibration: at temperature 1, and at `temperature`."""
    scores = {"standard": predictions.scores(), "calibrated": predictions.scores(temperature)}
    names = set(columns(kind))
    return {
        calibration: {column: row[column] for column in row.keys() & names}
        for calibration, row in scores.items()
    }
