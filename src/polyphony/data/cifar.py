"""CIFAR-10 and CIFAR-100 from the python files, in a folder or still in the .tar.gz."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyphony.data.archives import full_name, read_files
from polyphony.data.dataset import Contents, Dataset, Download, Place, as_labels
from polyphony.data.files import DataError
from polyphony.data.options import Options, last
from polyphony.data.splits import Split
from polyphony.data.unpickle import unpickle

Rows = np.ndarray[Any, np.dtype[np.uint8]]
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """The files of an archive: training batches in order, the test batch, the file of class names.

    `fine` and `coarse` are pairs of keys: of the labels in a batch, and of the class names in `names`.
    """

    train: tuple[str, ...]
    test: str
    names: str
    fine: tuple[str, str]
    coarse: tuple[str, str] | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.names)


CIFAR10_FILES = Layout(
    tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta", ("labels", "label_names")
)
CIFAR100_FILES = Layout(
    ("train",), "test", "meta", ("fine_labels", "fine_label_names"), ("coarse_labels", "coarse_label_names")
)


def read(path: Path, options: Options, layout: Layout) -> Contents:
    """Read both parts, uint8 [n 3 32 32], and the class names."""
    label, names = (options.coarse and layout.coarse) or layout.fine
    tables = {
        name: unpickle(content, full_name(path, name)) for name, content in read_files(path, layout.files)
    }
    classes = _classes(tables[layout.names], names, full_name(path, layout.names))

    def join(batches: tuple[str, ...]) -> Split:
        pairs = [_batch(tables[name], label, len(classes), full_name(path, name)) for name in batches]
        pixels = np.concatenate([pixels for pixels, _ in pairs]).reshape(-1, 3, 32, 32)
        return Split(torch.from_numpy(pixels), torch.cat([labels for _, labels in pairs]))

    return Contents(classes, {"train": join(layout.train), "test": join((layout.test,))})


def _batch(table: dict[str, Any], label: str, classes: int, where: str) -> tuple[Rows, torch.Tensor]:
    """Pixels [n 3072] and labels [n] of a batch; DataError if they are missing or invalid."""
    pixels, labels = table.get("data"), table.get(label)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        actual = f"{pixels.dtype} {list(pixels.shape)}" if isinstance(pixels, np.ndarray) else "no array"
        raise DataError(f"{where} holds {actual} instead of uint8 [n, {PIXELS}]; download it again")
    if not isinstance(labels, list) or not all(type(value) is int for value in labels):
        raise DataError(f"{where} has no list of numbers {label!r}; download it again")
    return pixels, as_labels(np.array(labels), len(pixels), classes, where)


def _classes(table: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    names = table.get(key)
    if not isinstance(names, list) or not all(isinstance(name, (str, bytes)) for name in names):
        raise DataError(f"{where} has no list of {key}; it is not the official file, download it again")
    return tuple(name.decode("latin1") if isinstance(name, bytes) else name for name in names)


SITE = "https://www.cs.toronto.edu/~kriz"
TERMS = "no licence stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"


def _dataset(
    name: str, title: str, layout: Layout, folder: str, checksums: str, archive: tuple[str, str, int]
) -> Dataset:
    """`checksums` has the MD5 of each of the layout's files; `archive` is (name, MD5, bytes)."""
    file, md5, size = archive
    md5_of_files = dict(zip(layout.files, checksums.split(), strict=True))
    reader = partial(read, layout=layout)
    options = ("coarse",) if layout.coarse else ()
    return Dataset(
        name,
        title,
        homepage=f"{SITE}/cifar.html",
        terms=TERMS,
        places=(Place(folder, reader, md5_of_files, options), Place(file, reader, {"": md5}, options)),
        counts={"train": 50_000, "test": 10_000},
        shape=(3, 32, 32),
        labels=100 if layout.coarse else 10,
        downloads=(Download(f"{SITE}/{file}", file, md5, size, folder),),
        holdout=last,
    )


CIFAR10 = _dataset(
    "cifar10",
    "CIFAR-10: 32×32 colour photographs of 10 classes",
    CIFAR10_FILES,
    "cifar-10-batches-py",
    """c99cafc152244af753f735de768cd75f d4bba439e000b95fd0a9bffe97cbabec 54ebc095f3ab1f0389bbae665268c751
    634d18415352ddfa80567beed471001a 482c414d41f54cd18b22e5b47cb7c3cb 40351d587109b95175f43aff81a1287e
    5ff9c542aee3614f3951f8cda6e48888""",
    archive=("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071),
)
CIFAR100 = _dataset(
    "cifar100",
    "CIFAR-100: 32×32 colour photographs of 100 classes in 20 groups",
    CIFAR100_FILES,
    "cifar-100-python",
    "16019d7e3df5f24257cddd939b257f8d f0ef6b0ae62326f3e7ffdfab6717acfc 7973b15100ade9c7d40fb424638fde48",
    archive=("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
)
