from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from polyphony.cli import main


def write_run(folder: Path) -> Path:
    """The smallest run there can be: two teachers, one student, one seed."""
    rng = np.random.default_rng(0)
    schedule = {"epochs": 1, "batch": 10, "learning_rate": 0.1}
    recipe = {
        "name": "tiny",
        "members": 2,
        "data": {"name": "digits"},
        "teachers": {"network": {"kind": "resnet", "depth": 8}, **schedule},
        "student": schedule,
        "methods": {"kd": {"perturb": "clean"}},
    }
    (folder / "analysis").mkdir(parents=True)
    curves = [
        f"test,{kind},{size},{1 / (1 + size)}" for kind in ("calibrated", "standard") for size in range(3)
    ]
    (folder / "analysis" / "dee.csv").write_text("\n".join(["split,calibration,size,nll", *curves, ""]))
    (folder / "recipe.json").write_text(json.dumps({"recipe": recipe}))
    header = ["model", "seed", "split", "calibration", "acc", "nll", "bs", "ece", "dee", "kld", "params"]
    with (folder / "scores.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for model, seed in (("teachers", ""), ("kd", 0)):
            for kind in ("standard", "calibrated"):
                writer.writerow([model, seed, "test", kind, 0.9, 0.3, 0.1, 0.02, 1.5, 0.1, 100])
    for who in ("teachers", "kd/0"):
        for split in ("valid", "test"):
            path = folder / "predictions" / who / f"{split}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            logits = rng.normal(size=(2, 30, 3)).astype(np.float32)
            save_file({"logits": logits, "labels": rng.integers(3, size=30)}, path)
    return folder


def test_a_report_is_written_beside_the_run_and_its_place_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = write_run(tmp_path / "tiny")
    with pytest.raises(SystemExit) as ended:
        main(["report", str(run)])
    assert ended.value.code == 0
    assert str(run / "report.html") in capsys.readouterr().out.replace("\n", "")
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert (run / "figures" / "dee.pdf").exists()


def test_several_runs_need_no_more_than_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runs = [str(write_run(tmp_path / name)) for name in ("one", "two")]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["report", *runs])
    assert ended.value.code == 0
    assert "2 runs compared" in (tmp_path / "report.html").read_text()
    with pytest.raises(SystemExit) as ended:
        main(["report", *runs, "--out", "deep/both.html"])
    assert ended.value.code == 0
    assert (tmp_path / "deep" / "both.html").read_bytes() == (tmp_path / "report.html").read_bytes()


@pytest.mark.parametrize("name", ["recipe.json", "scores.csv"])
def test_a_folder_that_cannot_be_reported_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
):
    run = write_run(tmp_path / "tiny")
    (run / name).unlink()
    with pytest.raises(SystemExit) as ended:
        main(["report", str(run)])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert name in error.replace("\n", "")
    assert "Traceback" not in error
