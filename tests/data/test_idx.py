from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from polyphony.data import DataError, load
from polyphony.data.idx import FASHION_MNIST

RNG = np.random.default_rng(8)
IMAGES = {
    "train": RNG.integers(0, 256, (50, 28, 28), dtype=np.uint8),
    "t10k": RNG.integers(0, 256, (10, 28, 28), dtype=np.uint8),
}
LABELS = {"train": np.arange(50, dtype=np.uint8) % 10, "t10k": np.arange(10, dtype=np.uint8)}


def write(folder: Path, suffix: str = "") -> Path:
    folder.mkdir()
    for prefix in ("train", "t10k"):
        put(folder / f"{prefix}-images-idx3-ubyte{suffix}", idx(IMAGES[prefix]))
        put(folder / f"{prefix}-labels-idx1-ubyte{suffix}", idx(LABELS[prefix]))
    return folder


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def put(file: Path, content: bytes) -> None:
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_plain_and_packed_files(name: str, suffix: str, root: Path) -> None:
    write(root / name, suffix)
    splits = load(name, root=root)
    assert torch.equal(splits.test.images[:, 0], torch.from_numpy(IMAGES["t10k"]))
    assert splits.test.labels.tolist() == LABELS["t10k"].tolist()
    rows = {image.tobytes(): label for image, label in zip(IMAGES["train"], LABELS["train"], strict=True)}
    for split in (splits.train, splits.valid):
        for image, label in zip(split.images, split.labels.tolist(), strict=True):
            assert rows.pop(image[0].numpy().tobytes()) == label  # every image once, with its label
    assert not rows
    assert len(splits.valid) == 5


def test_the_class_names_of_clothes(root: Path) -> None:
    write(root / "fashion-mnist")
    classes = load("fashion-mnist", root=root).classes
    assert (classes[0], classes[9], len(classes)) == ("T-shirt/top", "Ankle boot", 10)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("train-images-idx3-ubyte", idx(IMAGES["train"])[:-1], "has 39,215 bytes, but its header says"),
        ("train-images-idx3-ubyte", idx(LABELS["train"]), "not an IDX file of 3-dimensional bytes"),
        ("train-images-idx3-ubyte", struct.pack(">BBBB3I", 0, 0, 8, 3, 2**31, 2**31, 4), "has 16 bytes"),
        (
            "train-labels-idx1-ubyte",
            idx(LABELS["train"][:-1]),
            r"uint8 \[49\] instead of 50 labels",
        ),
        ("t10k-labels-idx1-ubyte", idx(LABELS["t10k"] + 1), r"label 10, outside 0\.\.9"),
        ("t10k-labels-idx1-ubyte", b"", "is empty"),
    ],
)
def test_wrong_files_are_named(name: str, content: bytes, fault: str, root: Path) -> None:
    (write(root / "mnist") / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} .*{fault}"):
        load("mnist", root=root)


def test_a_truncated_gz_and_a_missing_file_are_named(root: Path) -> None:
    file = write(root / "mnist", ".gz") / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz is not a valid \.gz file"):
        load("mnist", root=root)
    file.unlink()
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte cannot be read"):
        load("mnist", root=root)


def test_a_gz_bomb_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root / "mnist", ".gz")
    monkeypatch.setattr("polyphony.data.files.LARGEST", 1000)
    with pytest.raises(DataError, match="unpacks to too many bytes"):
        load("mnist", root=root)


def test_checksums_are_known_for_every_official_file() -> None:
    assert [len(place.checksums) for place in FASHION_MNIST.places] == [4, 4, 4]
    assert len(set(FASHION_MNIST.places[0].checksums.values())) == 4
