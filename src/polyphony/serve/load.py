"""From a run folder to a student ready to use."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from torch import Tensor

from polyphony.recipe.read import suggestion
from polyphony.report.run import Run
from polyphony.rows import Score, Temperature, headings
from polyphony.serve.description import Description
from polyphony.serve.student import Student
from polyphony.store import FileError, Stage, StoreError, spec_key
from polyphony.words import first_line


def load_student(
    folder: Path | str, method: str | None = None, seed: int | None = None, *, device: str = "cpu"
) -> Student:
    """A student of a run, ready to use: with classes, normalisation and its temperature.

    Of what is left open, method or seed, it is the one of least calibrated NLL on validation images. The data
    need not be there. StoreError, one sentence, where the run or the student is not.
    """
    run = Run.open(Path(folder))
    description, weights = describe(run, *choose(run, method, seed))
    return assemble(description, weights, device)


def assemble(description: Description, weights: dict[str, Tensor], device: str) -> Student:
    """The student that a description and weights are, as it predicts."""
    student = description.build()
    try:
        student.load_state_dict(weights)
    except RuntimeError as error:
        fault = first_line(error).rstrip(":")
        raise StoreError(f"the weights of '{description.method}' do not fit its network ({fault})") from error
    return Student(description.form.resolved().trained(student).to(device).eval(), description)


def choose(run: Run, method: str | None, seed: int | None) -> tuple[str, int]:
    """Which student is meant: what is left open is as in the one of least calibrated validation NLL."""
    if method is not None and method not in run.methods:
        raise StoreError(f"{run.folder} has no method '{method}'; {suggestion(method, run.methods)}")
    if seed is not None and seed not in run.recipe.seeds:
        raise StoreError(f"{run.folder} has no seed {seed}; it has {', '.join(map(str, run.recipe.seeds))}")
    scored = [row for name in run.methods if method in (None, name) for row in run.scored(name, "valid")]
    nll = {(row.model, row.seed): row.nll for row in scored if row.seed is not None}
    meant = [student for student in nll if seed in (None, student[1])]
    if not meant:
        raise FileError(run.folder / Score.file, "has no validation scores of that student")
    return min(meant, key=lambda student: nll[student])


def describe(run: Run, method: str, seed: int) -> tuple[Description, dict[str, Tensor]]:
    """What a student of a run says of itself, and its weights."""
    stage = Stage(run.folder / "students" / method / str(seed), {})
    weights, recipe = stage.weights(), run.recipe
    if (method, seed) not in run.temperatures:
        raise FileError(run.folder / Temperature.file, f"has no temperature of {method}, seed {seed}")
    if not run.facts.images:
        raise FileError(run.folder / "recipe.json", "does not say its classes, as it does since 0.1.0")
    described = {
        "network": recipe.student_network.model_dump(mode="json"),
        "form": recipe.form_table(method).model_dump(mode="json"),
        "members": recipe.members,
        **run.facts.images,
        "temperature": run.temperatures[method, seed],
        "method": method,
        "seed": seed,
        "data": Path(recipe.data.name).name,
        "recipe": spec_key(recipe.model_dump(mode="json", exclude_none=True)),
        "weights": stage.done()["weights"],
        "scores": scores_of(run, method, seed),
    }
    return Description.read(described, run.folder), weights


def scores_of(run: Run, method: str, seed: int) -> dict[str, float]:
    """A student's calibrated scores on test images, as far as they are finite."""
    rows = [row for row in run.scored(method) if row.seed == seed]
    values = {name: getattr(row, name) for row in rows for name in headings(Score)}
    return {name: value for name, value in values.items() if value is not None and isfinite(value)}
