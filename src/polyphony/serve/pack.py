"""Write a student as a model folder for the Hugging Face Hub. A folder is never left incomplete."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2

from polyphony._util.files import atomic_folder
from polyphony._util.text import counted
from polyphony.recipe.python import keep_code, own_code
from polyphony.report.figures.diversity import Group, diversity_chart
from polyphony.report.style import looks_of
from polyphony.runs.rows import Latency, Score, SetScore, headings
from polyphony.runs.run import Run
from polyphony.runs.samples import Samples
from polyphony.runs.scores import BEST_TEACHER, TEACHERS, score_text
from polyphony.runs.stage import WEIGHTS as TRAINED_WEIGHTS
from polyphony.runs.store import StoreError
from polyphony.serve.description import Description
from polyphony.serve.export import export_student
from polyphony.serve.int8 import ALLOWED, Int8, quantise_student
from polyphony.serve.load import CONFIG, WEIGHTS, load_from_run, trained_student
from polyphony.serve.student import Student

GRAPH, GRAPH_INT8, CARD, FIGURE = "model.onnx", "model-int8.onnx", "README.md", "diversity.svg"


@dataclass(frozen=True)
class Packing:
    """Options of `pack_student`: a licence, an int8 file, its allowed rise of the NLL, replacing a folder."""

    licence: str = ""
    int8: bool = False
    allow: float = ALLOWED
    force: bool = False


def pack_student(
    folder: Path,
    method: str | None,
    seed: int | None,
    to: Path,
    samples: Samples,
    packing: Packing,
) -> tuple[Student, Int8 | None]:
    """Write a student of a run as a folder: config.json, model.safetensors, model.onnx, README.md, a figure.

    The folder also gets the user's own code that builds the student. The ONNX file is compared with the
    student on the samples' test images; an int8 file is made from all samples. Returns the student, and the
    int8 file if there is one. Raises a StoreError if `to` exists, unless it is a packed student and `force`
    is set.
    """
    if to.exists() and not (packing.force and (to / CONFIG).is_file()):
        raise StoreError(f"{to} exists: only a packed student is replaced, and only with force")
    run = Run.open(folder)
    student = load_from_run(run, method, seed, "cpu")
    description = student.description
    student = student.with_description(licence=packing.licence, network=description.network.portable())
    quantised = quantise_student(student, samples) if packing.int8 else None
    with atomic_folder(to) as beside:
        (beside / CONFIG).write_text(json.dumps(student.description.to_config(), indent=1) + "\n")
        trained = trained_student(run, description.method, description.seed).folder
        shutil.copyfile(trained / TRAINED_WEIGHTS, beside / WEIGHTS)
        keep_code(student.description, beside)
        export_student(student, beside / GRAPH, samples.test.images)
        if quantised:
            quantised.write(beside / GRAPH_INT8, packing.allow)
        if figure := diversity(run, description):
            (beside / FIGURE).write_bytes(figure)
        text = card(run, student, to.name, figure=bool(figure), quantised=quantised)
        (beside / CARD).write_text(text, encoding="utf-8")
        if packing.force and to.exists():
            shutil.rmtree(to)
    return student, quantised


def diversity(run: Run, description: Description) -> bytes | None:
    """The diversity plot of teachers and student on test images as SVG; None if members do not differ."""
    models = {"teachers": (TEACHERS, None), "student": (description.method, description.seed)}
    groups = []
    for label, (model, seed) in models.items():
        predictions = run.ensemble(model, "test").get(seed)
        if predictions is None or not predictions.varies:
            return None
        colour = looks_of(run)[model].colour
        groups.append(Group(f"{label}, test images", colour, predictions))
    return diversity_chart("diversity", "Diversity", "", groups).files()["diversity.svg"]


def card(run: Run, student: Student, name: str, *, figure: bool, quantised: Int8 | None = None) -> str:
    """The model card: what the student is, its scores and those of the baselines, how to load it."""
    description, columns = student.description, headings(Score)
    models = compared(run, description.method, description.seed)
    return card_template().render(
        name=name,
        description=description,
        student=student.words[:1].upper() + student.words[1:],
        code=own_code(description),
        licence=json.dumps(description.licence.lower()),
        origin=origin(run, description.method),
        headings=list(columns.values()),
        scores={label: score_cells(run, *key, list(columns)) for label, key in models.items()},
        trust=trust_rows(run, models),
        figure=FIGURE if figure else "",
        int8=quantised,
    )


@cache
def card_template() -> jinja2.Template:
    """The template of the model card, in Markdown."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("polyphony.serve", "."),
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    ).get_template("card.md.jinja")


def compared(run: Run, method: str, seed: int) -> dict[str, tuple[str, int | None]]:
    """Model and seed by label: teachers, best teacher, single networks distilled from all, student."""
    baselines: dict[str, tuple[str, int | None]] = {"teachers": (TEACHERS, None)}
    for row in run.scored(BEST_TEACHER):
        baselines[BEST_TEACHER] = (BEST_TEACHER, row.seed)
    for name in run.methods_with("clean"):
        is_mean = run.recipe.form_table(name).label == "single" and name != method
        if is_mean and seed in [row.seed for row in run.scored(name)]:
            baselines[f"one network ({name})"] = (name, seed)
    return baselines | {"student": (method, seed)}


def trust_rows(run: Run, models: Mapping[str, tuple[str, int | None]]) -> dict[str, list[str]]:
    """Rows about selective prediction, prediction sets and costs, one cell for each model.

    Leaves out a row if the run has not measured it for all models.
    """
    keys = list(models.values())
    scored = [row for model, _ in keys for row in run.scored(model) if row.error_80 is not None]
    sets = [row for row in run.table(SetScore) if (row.score, row.wanted, row.label) == ("lac", 0.9, None)]
    exported = [row for row in run.table(Latency) if row.runtime.startswith("onnxruntime")]
    priced = {row.model: row for row in exported if row.batch == 1 and row.bytes}
    prices = {key: priced[key[0]] for key in keys if key[0] in priced}
    rows = {
        "errors among the 80 % most confident": {
            (row.model, row.seed): f"{row.error_80:.1%}" for row in scored
        },
        "classes in a 90 % prediction set": {
            (row.model, row.seed): f"{row.size:.2f} ({row.coverage:.1%} hold the true class)" for row in sets
        },
        "milliseconds for one image, one thread": {k: f"{row.milliseconds:.2f}" for k, row in prices.items()},
        "file (MB, float32)": {k: f"{(row.bytes or 0) / 1e6:.2f}" for k, row in prices.items()},
    }
    return {name: [cells[key] for key in keys] for name, cells in rows.items() if cells.keys() >= {*keys}}


def origin(run: Run, method: str) -> str:
    """The part of the card that says what a student was trained on."""
    networks = f"{counted(run.members, 'network')} ({run.recipe.teachers.network_of(0).label})"
    if run.recipe.methods[method].perturb is None:
        return f"trained on labels alone, beside a deep ensemble of {networks},"
    return f"distilled from a deep ensemble of {networks}"


def score_cells(run: Run, model: str, seed: int | None, columns: list[str]) -> list[str]:
    """A model's calibrated test scores as text."""
    rows = [row for row in run.scored(model) if row.seed == seed]
    return [score_text(name, [getattr(row, name) for row in rows], run.teacher_count) for name in columns]
