"""What docs/scale.md shows: every command is one, every recipe is shipped, every count is the benchmark's."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import pytest

from polyphony.cli import app
from polyphony.recipe import read_recipe

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(found)
    for found in re.findall(r"polyphony ((?:study|show|check|status) [^`\n…]+)", PAGE.replace("\\\n", " "))
]
with (ROOT / "benchmarks" / "results" / "costs.csv").open() as table:
    COSTS = list(csv.DictReader(table))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_is_one(command: list[str]):
    app.parse_args(command, exit_on_error=False, print_error=False)
    if command[0] == "study":
        assert read_recipe(command[1])


def test_there_is_a_command_for_every_place():
    words = {word for command in COMMANDS for word in command}
    assert {"--cluster", "--device", "--out", "--data"} <= words
    for place in ("torchrun --nproc-per-node 8", "srun torchrun", "ray start --head", "sky jobs launch"):
        assert place in PAGE


def test_the_tables_are_those_of_the_benchmark():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines()]
    for cost in COSTS:
        if cost["table"] == "paper":
            (row,) = (row for row in rows if row[0] == cost["what"])
            assert row[1] == cost["trainings"]
            assert float(row[2]) == pytest.approx(float(cost["eflop"]), rel=0.05)
            assert row[3] == cost["hours"]
    grown = {cost["what"]: cost for cost in COSTS if cost["table"] == "growth"}
    for shown, name in {
        "M = 2 members": "M = 2",
        "M = 8": "M = 8",
        "64 × 64 pixels": "64 × 64 pixels",
    }.items():
        (row,) = (row for row in rows if row[0] == shown)
        assert [float(cell) for cell in row[1:]] == pytest.approx(
            [float(grown[name][who]) for who in ("teacher", "student")], rel=0.02
        )


def test_the_ratios_are_those_of_the_benchmark():
    ratios = [float(cost["ratio"]) for cost in COSTS if cost["table"] == "measured"]
    assert len(ratios) == 3
    for ratio in ratios:
        assert f"{ratio:.2f}" in PAGE
