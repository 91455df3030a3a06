"""Every test has a data root and a cache of its own; makers of small files in the official layouts."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYPHONY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def cached_files(tmp_path: Path) -> Callable[[], list[str]]:
    """What is in the cache, hidden files included."""
    return lambda: sorted(p.name for p in (tmp_path / "cache").rglob("*") if p.is_file())


class Cifar10:
    """A small CIFAR-10: 8 images a batch; written as the official python files."""

    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

    def __init__(self, per_batch: int = 8) -> None:
        rng = np.random.default_rng(5)
        self.batches = {
            name: (
                rng.integers(0, 256, (per_batch, 3072), dtype=np.uint8),
                rng.integers(0, 10, per_batch, dtype=np.uint8),
            )
            for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
        }

    def python(self, folder: Path, protocol: int = 2) -> Path:
        folder.mkdir(parents=True)
        for name, (pixels, labels) in self.batches.items():
            table = {b"data": pixels, b"labels": labels.tolist(), b"batch_label": b"a batch"}
            (folder / name).write_bytes(pickle.dumps(table, protocol))
        meta = {b"label_names": [name.encode() for name in self.names]}
        (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol))
        return folder


@pytest.fixture
def cifar10() -> Cifar10:
    return Cifar10()


def pack(folder: Path, archive: Path) -> Path:
    """The folder as a .tar.gz."""
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    return archive


@pytest.fixture
def packed() -> Callable[[Path, Path], Path]:
    return pack


def jpeg(level: int, mode: str = "RGB", size: tuple[int, int] = (64, 64)) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size, level if mode == "L" else (level, 255 - level, 7)).save(stream, "JPEG", quality=95)
    return stream.getvalue()


@pytest.fixture
def tiny(root: Path) -> Path:
    """A TinyImageNet of three classes: 12 training images each (10 must follow 9, not 1) and 2 val."""
    folder = root / "tiny-imagenet-200"
    wnids = ["n03", "n01", "n02"]
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(wnids))
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\tbee\nn03\tlamp, light\nn99\tother\n")
    lines = []
    for k, wnid in enumerate(wnids):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        for i in range(12):
            (images / f"{wnid}_{i}.JPEG").write_bytes(jpeg(80 * k + i * 5))
        for i in range(2):
            (folder / "val" / "images" / f"val_{2 * k + i}.JPEG").write_bytes(jpeg(80 * k + i * 5, "L"))
            lines.append(f"val_{2 * k + i}.JPEG\t{wnid}\t0\t0\t63\t63")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    """A user's own data: two classes of four PNGs, 10×10."""
    folder = tmp_path / "fruit"
    for k, name in enumerate(("apple", "pear")):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (10, 10), (100 * k + i, 50, 200)).save(folder / name / f"{i}.png")
    return folder
