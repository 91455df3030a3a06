"""A student as a folder in the Hugging Face Hub's form, complete or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

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
from polyphony.serve.load import CONFIG, WEIGHTS, assemble, choose, describe, trained_student
from polyphony.serve.student import Student

GRAPH, GRAPH_INT8, CARD, FIGURE = "model.onnx", "model-int8.onnx", "README.md", "diversity.svg"
CARD_TEXT = """---
library_name: polyphony
pipeline_tag: image-classification
{licence}
tags: [image-classification, uncertainty-quantification, ensemble-distillation, onnx]
---

# {name}

{student}, {origin} on the data set
`{told.data}` of {classes} classes by Polyphony {told.version}. It gives calibrated probabilities,
their entropy, how far members disagree (mutual information) and each member's own prediction.

| on test images, calibrated | {headings} |
|---|{rule}
{table}
{trust}{picture}
## How to ask it

With Polyphony{importable}:

```python
from polyphony import load_student

student = load_student("{name}"{code})
answers = student.predict(["a.jpg", "b.png"])
answers.probabilities, answers.entropy, answers.mutual_information, answers.members
```

With onnxruntime alone, images as uint8 [n, {shape}]:

```python
import json
import onnxruntime

session = onnxruntime.InferenceSession("{name}/{graph}")
classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
probabilities, entropy, mutual_information, members = session.run(None, {{"pixels": pixels}})
```
{int8}
Recipe {told.recipe:.12}, weights {told.weights:.12} (SHA-256).
"""


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
    choice = choose(run, method, seed)
    description, weights = describe(run, choice.method, choice.seed)
    description = description.model_copy(update={"network": description.network.portable()})
    student = replace(assemble(description, weights, "cpu"), choice=choice.words).licensed(packing.licence)
    quantised = quantise_student(student, samples) if packing.int8 else None
    with whole_folder(to) as beside:
        (beside / CONFIG).write_text(json.dumps(student.description.to_config(), indent=1) + "\n")
        trained = trained_student(run, choice.method, choice.seed).folder
        shutil.copyfile(trained / "weights.safetensors", beside / WEIGHTS)
        keep_code(student.description, beside)
        export_student(student, beside / GRAPH, samples.test.images)
        if quantised:
            quantised.write(beside / GRAPH_INT8, packing.allow)
        drawn = diversity(run, student.description)
        if drawn:
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
    told, heads, own = student.description, headings(Score), own_code(student.description)
    rows = compared(run, told.method, told.seed)
    cells = {label: " | ".join(score_cells(run, *key, list(heads))) for label, key in rows.items()}
    return CARD_TEXT.format(
        name=name,
        code=", code=True" if own else "",
        importable=f", where the code `{'`, `'.join(own)}` can be imported" if own else "",
        told=told,
        licence=f"license: {json.dumps(told.licence.lower())}" if told.licence else "# license: not stated",
        student=student.words[:1].upper() + student.words[1:],
        origin=origin(run, told.method),
        classes=len(told.classes),
        headings=" | ".join(heads.values()),
        rule="---:|" * len(heads),
        table="\n".join(f"| {label} | {each} |" for label, each in cells.items()),
        trust=trust_rows(run, rows),
        picture=f"\n![Diversity of the teachers and of the student]({FIGURE})\n" if figure else "",
        shape=", ".join(map(str, told.shape)),
        graph=GRAPH,
        int8=int8_words(quantised) if quantised else "",
    )


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


def trust_rows(run: Run, models: Mapping[str, tuple[str, int | None]]) -> str:
    """Rows for people who act on an answer: errors at 80 % coverage, 90 % prediction sets, and the price."""
    errors = {
        (row.model, row.seed): f"{row.error_80:.1%}"
        for model, _ in models.values()
        for row in run.scored(model)
        if row.error_80 is not None
    }
    sets = {
        (row.model, row.seed): f"{row.size:.2f} ({row.coverage:.1%} hold the true class)"
        for row in run.table(SetScore)
        if (row.score, row.wanted, row.label) == ("lac", 0.9, None)
    }
    rows = {"errors among the 80 % most confident": errors, "classes in a 90 % prediction set": sets}
    rows |= price_rows(run, models)
    lines = [
        f"| {name} | {' | '.join(cells[key] for key in models.values())} |\n"
        for name, cells in rows.items()
        if cells.keys() >= {*models.values()}  # runs of early versions have neither
    ]
    head = f"\n| on test images | {' | '.join(models)} |\n|---|{'---:|' * len(models)}\n"
    return head + "".join(lines) if lines else ""


def price_rows(
    run: Run, models: Mapping[str, tuple[str, int | None]]
) -> dict[str, dict[tuple[str, int | None], str]]:
    """Milliseconds of one image and bytes of the exported file, where the run has measured them."""
    exported = [row for row in run.table(Latency) if row.runtime.startswith("onnxruntime")]
    prices = {row.model: row for row in exported if row.batch == 1 and row.bytes}
    found = {key: prices[key[0]] for key in models.values() if key[0] in prices}
    return {
        "milliseconds for one image, one thread": {k: f"{row.milliseconds:.2f}" for k, row in found.items()},
        "file (MB, float32)": {k: f"{(row.bytes or 0) / 1e6:.2f}" for k, row in found.items()},
    }


def int8_words(quantised: Int8) -> str:
    """What a card says of the int8 file."""
    before, after = quantised.before, quantised.after
    return (
        f"\n`{GRAPH_INT8}` is the same student with int8 weights and activations. Calibrated, on"
        f" {quantised.images:,} test images: accuracy {after.acc:.2%} (float32 {before.acc:.2%}),"
        f" NLL {after.nll:.4f} (float32 {before.nll:.4f}).\n"
    )


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
