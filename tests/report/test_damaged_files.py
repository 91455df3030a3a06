from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from polyphony.cli import main
from polyphony.cli.advice import advice
from polyphony.report import Run, report_of
from polyphony.runs.rows import GradientSnr
from polyphony.runs.store import StoreError

Damage = Callable[[Path], object]


def cut(path: Path) -> None:
    """The first half of a table; it ends in the middle of a row's second-last number."""
    data = path.read_bytes()
    end = data.index(b"\n", len(data) // 2)
    path.write_bytes(data[: data.rindex(b",", 0, end) - 1])


def cut_in_last_number(path: Path) -> None:
    """The first half of a table; its last number lacks a digit but is still a number."""
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
    """Set a dotted key of a JSON file to another value."""

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


def of_rank(*shape: int, dtype: type = np.float32) -> Damage:
    """Replace the logits by some of another shape; the labels stay."""

    def write(path: Path) -> None:
        save_file(load_file(path) | {"logits": np.ones(shape, dtype)}, path)

    return write


def labelled(labels: Any) -> Damage:
    """Replace the labels; the logits stay."""

    def write(path: Path) -> None:
        save_file(load_file(path) | {"labels": np.array(labels)}, path)

    return write


def fewer_images(path: Path) -> None:
    tensors = load_file(path)
    save_file(tensors | {"perturbed": tensors["perturbed"][:2]}, path)


def a_row_less(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def without_last_row(path: Path) -> None:
    """Remove the last row, a calibrated score of one seed, and that of the other seed."""
    lines = path.read_text().splitlines(keepends=True)
    last = lines[-1].split(",")[0]
    gone = [line for line in lines if line.startswith(f"{last},") and ",calibrated," in line]
    path.write_text("".join(line for line in lines if line not in gone))


LOG = "students/kd/0/log.jsonl"
TEST = "predictions/kd/0/test.safetensors"
TABLES = ("jacobians", "snr", "factors", "latency", "ood", "corrupted", "dee", "temperatures")
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
    ("analysis/corrupted.csv", a_row_less),
    ("analysis/dee.csv", holding("split,calibration,size,nll\ntest,calibrated,0,1.4\n")),
    ("analysis/temperatures.csv", holding("model,seed,temperature\nkd,0,0\n")),
    (TEST, no_text),
    (TEST, other_tensors),
    *((TEST, of_rank(*shape)) for shape in ((), (3,), (3, 4), (3, 120, 4, 1), (0, 120, 4), (3, 120, 0))),
    *((TEST, of_rank(*shape)) for shape in ((3, 60, 4), (2, 120, 4), (3, 120, 5))),
    (TEST, of_rank(3, 120, 4, dtype=np.int64)),
    *((TEST, labelled(labels)) for labels in ([1], 120 * [0.5], 120 * [-1], 120 * [4], [120 * [0]])),
    ("predictions/teachers/test.safetensors", of_rank(2, 120, 4)),
    ("predictions/teachers/train.safetensors", of_rank(120, 4)),
    ("predictions/kd/1/ood-svhn.safetensors", of_rank(3, 4)),
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
    ("recipe.json", setting("recipe.methods.kd-new", {"perturb": "odds"})),
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
    output = " ".join(capsys.readouterr().err.split())
    assert Path(name).name in output.replace(" ", "")  # a long path is cut in its middle
    assert "Traceback" not in output
    assert not (full_run / "report.html").exists()
    assert not (full_run / "figures").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("scores.csv", "'polyphony evaluate RUN' makes it again"),
        ("analysis/dee.csv", "'polyphony evaluate RUN' makes it again"),
        ("analysis/selective.csv", "'polyphony evaluate RUN' makes it again"),
        ("analysis/snr.csv", "'polyphony analyse RUN snr' makes it again"),
        ("analysis/ood.csv", "'polyphony evaluate RUN --ood NAME' makes it again"),
    ],
)
def test_a_damaged_table_is_named_with_the_command_that_writes_it_again(
    full_run: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
):
    other_columns(full_run / name)
    with pytest.raises(StoreError, match=rf"{name} is damaged \(it has no column '\w+'\)$"):
        report_of(Run.open(full_run))
    with pytest.raises(SystemExit):
        main(["report", str(full_run)])
    output = capsys.readouterr().err.replace("\n", "").replace(str(full_run), "RUN")
    assert output.endswith(f"'): {words}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("students/kd/0/log.jsonl", "delete it to report without it, or RUN/students/kd/0 to train again"),
        ("students/kd/0/done.json", "delete RUN/students/kd/0 to train again"),
        ("students/kd/0", "'polyphony study RECIPE' trains it"),
        ("predictions/kd/0/test.safetensors", "delete it to make it again"),
        ("analysis/parts/snr-ods-1.json", "delete it to make it again"),
        ("recipe.json", "RUN is not a run folder; 'polyphony study RECIPE' makes one"),
        ("sweep.csv", "'polyphony sweep RECIPE' makes it again"),
        ("analysis/members.safetensors", "delete it, and 'polyphony analyse RUN members' makes it again"),
    ],
)
def test_there_is_advice_for_every_file(name: str, words: str):
    assert advice(Path("RUN", name)) == words


def test_a_table_without_rows_counts_as_missing(full_run: Path):
    (full_run / "analysis" / "snr.csv").write_text("perturbation,step_size,snr,samples\n")
    assert Run.open(full_run).table(GradientSnr) == []
