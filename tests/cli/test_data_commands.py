from __future__ import annotations

import pickle
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyphony.cli.data import app
from polyphony.data import DataError


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYPHONY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> object:
    return app(arguments, result_action="return_value")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Ten red and five blue pictures, one class name looking like markup."""
    images = np.zeros((15, 8, 8, 3), np.uint8)
    images[:10, ..., 0], images[10:, ..., 2] = 250, 240
    labels, names = np.repeat([0, 1], [10, 5]), np.array(["[red]", "blue"])
    np.savez(tmp_path / "mine.npz", images=images, labels=labels, classes=names)
    return tmp_path / "mine.npz"


def test_list_says_what_is_here_and_where_the_rest_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere" / "svhn").mkdir(parents=True)
    (tmp_path / "elsewhere" / "svhn" / "test_32x32.mat").write_bytes(bytes(2_500_000))
    run("list", "--data", str(tmp_path / "elsewhere"))
    blocks = {block.split("\n")[0]: block for block in capsys.readouterr().out.split("\n\n")}
    assert f"{tmp_path / 'elsewhere' / 'svhn'} (2.5 MB)" in blocks["svhn"]
    assert "no; expected cifar-10-batches-py, cifar-10-python.tar.gz" in blocks["cifar10"]
    assert "https://www.cs.toronto.edu/~kriz/cifar.html" in blocks["cifar10"]
    assert "terms MIT" in blocks["fashion-mnist"]
    assert "no download needed" in blocks["digits"]


def test_check_reports_counts_and_the_exit_code(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "digits") == 0
    assert "train 1,797" in capsys.readouterr().out
    assert run("check", str(mine)) == 0
    assert "your own data, readable" in capsys.readouterr().out


def test_check_names_a_subset_and_exits_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    batch = pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]})
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(batch)
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(label) for label in range(10)]}))
    assert run("check", "cifar10") == 1
    out = capsys.readouterr().out
    assert "not the official data: another number of images" in out
    assert "test has 2 images, officially 10,000" in out


def test_check_of_an_empty_root_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("polyphony.data.load"), "first_place", lambda dataset, root: None)
    with pytest.raises(DataError, match="no known data set is in"):
        run("check")


def test_get_refuses_what_needs_no_download() -> None:
    with pytest.raises(DataError, match="digits needs no download"):
        run("get", "digits")


def test_preview_shows_every_class_in_its_row(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("preview", str(mine), "--out", str(tmp_path / "sheet.png"))
    out = capsys.readouterr().out
    assert "train: 15 images" in out
    assert "[red] 10" in out
    assert "blue 5" in out
    sheet = np.asarray(Image.open(tmp_path / "sheet.png").convert("RGB"))
    rows, half = {}, sheet.shape[0] // 2
    for name, part in (("red", sheet[:half]), ("blue", sheet[half:])):
        rows[name] = {tuple(pixel) for pixel in part.reshape(-1, 3).tolist()}
    assert (250, 0, 0) in rows["red"]
    assert (0, 0, 240) not in rows["red"]
    assert (0, 0, 240) in rows["blue"]
    assert (250, 0, 0) not in rows["blue"]


def test_pictures_of_different_sizes_need_a_resolution(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for k, name in enumerate(("a", "b")):
        (tmp_path / "mixed" / name).mkdir(parents=True)
        Image.new("RGB", (6 + k, 9), "red").save(tmp_path / "mixed" / name / "x.png")
    with pytest.raises(DataError, match="set a resolution"):
        run("check", "mixed")
    assert run("check", "mixed", "--resolution", "5") == 0
    run("preview", "mixed", "--resolution", "5")
    assert (tmp_path / "mixed.png").exists()
    assert "train: 2 images" in capsys.readouterr().out


def test_corrupt_writes_the_official_layout_and_preview_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("corrupt", "digits", "--test", "10")
    folder = tmp_path / "data" / "digits-c-regenerated"
    assert "regenerated (not official)" in capsys.readouterr().out
    assert len(list(folder.glob("*.npy"))) == 16
    assert np.load(folder / "fog.npy").shape == (50, 8, 8, 1)
    assert np.load(folder / "labels.npy").dtype == np.uint8
    run("preview", str(folder))
    assert "origin: regenerated" in capsys.readouterr().out
    with Image.open(tmp_path / "digits-c-regenerated.png") as sheet:
        assert sheet.height > 15 * 50
