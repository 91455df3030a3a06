"""The table of benchmarks/README.md, and what README says of int8, follow from results/latency.csv."""

import csv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NETWORKS = ("resnet32", "resnet20-64")
SHARED = "BatchEnsemble, first stage shared"
with (ROOT / "benchmarks" / "results" / "latency.csv").open() as table:
    ROWS = {(r["network"], r["form"], r["precision"], r["batch"]): r for r in csv.DictReader(table)}


def pair(form: str, precision: str, batch: str, column: str, digits: int = 2) -> str:
    found = (float(ROWS[network, form, precision, batch][column]) for network in NETWORKS)
    return " / ".join(f"{each:.{digits}f}" for each in found)


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("form", sorted({form for _, form, _, _ in ROWS}))
def test_the_table_is_what_was_measured(form, precision):
    times = [pair(form, precision, batch, "to_one_float32") for batch in ("1", "64")]
    file = pair(form, precision, "1", "bytes_to_one_float32")
    memory = pair(form, precision, "1", "memory_mib", digits=0)
    line = f"| {form}, {precision} | {' | '.join([*times, file, memory])} |"
    assert line in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("network", "one", "many", "file"), [("resnet32", 1.2, 1.0, 1.25), ("resnet20-64", 0.85, 0.85, 1.0)]
)
def test_four_members_in_int8_cost_about_one_network(network, one, many, file):
    first, second = (ROWS[network, SHARED, "int8", batch] for batch in ("1", "64"))
    assert float(first["to_one_float32"]) <= one
    assert float(second["to_one_float32"]) <= many
    assert float(first["bytes_to_one_float32"]) <= file


def test_the_readme_says_what_was_measured_of_int8():
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    times = float(ROWS["resnet32", SHARED, "int8", "1"]["to_one_float32"])
    assert f"first stage answer in {times:.2f} times the time of one float32 network" in text
