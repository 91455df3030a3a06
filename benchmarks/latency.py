"""What one answer costs: milliseconds, bytes and memory of every form, beside one plain network and four.

Run from the project's root, on a quiet Linux machine: `python benchmarks/latency.py` (about 20 minutes), or
`--network resnet32` for a part of it (7 minutes); `--quick` tries it on a tiny network and writes nothing.

Files with random weights, four members, images of 32 × 32, onnxruntime, one thread. A round times every file
once, one after the other, in processor time; a time is the median over rounds, a ratio the median of the
rounds' ratios. One image is asked twice and timed the second time: the weights are in the cache then, as on a
server with one model. Files are opened five times in another order, since a time depends by a few percent on
where weights lie in memory. Memory is the peak of a fresh process beyond onnxruntime's own, at a batch of 64.
Prints a table and writes `benchmarks/results/latency.csv`, which keeps the rows of networks not asked for.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import onnxruntime
import torch

from polyphony._util.files import processor
from polyphony.analysis.latency import seconds
from polyphony.runs.rows import csv_text
from polyphony.serve import Student
from polyphony.serve.description import Description
from polyphony.serve.export import as_onnx
from polyphony.serve.price import random_images
from polyphony.serve.quantise import as_int8, choices, folded_model

RESULTS = Path(__file__).parent / "results" / "latency.csv"
MEMBERS, SHAPE = 4, (3, 32, 32)
NETWORKS = {
    "resnet32": {"kind": "resnet", "depth": 32},
    "resnet20-64": {"kind": "resnet", "depth": 20, "width": 64},
}
TINY = {"resnet8": {"kind": "resnet", "depth": 8, "width": 4}}
MATCHED = {"kind": "separate", "match_cost": "multiply-adds", "match_branch": "stages.2"}
ONE, FOUR = "one plain network", "four plain networks"
FORMS = {  # a student, and how many of it answer together
    ONE: ({"kind": "single"}, 1),
    FOUR: ({"kind": "single"}, MEMBERS),
    "BatchEnsemble": ({"kind": "batch_ensemble"}, 1),
    "BatchEnsemble, first stage shared": ({"kind": "batch_ensemble", "branch": "stages.1"}, 1),
    "BatchEnsemble, two stages shared": ({"kind": "batch_ensemble", "branch": "stages.2"}, 1),
    "separate networks, matched to the last": (MATCHED, 1),
    "Hydra": ({"kind": "hydra"}, 1),
    "MIMO": ({"kind": "mimo"}, 1),
    "LatentBE": ({"kind": "latent_be"}, 1),
    "Dirichlet": ({"kind": "dirichlet"}, 1),
}
ROUNDS = {1: 40, 64: 2}  # by batch, each time that files are opened
OPENED = 5
PEAK = """
import sys, numpy, onnxruntime
def peak(): return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
before, options = peak(), onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
sessions = [onnxruntime.InferenceSession(each, options) for each in sys.argv[2:]]
x = numpy.zeros([64, *map(int, sys.argv[1].split(","))], numpy.uint8)
for session in sessions: session.run(None, {"pixels": x})
print(peak() - before)
"""
Key = tuple[str, str]  # form and precision
Times = dict[Key, float]
Row = dict[str, object]


def student(network: dict[str, object], form: dict[str, object]) -> Student:
    """A student with random weights."""
    said = {"members": MEMBERS, "classes": [str(k) for k in range(10)], "shape": SHAPE, "temperature": 1.5}
    origin = {"method": "random", "seed": 0, "data": "random", "recipe": "", "weights": "", "scores": {}}
    description = Description.read({"network": network, "form": form, **said, **origin}, __file__)
    return Student(description.form.resolved().trained(description.build()).eval(), description)


def exported(network: dict[str, object], form: dict[str, object]) -> Iterator[tuple[str, bytes]]:
    """Its files by precision."""
    made = student(network, form)
    plain, _ = as_onnx(made, "uint8", half=False)
    yield "float32", plain
    yield "float16 weights", as_onnx(made, "uint8", half=True)[0]
    folded = folded_model(onnx.load_model_from_string(plain))
    _, nodes = choices(folded)[0]
    yield "int8", as_int8(folded, nodes, random_images(64, SHAPE)).SerializeToString()


def write_files(network: dict[str, object], folder: Path) -> dict[Key, list[Path]]:
    """All files to measure; one that is listed four times is loaded four times."""
    files: dict[Key, list[Path]] = {}
    for number, (name, (form, copies)) in enumerate(FORMS.items()):
        for precision, data in exported(network, form):
            path = folder / f"{number}-{precision}.onnx"
            path.write_bytes(data)
            files[name, precision] = copies * [path]
    return files


def session(path: Path) -> onnxruntime.InferenceSession:
    """A file on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def times(files: dict[Key, list[Path]], rounds: dict[int, int], opened: int) -> dict[int, list[Times]]:
    """The seconds of every file in every round, by batch."""
    found: dict[int, list[Times]] = {batch: [] for batch in rounds}
    for _ in range(opened):
        order = random.sample(list(files), len(files))
        sessions = {key: [session(path) for path in files[key]] for key in order}
        for batch, count in rounds.items():
            x = random_images(batch, SHAPE)
            for each in sessions.values():  # allocates memory and chooses kernels
                ask(each, x)
            found[batch] += [{key: timed(each, x) for key, each in sessions.items()} for _ in range(count)]
    return found


