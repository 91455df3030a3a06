"""Load a student from a run folder or a packed folder."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import fmean

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from polyphony._util.text import counted, first_line, suggestion
from polyphony.recipe.networks import TransformersNetwork
from polyphony.recipe.python import PythonTable, own_code
from polyphony.recipe.sources import CODE_FOLDER
from polyphony.runs.rows import Score, Temperature, Threshold, headings
from polyphony.runs.run import Run
from polyphony.runs.samples import Samples, read_samples
from polyphony.runs.stage import TrainingFolder, difference
from polyphony.runs.store import (
    ChangedError,
    CodeError,
    FileError,
    StoreError,
    read_bytes,
    read_json,
    sha256,
    spec_key,
)
from polyphony.serve.description import Description, Thresholds
from polyphony.serve.student import Student
from polyphony.study.provenance import open_study

CONFIG, WEIGHTS = "config.json", "model.safetensors"  # files of a packed folder, with the Hub's names


def load_student(
    folder: Path | str,
    method: str | None = None,
    seed: int | None = None,
    *,
    device: str = "cpu",
    code: bool = False,
) -> Student:
    """A student of a run, or of a packed folder, ready to use: with classes, normalisation and temperature.

    Without a method or seed, it is the one with the lowest calibrated NLL on validation images. The data set
    is not needed. Raises a StoreError if the run or the student is missing.

    The network or form of a packed student may be Python code: a module of the folder, or an installed one.
    Raises a CodeError unless `code` allows it to run, a RecipeError if the module is missing.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        return load_from_run(Run.open(folder), method, seed, device)
    student = load_packed(folder, device, code=code)
    if method not in (None, student.description.method) or seed not in (None, student.description.seed):
        raise StoreError(f"{folder} holds another student: {student.words}")
    return student


def load_from_run(run: Run, method: str | None, seed: int | None, device: str) -> Student:
    """A student of a run: the one that is named, or the best (`choose`)."""
    choice = choose(run, method, seed)
    return replace(assemble(*describe(run, choice.method, choice.seed), device), choice=choice.words)


def load_packed(folder: Path, device: str, *, code: bool) -> Student:
    """The student of a packed folder; raises a CodeError if it needs Python code and `code` is not set."""
    description = Description.read(read_json(folder / CONFIG), folder / CONFIG, code_in=folder)
    names = own_code(description)
    if names and not code:
        raise CodeError(f"{folder} needs the code '{names[0]}', which runs only with code=True")
    if isinstance(description.network, TransformersNetwork) and description.network.name:
        raise StoreError(
            f"{folder} names another model, '{description.network.name}', which is not downloaded"
        )
    data = read_bytes(folder / WEIGHTS)
    if sha256(data) != description.weights:
        raise StoreError(f"{folder / WEIGHTS} is not the file that was packed (its hash differs)")
    try:
        return assemble(description, safetensors.torch.load(data), device)
    except safetensors.SafetensorError as error:
        raise StoreError(f"{folder / WEIGHTS} is damaged ({first_line(error)})") from error


def assemble(description: Description, weights: dict[str, Tensor], device: str) -> Student:
    """The student ready to predict; raises a StoreError if the weights do not fit the description."""
    check_size(description, weights)
    student = description.build()
    try:
        student.load_state_dict(weights)
    except RuntimeError as error:
        fault = first_line(error).rstrip(":")
        raise StoreError(f"the weights of '{description.method}' do not fit its network ({fault})") from error
    return Student(description.form.resolved().trained(student).to(device).eval(), description)


def check_size(description: Description, weights: dict[str, Tensor]) -> None:
    """Raise a StoreError if the network has more than twice as many parameters as there are weights.

    The count stops the building of a network that is too large. It is built on the meta device if possible.
    Twice: a parameter that is registered twice counts twice.
    """
    size, most = 0, sum(weight.numel() for weight in weights.values())
    network = description.own_network
    if isinstance(network, PythonTable):
        return

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal size
        size += 0 if parameter is None else parameter.numel()
        if size > 2 * most:
            raise ValueError

    hook = register_module_parameter_registration_hook(count)
    try:
        for device in ("meta", "cpu"):
            size = 0
            with suppress(Exception), torch.device(device):  # other errors are reported when it is built
                network.build(len(description.classes), description.shape[0])
                return
            if size > 2 * most:
                fault = f"it has more than {size:,} parameters, and there are {most:,}"
                raise StoreError(f"the weights of '{description.method}' do not fit its network: {fault}")
    finally:
        hook.remove()


