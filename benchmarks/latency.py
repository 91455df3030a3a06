"""The cost of a prediction: milliseconds, bytes and memory of every form, against one plain network and four.

Run from the project's root, on a quiet Linux machine: `python benchmarks/latency.py` (about 20 minutes), or
`--network resnet32` for one network (7 minutes); `--quick` tries it on a tiny network and writes nothing.

Files have random weights and four members; images have 32 × 32 pixels; onnxruntime uses one thread. A round
times every file once, one after the other, in processor time. A time is the median over rounds, a ratio the
median of the rounds' ratios. One image is predicted twice and timed the second time: the weights are in the
cache then, as on a server with one model. Files are opened five times in different orders, since a time
depends by a few percent on where weights are in memory. Memory is the peak of a new process at a batch of 64,
without onnxruntime's own. Prints a table and writes `benchmarks/results/latency.csv`; rows of networks that
were not measured stay.
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
FORMS = {  # a student, and how many copies predict together
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
OPENINGS = 5
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
    settings = {
        "members": MEMBERS,
        "classes": [str(k) for k in range(10)],
        "shape": SHAPE,
        "temperature": 1.5,
    }
    origin = {"method": "random", "seed": 0, "data": "random", "recipe": "", "weights": "", "scores": {}}
    description = Description.read({"network": network, "form": form, **settings, **origin}, __file__)
    return Student(description.form.resolved().trained(description.build()).eval(), description)


def exported(network: dict[str, object], form: dict[str, object]) -> Iterator[tuple[str, bytes]]:
    """The files of a student with random weights, by precision."""
    model = student(network, form)
    plain, _ = as_onnx(model, "uint8", half=False)
    yield "float32", plain
    yield "float16 weights", as_onnx(model, "uint8", half=True)[0]
    folded = folded_model(onnx.load_model_from_string(plain))
    _, nodes = choices(folded)[0]
    yield "int8", as_int8(folded, nodes, random_images(64, SHAPE)).SerializeToString()


def write_files(network: dict[str, object], folder: Path) -> dict[Key, list[Path]]:
    """Write all files to measure; a file that is listed four times is loaded four times."""
    files: dict[Key, list[Path]] = {}
    for number, (name, (form, copies)) in enumerate(FORMS.items()):
        for precision, data in exported(network, form):
            path = folder / f"{number}-{precision}.onnx"
            path.write_bytes(data)
            files[name, precision] = copies * [path]
    return files


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """Open a file for one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def times(files: dict[Key, list[Path]], rounds: dict[int, int], openings: int) -> dict[int, list[Times]]:
    """The seconds of every file in every round, by batch."""
    seconds_of: dict[int, list[Times]] = {batch: [] for batch in rounds}
    for _ in range(openings):
        order = random.sample(list(files), len(files))
        sessions = {key: [open_session(path) for path in files[key]] for key in order}
        for batch, count in rounds.items():
            x = random_images(batch, SHAPE)
            for group in sessions.values():  # the first call allocates memory and chooses kernels
                predict(group, x)
            for _ in range(count):
                seconds_of[batch].append({key: timed(group, x) for key, group in sessions.items()})
    return seconds_of


def timed(sessions: list[onnxruntime.InferenceSession], x: torch.Tensor) -> float:
    """Processor time of one prediction, in seconds."""
    if len(x) == 1:
        predict(sessions, x)
    return seconds(partial(predict, sessions, x))


def predict(sessions: list[onnxruntime.InferenceSession], x: torch.Tensor) -> None:
    """Run all sessions on images."""
    for session in sessions:
        session.run(None, {"pixels": x.numpy()})


def memory(files: list[Path]) -> float:
    """Peak MiB of a new process that runs the files, without onnxruntime's own."""
    command = [sys.executable, "-c", PEAK, ",".join(map(str, SHAPE)), *map(str, files)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1024


def ratio(rounds: list[Times], key: Key, baseline: Key) -> float:
    """The median of the rounds' ratios."""
    return round(statistics.median(one[key] / one[baseline] for one in rounds), 3)


def measure(name: str, network: dict[str, object], rounds: dict[int, int], openings: int) -> Iterator[Row]:
    """A row for every form, precision and batch."""
    with TemporaryDirectory() as folder:
        files = write_files(network, Path(folder))
        size = {key: sum(path.stat().st_size for path in paths) for key, paths in files.items()}
        peak = {key: memory(paths) for key, paths in files.items()}
        seconds_of = times(files, rounds, openings)
    for batch, results in seconds_of.items():
        for key in files:
            yield {
                "network": name,
                "form": key[0],
                "precision": key[1],
                "batch": batch,
                "milliseconds": round(1000 * statistics.median(one[key] for one in results), 3),
                "to_one_float32": ratio(results, key, (ONE, "float32")),
                "to_one_int8": ratio(results, key, (ONE, "int8")),
                "bytes": size[key],
                "bytes_to_one_float32": round(size[key] / size[ONE, "float32"], 3),
                "memory_mib": round(peak[key], 1),
                "rounds": len(results),
                "load": round(os.getloadavg()[0], 2),
                "machine": processor(),
                "onnxruntime": onnxruntime.__version__,
            }


def print_table(rows: list[Row]) -> None:
    """A line for every form and precision, with both batches."""
    print("times one plain float32 network (one plain int8 network) at each batch; file; peak MiB")
    for first in (row for row in rows if row["batch"] == 1):
        same = [r for r in rows if all(r[k] == first[k] for k in ("network", "form", "precision"))]
        ratios = "  ".join(f"{r['to_one_float32']:5.2f} ({r['to_one_int8']:5.2f})" for r in same)
        name = f"{first['network']:<12} {first['form']:<38} {first['precision']:<16}"
        print(f"{name} {ratios}  {first['bytes_to_one_float32']:5.2f}  {first['memory_mib']:6.1f}")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, help="measure only this one (default: both)")
    parser.add_argument("--quick", action="store_true", help="a tiny network, one round, no file")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    networks = TINY if options.quick else {k: v for k, v in NETWORKS.items() if options.network in (None, k)}
    rounds, openings = (dict.fromkeys(ROUNDS, 1), 1) if options.quick else (ROUNDS, OPENINGS)
    rows = [row for name, network in networks.items() for row in measure(name, network, rounds, openings)]
    print_table(rows)
    if not options.quick:
        names = list(rows[0])
        others = [row for row in csv.DictReader(options.out.open()) if row.get("network") not in networks]
        rows = [row for row in others if list(row) == names] + rows
        options.out.write_text(csv_text(names, (row.values() for row in rows)))


if __name__ == "__main__":
    main()
