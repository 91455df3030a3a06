from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from polyphony.data import DataError, load
from polyphony.data.load import contents, identify, locate

CLASSES = ("lamp", "goldfish", "bee")


def read(root: Path):
    dataset = identify("tinyimagenet")
    return contents(dataset, *locate(dataset, root))


def zipped(folder: Path) -> Path:
    archive = folder.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as out:
        for file in folder.rglob("*"):
            out.write(file, file.relative_to(folder.parent))
    return archive


def assert_is_tiny(root: Path) -> None:
    contents = read(root)
    assert contents.classes == CLASSES
    train, test = contents.parts["train"], contents.parts["test"]
    assert train.labels.tolist() == [0] * 12 + [1] * 12 + [2] * 12
    assert test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    expected = torch.tensor([80 * k + 5 * i for k in range(3) for i in range(12)])
    assert (train.images[:, 0].flatten(1).float().mean(1) - expected).abs().max() < 2  # JPEG, nearly
    assert (train.images[:, 1].flatten(1).float().mean(1) - (255 - expected)).abs().max() < 2
    grey = test.images.float().flatten(2).mean(2)
    assert torch.equal(grey[:, 0], grey[:, 1])  # greyscale became RGB
    assert torch.equal(grey[:, 0], grey[:, 2])
    assert (grey[:, 0] - torch.tensor([0, 5, 80, 85, 160, 165])).abs().max() < 2


def test_folder(tiny: Path) -> None:
    assert_is_tiny(tiny.parent)


def test_zip(tiny: Path, tmp_path: Path) -> None:
    zipped(tiny)
    tiny.rename(tmp_path / "away")
    assert_is_tiny(tiny.parent)


def test_pictures_of_several_chunks_stay_in_order(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyphony.data.images.CHUNK", 5 * 3 * 64 * 64)
    assert_is_tiny(tiny.parent)


def test_the_cache_is_used_until_a_picture_changes(tiny: Path, cached_files: Callable[[], list[str]]) -> None:
    first = read(tiny.parent)
    (cache_file,) = cached_files()
    picture = tiny / "train" / "n02" / "images" / "n02_3.JPEG"
    os.utime(picture, ns=(1, 1))
    assert torch.equal(read(tiny.parent).parts["train"].images, first.parts["train"].images)
    (rebuilt,) = cached_files()
    assert rebuilt != cache_file  # and the stale one is gone
    picture.write_text("no picture any more")
    with pytest.raises(DataError):
        read(tiny.parent)
    assert cached_files() == [rebuilt]


def test_validation_images_are_the_last_of_every_class(tiny: Path) -> None:
    splits = load("tinyimagenet", root=tiny.parent)
    assert splits.valid.labels.tolist() == [0, 0, 1, 2]  # a tenth of 36, rounded up, shared out
    assert (splits.valid.images[1, 0].float().mean() - 55).abs() < 2  # number 11 of the first class


def test_a_text_file_named_jpeg(tiny: Path, cached_files: Callable[[], list[str]]) -> None:
    (tiny / "train" / "n01" / "images" / "n01_4.JPEG").write_text("hello")
    with pytest.raises(DataError, match=r"n01_4\.JPEG is not a valid picture; replace or remove it"):
        read(tiny.parent)
    assert cached_files() == []


def test_a_truncated_jpeg(tiny: Path) -> None:
    file = tiny / "train" / "n01" / "images" / "n01_4.JPEG"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"n01_4\.JPEG is damaged"):
        read(tiny.parent)


def test_an_empty_class_folder(tiny: Path, cached_files: Callable[[], list[str]]) -> None:
    for file in (tiny / "train" / "n02" / "images").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"n02/images holds no images"):
        read(tiny.parent)
    assert cached_files() == []


def test_an_annotation_of_an_unknown_class_or_file(tiny: Path) -> None:
    file = tiny / "val" / "val_annotations.txt"
    text = file.read_text()
    for wrong, fault in (
        ("val_0.JPEG\tn77\t0", "an unknown class"),
        ("val_99.JPEG\tn01\t0", "a missing file"),
    ):
        file.write_text(text + wrong + "\n")
        with pytest.raises(DataError, match=rf"val_annotations\.txt names {fault} .*; get the archive again"):
            read(tiny.parent)


@pytest.mark.parametrize(("name", "seen"), [("../escaped.txt", "../escaped.txt"), ("\0", "")])
def test_a_zip_whose_path_escapes(
    name: str, seen: str, tiny: Path, tmp_path: Path, cached_files: Callable[[], list[str]]
) -> None:
    archive = zipped(tiny)
    with zipfile.ZipFile(archive, "a") as out:
        info = zipfile.ZipInfo("any")
        info.filename = name  # as it is: the constructor would clean it
        out.writestr(info, "gotcha")
    tiny.rename(tmp_path / "away")
    with pytest.raises(DataError, match=rf"tiny-imagenet-200\.zip holds the path '{re.escape(seen)}'"):
        read(tiny.parent)
    assert not list(tmp_path.rglob("escaped.txt"))
    assert cached_files() == []
