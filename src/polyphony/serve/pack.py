"""A student as a folder in the Hugging Face Hub's form, complete or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2

from polyphony._util.files import whole_folder
from polyphony._util.text import counted
from polyphony.recipe.python import keep_code, own_code
from polyphony.report.figures.diversity import Group, diversity_chart
from polyphony.report.style import looks_of
from polyphony.runs.rows import Latency, Score, SetScore, headings
from polyphony.runs.run import Run
from polyphony.runs.samples import Samples
from polyphony.runs.scores import BEST_TEACHER, TEACHERS, score_text
from polyphony.runs.store import StoreError
from polyphony.serve.description import Description
from polyphony.serve.export import export_student
from polyphony.serve.int8 import ALLOWED, Int8, quantise_student
from polyphony.serve.load import CONFIG, WEIGHTS, load_from_run, trained_student
from polyphony.serve.student import Student

GRAPH, GRAPH_INT8, CARD, FIGURE = "model.onnx", "model-int8.onnx", "README.md", "diversity.svg"


@dataclass(frozen=True)
class Packing:
    """What a packed folder is to hold beside a student, and whether it may replace another."""

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
    """Make a folder of a run's student: config.json, model.safetensors, model.onnx, README.md, a figure.

    Code of the user's own that builds it is put there too. The ONNX file is compared with the student on the
    samples' test images; an int8 file is made from all samples. Raises a StoreError if there is something at
    `to` already, unless that is a packed student and `force` replaces it.
    """
    if to.exists() and not (packing.force and (to / CONFIG).is_file()):
        raise StoreError(f"{to} exists: only a packed student is replaced, and only by force")
    run = Run.open(folder)
    student = load_from_run(run, method, seed, "cpu")
    description = student.description
    student = student.with_description(licence=packing.licence, network=description.network.portable())
    quantised = quantise_student(student, samples) if packing.int8 else None
    with whole_folder(to) as beside:
        (beside / CONFIG).write_text(json.dumps(student.description.to_config(), indent=1) + "\n")
        trained = trained_student(run, description.method, description.seed).folder
        shutil.copyfile(trained / "weights.safetensors", beside / WEIGHTS)
        keep_code(student.description, beside)
        export_student(student, beside / GRAPH, samples.test.images)
        if quantised:
            quantised.write(beside / GRAPH_INT8, packing.allow)
        if drawn := diversity(run, description):
            (beside / FIGURE).write_bytes(drawn)
        said = card(run, student, to.name, figure=bool(drawn), quantised=quantised)
        (beside / CARD).write_text(said, encoding="utf-8")
        if packing.force and to.exists():
            shutil.rmtree(to)
    return student, quantised


def diversity(run: Run, description: Description) -> bytes | None:
    """The diversity plot of the teachers and the student on test images as SVG, where members differ."""
    who = {"teachers": (TEACHERS, None), "student": (description.method, description.seed)}
    found = {label: run.predictions.get((*key, "test")) for label, key in who.items()}
    groups = [
        Group(f"{label}, test images", looks_of(run)[who[label][0]].colour, each.first(run.members))
        for label, each in found.items()
        if each is not None and each.varies
    ]
    if len(groups) < len(who):
        return None
    return diversity_chart("diversity", "Diversity", "", groups).files()["diversity.svg"]


def card(run: Run, student: Student, name: str, *, figure: bool, quantised: Int8 | None = None) -> str:
    """The model card: what it is, its scores beside those of the baselines, how to load it."""
    told, columns = student.description, headings(Score)
    models = compared(run, told.method, told.seed)
    return card_template().render(
        name=name,
        told=told,
        student=student.words[:1].upper() + student.words[1:],
        code=own_code(told),
        licence=json.dumps(told.licence.lower()),
        origin=origin(run, told.method),
        headings=list(columns.values()),
        scores={label: score_cells(run, *key, list(columns)) for label, key in models.items()},
        trust=trust_rows(run, models),
        figure=FIGURE if figure else "",
        int8=quantised,
    )


@cache
def card_template() -> jinja2.Template:
    """The text of a card, in Markdown."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("polyphony.serve", "."),
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    ).get_template("card.md.jinja")


def compared(run: Run, method: str, seed: int) -> dict[str, tuple[str, int | None]]:
    """Model and seed by label: the teachers, the best one, one network taught by their mean, the student."""
    baselines: dict[str, tuple[str, int | None]] = {"teachers": (TEACHERS, None)}
    for row in run.scored(BEST_TEACHER):
        baselines[BEST_TEACHER] = (BEST_TEACHER, row.seed)
    for name in run.methods_with("clean"):
        is_mean = run.recipe.form_table(name).label == "single" and name != method
        if is_mean and seed in [row.seed for row in run.scored(name)]:
            baselines[f"one network ({name})"] = (name, seed)
    return baselines | {"student": (method, seed)}


def trust_rows(run: Run, models: Mapping[str, tuple[str, int | None]]) -> dict[str, list[str]]:
    """Rows for people who act on an answer: errors at 80 % coverage, 90 % prediction sets, and the price.

    A row that the run has not measured for all models is left out.
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
    """What a student learned from."""
    networks = f"{counted(run.members, 'network')} ({run.recipe.teachers.network_of(0).label})"
    if run.recipe.methods[method].perturb is None:
        return f"trained on labels alone, beside a deep ensemble of {networks},"
    return f"distilled from a deep ensemble of {networks}"


def score_cells(run: Run, model: str, seed: int | None, columns: list[str]) -> list[str]:
    """A model's calibrated test scores in words."""
    rows = [row for row in run.scored(model) if row.seed == seed]
    return [score_text(name, [getattr(row, name) for row in rows], run.teacher_count) for name in columns]