def timed(sessions: list[onnxruntime.InferenceSession], x: torch.Tensor) -> float:
    """The processor's seconds for one answer."""
    if len(x) == 1:
        ask(sessions, x)
    return seconds(partial(ask, sessions, x))


def ask(sessions: list[onnxruntime.InferenceSession], x: torch.Tensor) -> None:
    """The files' answers to images."""
    for each in sessions:
        each.run(None, {"pixels": x.numpy()})


def memory(files: list[Path]) -> float:
    """Peak MiB of a fresh process that asks them, beyond onnxruntime's own."""
    command = [sys.executable, "-c", PEAK, ",".join(map(str, SHAPE)), *map(str, files)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1024


def ratio(rounds: list[Times], over: Key, under: Key) -> float:
    """The median of the rounds' ratios."""
    return round(statistics.median(each[over] / each[under] for each in rounds), 3)


def measure(name: str, network: dict[str, object], rounds: dict[int, int], opened: int) -> Iterator[Row]:
    """A row for every form, precision and batch."""
    with TemporaryDirectory() as folder:
        files = write_files(network, Path(folder))
        size = {key: sum(path.stat().st_size for path in each) for key, each in files.items()}
        peak = {key: memory(each) for key, each in files.items()}
        found = times(files, rounds, opened)
    for batch, taken in found.items():
        for key in files:
            yield {
                "network": name,
                "form": key[0],
                "precision": key[1],
                "batch": batch,
                "milliseconds": round(1000 * statistics.median(each[key] for each in taken), 3),
                "to_one_float32": ratio(taken, key, (ONE, "float32")),
                "to_one_int8": ratio(taken, key, (ONE, "int8")),
                "bytes": size[key],
                "bytes_to_one_float32": round(size[key] / size[ONE, "float32"], 3),
                "memory_mib": round(peak[key], 1),
                "rounds": len(taken),
                "load": round(os.getloadavg()[0], 2),
                "machine": processor(),
                "onnxruntime": onnxruntime.__version__,
            }


def print_table(rows: list[Row]) -> None:
    """A line for every form and precision, with both batches."""
    print("times one plain float32 network (one plain int8 network) at each batch; file; peak MiB")
    for first in (row for row in rows if row["batch"] == 1):
        same = [r for r in rows if all(r[k] == first[k] for k in ("network", "form", "precision"))]
        found = "  ".join(f"{r['to_one_float32']:5.2f} ({r['to_one_int8']:5.2f})" for r in same)
        what = f"{first['network']:<12} {first['form']:<38} {first['precision']:<16}"
        print(f"{what} {found}  {first['bytes_to_one_float32']:5.2f}  {first['memory_mib']:6.1f}")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, help="this one alone (default: both)")
    parser.add_argument("--quick", action="store_true", help="a tiny network, one round, no file")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    networks = TINY if asked.quick else {k: v for k, v in NETWORKS.items() if asked.network in (None, k)}
    rounds, opened = (dict.fromkeys(ROUNDS, 1), 1) if asked.quick else (ROUNDS, OPENED)
    rows = [row for name, network in networks.items() for row in measure(name, network, rounds, opened)]
    print_table(rows)
    if not asked.quick:
        names = list(rows[0])
        kept = [row for row in csv.DictReader(asked.out.open()) if row.get("network") not in networks]
        rows = [row for row in kept if list(row) == names] + rows
        asked.out.write_text(csv_text(names, (row.values() for row in rows)))


if __name__ == "__main__":
    main()
