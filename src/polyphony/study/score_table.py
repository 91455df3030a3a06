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
from polyphony.study.cost import parameters, sketched
from polyphony.study.plan import predictions_of
from polyphony.study.saved import Saved, write_table
from polyphony.study.study import Study
from polyphony.study.trust import write_trust


def write_scores(study: Study, jobs: Sequence[Job]) -> list[Score]:
    """Score the predictions of a plan: scores.csv, dee.csv and temperatures.csv."""
    every = {what: file.load() for what, file in predictions_of(jobs).items()}
    unlabelled = every.pop((TEACHERS, None, UNLABELLED), None)
    teachers = {split: every[TEACHERS, None, split] for split in ("valid", "test")}
    curves = [row for split, each in teachers.items() for row in dee_curves(split, each, teachers["valid"])]
    saved = with_best_teacher(every, study.recipe.members)
    valid = {(model, seed): each for (model, seed, split), each in saved.items() if split == "valid"}
    temperatures = [Temperature(*who, each.fit_temperature()) for who, each in valid.items()]
    drawn = [name for name in study.recipe.methods if not study.recipe.form(name).one_to_one]
    sketch = sketched(study)
    best = {name: parameters(sketch.networks[j or 0]) for name, j in valid if name == BEST_TEACHER}
    rows = list(score(saved, temperatures, curves, sketch.parameter_counts | best, drawn))
    write_table(study.folder, EnsembleNll, curves)
    write_table(study.folder, Temperature, temperatures)
    write_table(study.folder, Score, rows)
    write_trust(study.folder, saved, temperatures, study.data().classes)
    if unlabelled:
        klds = unlabelled.mean_kld(), saved[TEACHERS, None, "valid"].mean_kld()
        shown = UnlabelledKld(len(unlabelled.labels), *klds)
        write_table(study.folder, UnlabelledKld, [shown])
    return rows


def with_best_teacher(saved: Saved, members: int) -> Saved:
    """Predictions of the ensemble's own teachers, then of the best one alone, then of the students."""
    teachers = {key: each.first(members) for key, each in saved.items() if key[0] == TEACHERS}
    students = {key: each for key, each in saved.items() if key not in teachers}
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
    nlls = [metrics.nll(each.log_probs(each.fit_temperature()), each.labels) for each in members]
    return nlls.index(min(nlls))


def dee_curves(split: str, teachers: Predictions, valid: Predictions) -> Iterator[EnsembleNll]:
    """The NLL of deep ensembles of size 0, 1, 2, … of all teachers on a split, for both calibrations."""
    for kind, on in {"calibrated": valid, "standard": None}.items():
        curve = metrics.dee_curve(teachers, generator("subsets", 0), on)
        yield from (EnsembleNll(split, kind, size, nll) for size, nll in enumerate(curve))


def score(
    saved: Saved,
    temperatures: Sequence[Temperature],
    curves: Sequence[EnsembleNll],
    params: Mapping[str, int],
    drawn: Collection[str],
) -> Iterator[Score]:
    """A row for each model, seed, split and calibration. Models that are `drawn` follow no teacher."""
    fit = {(row.model, row.seed): row.temperature for row in temperatures}
    for (model, seed, split), predictions in saved.items():
        baseline = model in (TEACHERS, BEST_TEACHER)
        beside = {} if baseline else fidelity(predictions, saved[TEACHERS, None, split])
        beside |= {"voice": None} if model in drawn else {}
        for kind, measured in by_calibration(predictions, fit[model, seed], Score).items():
            curve = [row.nll for row in curves if (row.split, row.calibration) == (split, kind)]
            dee = metrics.dee(measured["nll"], curve) if curve else None
            yield Score(model, seed, split, kind, dee=dee, params=params[model], **measured, **beside)


def fidelity(student: Predictions, teachers: Predictions) -> dict[str, Any]:
    """The columns of a student next to its teachers on the same images (the fields of `Fidelity`)."""
    found = student.fidelity(teachers)
    return {name: getattr(found, name) for name in columns(Score) if hasattr(found, name)}


def by_calibration(
    predictions: Predictions, temperature: float, kind: type[TableRow]
) -> dict[str, dict[str, Any]]:
    """The columns that predictions have by themselves, as predicted and at a temperature."""
    scores = {"standard": predictions.scores(), "calibrated": predictions.scores(temperature)}
    wanted = set(columns(kind))
    return {name: {column: each[column] for column in each.keys() & wanted} for name, each in scores.items()}
