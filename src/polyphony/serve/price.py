"""Latency and file size of the exported models of a run, measured side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from polyphony._util.files import processor
from polyphony.analysis import latencies
from polyphony.recipe.sources import CODE_FOLDER
from polyphony.runs.rows import Latency, to_csv
from polyphony.runs.run import Run
from polyphony.runs.scores import BEST_TEACHER, TEACHERS
from polyphony.runs.stage import TrainingFolder
from polyphony.runs.store import write_atomically
from polyphony.serve.description import Description
from polyphony.serve.export import export_student
from polyphony.serve.graph import ExportError
from polyphony.serve.load import assemble, describe
from polyphony.serve.student import Student

BATCHES = (1, 64)
THREADS = 1
COMPARED = 7  # random images on which an exported file is compared with its network


@dataclass(frozen=True)
class Priced:
    """A network to measure: a function of uint8 images [b c h w], the bytes of its file, and its runtime."""

    ask: Callable[[Tensor], object]
    bytes: int
    runtime: str


def write_prices(folder: Path) -> Path:
    """Measure the models of a run, once on each machine; returns the path of analysis/latency.csv."""
    run, path = Run.open(folder), folder / Latency.file
    rows = run.table(Latency)
    if {row.model for row in rows} != set(run.models) or {row.machine for row in rows} != {processor()}:
        write_atomically(path, to_csv(measure_prices(run), Latency).encode())
    return path


def measure_prices(run: Run) -> list[Latency]:
    """A row for each model and batch size; models with equal networks and forms are measured once.

    All run in onnxruntime, or all in PyTorch if one cannot be exported, in one thread of the CPU.
    """
    parts = {model: networks_of(run, model) for model in run.models}
    loaders = {key: load for networks in parts.values() for key, load in networks}
    students = {key: load() for key, load in loaders.items()}
    try:
        priced = {key: in_onnxruntime(student) for key, student in students.items()}
    except ExportError:
        priced = {key: in_pytorch(student) for key, student in students.items()}
    models = {model: [priced[key] for key, _ in networks] for model, networks in parts.items()}
    shape = next(iter(students.values())).description.shape
    with one_thread():
        return [row for batch in BATCHES for row in _rows(run, models, random_images(batch, shape))]


def networks_of(run: Run, model: str) -> list[tuple[str, Callable[[], Student]]]:
    """The networks of a model: for each a key, the same for equal networks, and a function that loads it."""
    if model in (TEACHERS, BEST_TEACHER):
        numbers = range(run.members) if model == TEACHERS else [row.seed or 0 for row in run.scored(model)]
        return [(repr(run.recipe.teachers.network_of(j)), partial(load_teacher, run, j)) for j in numbers]
    seed = run.scored(model)[0].seed or 0
    return [(repr(run.recipe.form_table(model)), lambda: assemble(*describe(run, model, seed), "cpu"))]


def load_teacher(run: Run, j: int) -> Student:
    """Teacher j as a student with one network, so that it is exported in the same way."""
    config = {
        "network": run.recipe.teachers.network_of(j).model_dump(mode="json"),
        "form": {"kind": "single"},
        "members": 1,
        **run.facts.images,
        "temperature": 1.0,
        "method": TEACHERS,
        "seed": j,
        "data": run.recipe.data.label,
        "recipe": "",
        "weights": "",
        "scores": {},
    }
    weights = TrainingFolder(run.folder / TEACHERS / str(j)).weights()
    named = {f"network.{name}": weight for name, weight in weights.items()}
    description = Description.read(config, run.folder).with_code(run.folder / CODE_FOLDER)
    return assemble(description, named, "cpu")


def in_onnxruntime(student: Student) -> Priced:
    """The student as an ONNX file; raises an ExportError if it cannot be exported."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        export_student(student, path, random_images(COMPARED, student.description.shape))
        return priced_file(path.read_bytes())


def priced_file(data: bytes) -> Priced:
    """An ONNX file that onnxruntime runs in one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    runtime = f"onnxruntime {onnxruntime.__version__}"
    return Priced(lambda x: session.run(None, {"pixels": x.numpy()}), len(data), runtime)


def in_pytorch(student: Student) -> Priced:
    """The student in PyTorch; the bytes are those of its weights."""
    weights = student.ensemble.state_dict().values()
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    return Priced(student.predict, size, f"PyTorch {torch.__version__}")


def _rows(run: Run, models: Mapping[str, Sequence[Priced]], x: Tensor) -> Iterator[Latency]:
    """The rows of one batch; models with the same networks have the same key and are timed once."""
    keys = {model: str([id(each) for each in parts]) for model, parts in models.items()}
    times = latencies({keys[model]: partial(_ask_all, parts, x) for model, parts in models.items()})
    for model, parts in models.items():
        size, runtime = sum(each.bytes for each in parts), parts[0].runtime
        yield Latency(
            model, run.params(model), times[keys[model]], len(x), THREADS, size, runtime, processor()
        )


def _ask_all(parts: Sequence[Priced], x: Tensor) -> None:
    for each in parts:
        each.ask(x)


def random_images(count: int, shape: tuple[int, int, int]) -> Tensor:
    """Random images, uint8 [n c h w], the same at every call."""
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=rng)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch use one thread inside the `with` block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
