"""CIFAR-10 and CIFAR-100 from the python files, in a folder or still in the .tar.gz."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyphony.data.archives import wanted_files
from polyphony.data.dataset import Contents, Dataset, Download, Place, as_labels
from polyphony.data.files import DataError
from polyphony.data.options import Options, last
from polyphony.data.splits import Split
from polyphony.data.unpickle import unpickle

Rows = np.ndarray[Any, np.dtype[Any]]
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """The files of an archive: training batches in order, the test batch, the names of the classes.

    `fine` and `coarse` are keys: of the labels in a batch, and of the classes' names in `names`.
    """

    train: tuple[str, ...]
    test: str
    names: str
    fine: tuple[str, str]
    coarse: tuple[str, str] | None = None


CIFAR10_FILES = Layout(
    tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta", ("labels", "label_names")
)
CIFAR100_FILES = Layout(
    ("train",), "test", "meta", ("fine_labels", "fine_label_names"), ("coarse_labels", "coarse_label_names")
)


def read(path: Path, options: Options, layout: Layout) -> Contents:
    """Both parts as uint8 [n 3 32 32] with class names; every file is checked before it is used."""
    label, names = (options.coarse and layout.coarse) or layout.fine
    pixels: dict[str, Rows] = {}
    labels: dict[str, Rows] = {}
    classes: tuple[str, ...] = ()
    for name, content in wanted_files(path, (*layout.train, layout.test, layout.names)):
        where = str(path / name) if path.is_dir() else f"{path}: {name}"
        table = unpickle(content, where)
        if name == layout.names:
            classes = _classes(table, names, where)
        else:
            pixels[name], labels[name] = _batch(table, label, where)
    checked = {
        name: as_labels(each, len(pixels[name]), len(classes), f"{path}: {name}")
        for name, each in labels.items()
    }
    parts = {"train": layout.train, "test": (layout.test,)}
    return Contents(classes, {part: _join(pixels, checked, batches) for part, batches in parts.items()})


def _batch(table: dict[str, Any], label: str, where: str) -> tuple[Rows, Rows]:
    """Pixels [n 3072] and labels [n] of a batch."""
    pixels, labels = table.get("data"), table.get(label)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        what = f"{pixels.dtype} {list(pixels.shape)}" if isinstance(pixels, np.ndarray) else "no pixels"
        raise DataError(f"{where} holds {what} where uint8 [n, {PIXELS}] belongs; download it again")
    if not isinstance(labels, list) or not all(type(one) is int for one in labels):
        raise DataError(f"{where} has no list of numbers {label!r}; download it again")
    return pixels, np.array(labels)


def _classes(table: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    names = table.get(key)
    if not isinstance(names, list) or not all(isinstance(name, (str, bytes)) for name in names):
        raise DataError(f"{where} has no list of {key}; it is not the official file, download it again")
    return tuple(name.decode("latin1") if isinstance(name, bytes) else name for name in names)


def _join(pixels: dict[str, Rows], labels: dict[str, torch.Tensor], names: tuple[str, ...]) -> Split:
    """One split of the named batches; each is freed once it is copied, so that memory holds the data once."""
    images = torch.empty(sum(len(pixels[name]) for name in names), PIXELS, dtype=torch.uint8)
    start = 0
    for name in names:
        batch = pixels.pop(name)
        images[start : start + len(batch)].numpy()[:] = batch
        start += len(batch)
    return Split(images.view(-1, 3, 32, 32), torch.cat([labels[name] for name in names]))


SITE = "https://www.cs.toronto.edu/~kriz"
TERMS = "no licence stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"


def _place(path: str, layout: Layout, checksums: Mapping[str, str]) -> Place:
    return Place(path, partial(read, layout=layout), checksums, () if layout.coarse is None else ("coarse",))


def _dataset(name: str, title: str, classes: int, size: int, places: tuple[Place, Place]) -> Dataset:
    """A data set whose places are a folder, and the archive of that folder."""
    folder, archive = places
    url, md5 = f"{SITE}/{archive.path}", archive.checksums[""]
    return Dataset(
        name,
        title,
        homepage=f"{SITE}/cifar.html",
        terms=TERMS,
        places=places,
        counts={"train": 50_000, "test": 10_000},
        shape=(3, 32, 32),
        labels=classes,
        downloads=(Download(url, archive.path, md5, size, folder.path),),
        holdout=last,
    )


CIFAR10 = _dataset(
    "cifar10",
    "CIFAR-10: 32×32 colour photographs of 10 classes",
    classes=10,
    size=170_498_071,
    places=(
        _place(
            "cifar-10-batches-py",
            CIFAR10_FILES,
            {
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
                "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
            },
        ),
        _place("cifar-10-python.tar.gz", CIFAR10_FILES, {"": "c58f30108f718f92721af3b95e74349a"}),
    ),
)

CIFAR100 = _dataset(
    "cifar100",
    "CIFAR-100: 32×32 colour photographs of 100 classes in 20 groups",
    classes=100,
    size=169_001_437,
    places=(
        _place(
            "cifar-100-python",
            CIFAR100_FILES,
            {
                "train": "16019d7e3df5f24257cddd939b257f8d",
                "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
                "meta": "7973b15100ade9c7d40fb424638fde48",
            },
        ),
        _place("cifar-100-python.tar.gz", CIFAR100_FILES, {"": "eb9058c3a382ffc7106e4002c42a8d85"}),
    ),
)