def load_samples(folder: Path, data_root: Path | None = None) -> Samples:
    """The images to compare students on: those saved in the run.

    With a `data_root`, or if the run has saved none, all validation and test images of the data set.
    """
    samples = None if data_root else read_samples(folder)
    if samples is not None:
        return samples
    splits = open_study(folder, data_root, "cpu").data()
    return replace(Samples.of(splits), valid=splits.valid, test=splits.test)


@dataclass(frozen=True)
class Choice:
    """The method and seed of a student, and why it was chosen if the user did not name it."""

    method: str
    seed: int
    words: str = ""


def choose(run: Run, method: str | None, seed: int | None) -> Choice:
    """The student of a method and seed. Raises a StoreError if the run does not have it.

    Default: the method with the lowest calibrated validation NLL, as a mean over seeds; of its seeds, the
    one with the lowest.
    """
    if method is not None and method not in run.methods:
        raise StoreError(f"{run.folder} has no method '{method}'; {suggestion(method, run.methods)}")
    if seed is not None and seed not in run.recipe.seeds:
        raise StoreError(f"{run.folder} has no seed {seed}; it has {', '.join(map(str, run.recipe.seeds))}")
    methods = run.methods if method is None else [method]
    nlls = {name: {j: nll for j, nll in run.valid_nll(name).items() if seed in (None, j)} for name in methods}
    means = {name: fmean(by_seed.values()) for name, by_seed in nlls.items() if by_seed}
    if not means:
        raise FileError(run.folder / Score.file, "has no validation scores of that student")
    best, *others = sorted(means, key=means.__getitem__)
    first, *other_seeds = sorted(nlls[best], key=nlls[best].__getitem__)
    if others:
        mean = f" (mean over {counted(len(nlls[best]), 'seed')})" if other_seeds else ""
        next_best = f"{means[best]:.4f}{mean} (next method {others[0]}: {means[others[0]]:.4f})"
    elif other_seeds:
        next_best = f"{nlls[best][first]:.4f} (next seed {other_seeds[0]}: {nlls[best][other_seeds[0]]:.4f})"
    else:
        return Choice(best, first)
    return Choice(best, first, f"lowest calibrated validation NLL, {next_best}")


def trained_student(run: Run, method: str, seed: int) -> TrainingFolder:
    """The folder of a student's weights."""
    return TrainingFolder(run.folder / "students" / method / str(seed))


def describe(run: Run, method: str, seed: int) -> tuple[Description, dict[str, Tensor]]:
    """A student's description and its weights; raises a ChangedError if its code has changed."""
    trained = trained_student(run, method, seed)
    weights, recipe = trained.weights(), run.recipe
    if (method, seed) not in run.temperatures:
        raise FileError(run.folder / Temperature.file, f"has no temperature of {method}, seed {seed}")
    if not run.facts.images:
        raise FileError(
            run.folder / "recipe.json", "does not list the classes: the run is older than version 0.1.0"
        )
    rows = run.table(Threshold) if (run.folder / Threshold.file).exists() else []
    thresholds = Thresholds.of([row for row in rows if (row.model, row.seed) == (method, seed)])
    config = {
        "network": run.facts.network or recipe.student_network.model_dump(mode="json"),
        "form": recipe.form_table(method).model_dump(mode="json"),
        "members": recipe.members,
        **run.facts.images,
        "temperature": run.temperatures[method, seed],
        "method": method,
        "seed": seed,
        "data": recipe.data.label,
        "recipe": spec_key(recipe.model_dump(mode="json", exclude_none=True)),
        "weights": trained.record()["weights"],
        "scores": scores_of(run, method, seed),
        "thresholds": thresholds.model_dump(mode="json") if thresholds else None,
        "proof": trained.record().get("proof"),
    }
    description = Description.read(config, run.folder).with_code(run.folder / CODE_FOLDER)
    check_code(trained, description)
    return description, weights


def check_code(trained: TrainingFolder, description: Description) -> None:
    """Raise a ChangedError if the network or form, or the user's code for them, has changed since training.

    Early runs hold no copy of the code, only a hash of its text.
    """
    form = description.form.spec()
    now = {"network": description.network.spec(), **({"form": form} if form else {})}
    then = {name: spec for name, spec in trained.record()["spec"].items() if name in ("network", "form")}
    for name, table in (("network", description.network), ("form", description.form)):
        old = then.get(name, {}).get("source")
        if isinstance(table, PythonTable) and old == table.first_version_source():
            then[name] = then[name] | {"source": now[name]["source"]}
    if then != now:
        raise ChangedError(f"{trained.folder} was made with another {difference(then, now)}")


def scores_of(run: Run, method: str, seed: int) -> dict[str, float]:
    """A student's calibrated scores on test images, without missing and infinite ones."""
    values = {name: run.by_seed(method, name).get(seed) for name in headings(Score)}
    return {name: value for name, value in values.items() if value is not None and isfinite(value)}
