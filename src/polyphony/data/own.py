"""A user's own data: a folder of class folders of pictures, or an .npz with images and labels."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyphony.data import cifar_c
from polyphony.data.archives import RATIO, SLACK, tree
from polyphony.data.dataset import Contents, Dataset, Place
from polyphony.data.errors import DataError
from polyphony.data.files import read_bytes
from polyphony.data.images import SUFFIXES, decode_all
from polyphony.data.options import Options
from polyphony.data.splits import Split

Array = np.ndarray[Any, np.dtype[Any]]
KEYS = {  # what common tools call the arrays of a part, in the order looked for
    "train": (("images", "labels"), ("train_images", "train_labels"), ("x_train", "y_train")),
    "test": (("test_images", "test_labels"), ("x_test", "y_test")),
}


def own(path: Path) -> Dataset:
    """A data set of the user's own, or corrupted images made here, named after its folder or file."""
    path = path.resolve()
    if (path / cifar_c.MARK).exists():
        form = Place(str(path), cifar_c.read, cached=False)
    elif path.is_dir():
        form = Place(str(path), read_folder, heeds=("resolution",))
    else:
        form = Place(str(path), read_npz)
    name = path.name if path.is_dir() else path.stem
    return Dataset(name, f"your own: {path}", "", "yours", (form,), counts={})


def read_folder(path: Path, options: Options) -> Contents:
    """`path/CLASS/picture`, or `path/train/CLASS/picture` with `path/test/CLASS/picture`; RGB [n 3 h w].

    With a resolution every picture is cropped to a square and brought to it; without, sizes must be equal.
    """
    halves = {part: path / part for part in ("train", "test")}
    folders = halves if all(folder.is_dir() for folder in halves.values()) else {"train": path}
    classes = _class_names(folders["train"])
    for folder in folders.values():
        if _class_names(folder) != classes:
            raise DataError(f"{folder} has other class folders than {folders['train']}; make them the same")
    return Contents(
        classes, {part: _pictures(folder, classes, options) for part, folder in folders.items()}, "own"
    )


def _class_names(folder: Path) -> tuple[str, ...]:
    found = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in found:
        if not entry.is_dir():
            raise DataError(f"{entry} is not in a class folder; move it into one or remove it")
    if len(found) < 2:
        raise DataError(f"{folder} has {len(found)} class folders; a data set needs two or more")
    return tuple(entry.name for entry in found)


def _pictures(folder: Path, classes: tuple[str, ...], options: Options) -> Split:
    names, labels = [], []
    for label, name in enumerate(classes):
        files = [file for file in tree(folder / name).names if not Path(file).name.startswith(".")]
        if not files:
            raise DataError(f"{folder / name} holds no pictures; fill the class folder or remove it")
        for file in files:
            if not file.lower().endswith(SUFFIXES):
                raise DataError(f"{folder / name / file} is no picture file; remove it")
        names += [f"{name}/{file}" for file in files]
        labels += [label] * len(files)

    def where(name: str) -> str:
        return str(folder / name)

    images = decode_all(names, lambda name: read_bytes(folder / name), where, options.resolution, folder.name)
    return Split(images, torch.tensor(labels))


def read_npz(path: Path, options: Options) -> Contents:
    """`images` uint8 [n h w], [n h w c] or [n c h w] with `labels` [n] of integers from 0.

    Optional: `test_images`, `test_labels`, and `classes`, the names. Objects in the file are refused unread.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(info.file_size for info in archive.infolist())
        if total > RATIO * path.stat().st_size + SLACK:
            raise DataError(f"{path} would unpack to {total:,} bytes, out of proportion; do not trust it")
        with np.load(path, allow_pickle=False) as table:
            arrays = {name: table[name] for name in table.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is no whole .npz file of plain arrays ({error}); save it again") from error
    return _contents(path, arrays)


def _contents(path: Path, arrays: dict[str, Array]) -> Contents:
    parts = {}
    for part, pairs in KEYS.items():
        pair = next((pair for pair in pairs if set(pair) <= set(arrays)), None)
        if pair is not None:
            parts[part] = _split(path, pair, arrays)
    if "train" not in parts:
        found = ", ".join(arrays) or "nothing"
        raise DataError(f"{path} holds {found}; it needs the arrays 'images' and 'labels'")
    count = int(max(split.labels.max() for split in parts.values())) + 1
    names = [str(name) for name in arrays["classes"].tolist()] if "classes" in arrays else range(count)
    if len(names) < count:
        raise DataError(f"{path} names {len(names)} classes but has the label {count - 1}; correct either")
    return Contents(tuple(str(name) for name in names), parts, "own")


def _split(path: Path, pair: tuple[str, str], arrays: dict[str, Array]) -> Split:
    images, labels = arrays[pair[0]], arrays[pair[1]]
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise DataError(
            f"{path}: {pair[0]} is {images.dtype} {list(images.shape)}; it must be uint8 [n h w] or [n h w c]"
        )
    if labels.dtype.kind not in "iu" or math.prod(labels.shape) != len(images) or len(labels) != len(images):
        raise DataError(
            f"{path}: {pair[1]} is {labels.dtype} {list(labels.shape)}; it must be {len(images)} integers"
        )
    if not len(images) or labels.min() < 0:
        fault = "is empty" if not len(images) else f"has the label {labels.min()}; labels count from 0"
        raise DataError(f"{path}: {pair[1]} {fault}")
    pixels = np.ascontiguousarray(_channels_first(path, images))
    return Split(torch.from_numpy(pixels), torch.from_numpy(labels.reshape(-1).astype(np.int64)))


def _channels_first(path: Path, images: Array) -> Array:
    if images.ndim == 3:
        return images[:, None]
    if images.shape[3] in (1, 3):
        return images.transpose(0, 3, 1, 2)
    if images.shape[1] in (1, 3):
        return images
    raise DataError(f"{path}: images {list(images.shape)} have no axis of 1 or 3 channels, last or second")
