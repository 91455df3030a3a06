from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from polyphony.cli import main
from polyphony.report import Run, report_of
from polyphony.rows import GradientSnr
from polyphony.store import StoreError

Damage = Callable[[Path], object]


def cut(path: Path) -> None:
    """The first half, to the middle of a row's last number but one."""
    data = path.read_bytes()
    end = data.index(b"\n", len(data) // 2)
    path.write_bytes(data[: data.rindex(b",", 0, end) - 1])


def cut_in_last_number(path: Path) -> None:
    """The first half, to a row whose last number lacks a digit, but is one."""
    data = path.read_bytes().replace(b"\r", b"")
    path.write_bytes(data[: data.index(b"\n", len(data) // 2) - 1])


def other_columns(path: Path) -> None:
    path.write_text("a,b\n1,2\n")


def no_numbers(path: Path) -> None:
    header = path.read_text().splitlines()[0]
    path.write_text(f"{header}\n{','.join('x' for _ in header.split(','))}\n")


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00" + path.read_bytes())


def holding(text: str) -> Damage:
    return lambda path: path.write_text(text)


def setting(key: str, value: Any) -> Damage:
    """Another value for a dotted key of JSON."""

    def write(path: Path) -> None:
        table = facts = json.loads(path.read_text())
        *parents, last = key.split(".")
        for parent in parents:
            table = table[parent]
        table[last] = value
        path.write_text(json.dumps(facts))

    return write


def other_tensors(path: Path) -> None:
    save_file({"other": np.zeros(3, np.float32)}, path)


def fewer_images(path: Path) -> None:
    tensors = load_file(path)
    save_file(tensors | {"perturbed": tensors["perturbed"][:2]}, path)


def without_last_row(path: Path) -> None:
    """Without the last row, which is a calibrated score of one seed; its other seed has none either."""
    lines = path.read_text().splitlines(keepends=True)
    last = lines[-1].split(",")[0]
    gone = [line for line in lines if line.startswith(f"{last},") and ",calibrated," in line]
    path.write_text("".join(line for line in lines if line not in gone))


LOG = "students/kd/0/log.jsonl"
TABLES = ("jacobians", "snr", "factors", "latency", "ood", "corrupted")
DAMAGES: list[tuple[str, Damage]] = [
    ("scores.csv", cut),
    ("scores.csv", cut_in_last_number),
    ("scores.csv", without_last_row),
    (LOG, no_text),
    (LOG, holding("[1, 2]\n")),
    (LOG, holding('{"valid_nll": 1.0}\n')),
    (LOG, holding('{"epoch": 0, "valid_nll": "low"}\n')),
    (LOG, holding('{"epoch": 0, "valid\n{"epoch": 1, "valid_nll": 1.0}\n')),
    ("students/kd/0/done.json", holding('{"seconds": "long"}')),
    ("students/kd/0/done.json", holding('{"adopted": 3}')),
    *((f"analysis/{name}.csv", damage) for name in TABLES for damage in (cut, other_columns, no_numbers)),
    ("analysis/jacobians.csv", cut_in_last_number),
    ("analysis/members.safetensors", other_tensors),
    ("analysis/members.safetensors", fewer_images),
    ("recipe.json", holding("{}")),
    ("recipe.json", holding('{"recipe": null}')),
    ("recipe.json", holding('{"recipe": [1]}')),
    *(("recipe.json", setting(f"recipe.{key}", [1])) for key in ("members", "data", "teachers", "student")),
    *(("recipe.json", setting(f"recipe.methods{key}", [1])) for key in ("", ".kd", ".kd.perturb")),
    ("recipe.json", setting("recipe.student.form", {"kind": [1]})),
    ("recipe.json", setting("recipe.student.alpha", "much")),
    ("recipe.json", setting("recipe.teachers.extra", "two")),
    ("recipe.json", setting("recipe.teachers.network", "resnet")),
    ("recipe.json", setting("machine", [1])),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_file_is_one_sentence_that_names_it_and_nothing_is_written(
    full_run: Path, capsys: pytest.CaptureFixture[str], name: str, damage: Damage
):
    (full_run / "analysis" / "factors.csv").write_text("model,seed,distance\nkd,0,0.81\nkd,1,0.62\n")
    damage(full_run / name)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(full_run)])
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert name in said.replace(" ", "")
    assert "Traceback" not in said
    assert not (full_run / "report.html").exists()
    assert not (full_run / "figures").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("scores.csv", r"scores\.csv is damaged .*: run 'polyphony evaluate .*full' again"),
        (
            "analysis/snr.csv",
            r"snr\.csv is damaged .*: delete it and run 'polyphony analyse .*full snr' again",
        ),
        ("analysis/ood.csv", r"delete it and run 'polyphony evaluate .*full --ood NAME' again"),
    ],
)
def test_a_damaged_table_says_what_makes_it_again(full_run: Path, name: str, words: str):
    other_columns(full_run / name)
    with pytest.raises(StoreError, match=words) as error:
        report_of(Run.open(full_run))
    assert "no column '" in str(error.value)


def test_a_table_without_rows_is_one_that_was_not_made(full_run: Path):
    (full_run / "analysis" / "snr.csv").write_text("perturbation,step_size,snr,samples\n")
    assert Run.open(full_run).table(GradientSnr) == []
