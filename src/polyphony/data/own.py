"""The user's own data: a folder with a folder of pictures for each class, or an .npz file."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import read_array
from torch import Tensor

from polyphony.data import cifar_c
from polyphony.data.archives import open_zip, tree
from polyphony.data.cache import cached
from polyphony.data.dataset import Contents, Dataset, Place, as_labels
from polyphony.data.files import DataError, as_data_error, path_exists, read_bytes, readable
from polyphony.data.images import SUFFIXES, decode_all, is_picture
from polyphony.data.options import Options, area_average, channels_first, with_channels
from polyphony.data.splits import Split

Array = np.ndarray[Any, np.dtype[Any]]
KEYS = {  # names that common tools give the arrays of a part, in order of preference
    "train": (("images", "labels"), ("train_images", "train_labels"), ("x_train", "y_train")),
    "valid": (("valid_images", "valid_labels"), ("val_images", "val_labels"), ("x_valid", "y_valid")),
    "test": (("test_images", "test_labels"), ("x_test", "y_test")),
}
FOLDERS = {  # names of the folder of a part, in lower case
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "val", "validation"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def own(path: Path) -> Dataset:
    """The data set at a user's path; it has the name of the folder or file.

    The folder may also hold corrupted images that Polyphony made.
    """
    path = path.resolve()
    if path_exists(path / cifar_c.MARK):
        place = Place(str(path), cifar_c.read, cached=False)
    elif path.is_dir():
        place = Place(str(path), read_folder, options=("resolution",))
    else:
        place = Place(str(path), read_npz)
    name = path.name if path.is_dir() else path.stem
    return Dataset(name, f"your own: {path}", "", "yours", (place,), counts={})


def read_folder(path: Path, options: Options) -> Contents:
    """Read `path/CLASS/picture`, or `path/PART/CLASS/picture`: train, and optionally valid and test.

    Returns RGB images [n 3 h w]. With a resolution, pictures are cropped to a square and resized. Raises a
    DataError if they have different sizes without a resolution, or if parts have different classes.
    """
    folders = _parts(path) or {"train": path}
    classes = _class_names(folders["train"])
    for folder in folders.values():
        if _class_names(folder) != classes:
            raise DataError(f"{folder} has other class folders than {folders['train']}; make them the same")
    return Contents(
        classes, {part: _pictures(folder, classes, options) for part, folder in folders.items()}, "own"
    )


def _parts(path: Path) -> dict[str, Path]:
    """Part → its folder; empty if there are none. DataError for two folders of a part, or without train."""
    parts: dict[str, Path] = {}
    for folder in sorted(path.iterdir()):
        part = FOLDERS.get(folder.name.lower())
        if part is None or not folder.is_dir():
            continue
        if part in parts:
            raise DataError(f"{parts[part]} and {folder} both hold {part} images; rename or remove one")
        parts[part] = folder
    if parts and "train" not in parts:
        name = next(iter(parts.values())).name
        raise DataError(
            f"{path} has a folder '{name}' but no 'train'; add it, or rename '{name}' if it is a class"
        )
    return parts


def _class_names(folder: Path) -> tuple[str, ...]:
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        if not entry.is_dir():
            raise DataError(f"{entry} is not in a class folder; move it into one or remove it")
    if len(entries) < 2:
        raise DataError(f"{folder} has {len(entries)} class folders; a data set needs two or more")
    return tuple(entry.name for entry in entries)


def _pictures(folder: Path, classes: tuple[str, ...], options: Options) -> Split:
    names, labels = [], []
    for label, name in enumerate(classes):
        files = [file for file in tree(folder / name).names if not Path(file).name.startswith(".")]
        if not files:
            raise DataError(f"{folder / name} holds no pictures; fill the class folder or remove it")
        for file in files:
            if not file.lower().endswith(SUFFIXES):
                raise DataError(f"{folder / name / file} is not a picture file; remove it")
        names += [str(folder / name / file) for file in files]
        labels += [label] * len(files)
    size = (options.resolution, options.resolution) if options.resolution else None
    images = decode_all(names, lambda name: read_bytes(Path(name)), str, size, folder.name)
    return Split(images, torch.tensor(labels))


def read_npz(path: Path, options: Options) -> Contents:
    """Read `images` uint8 [n h w], [n h w c] or [n c h w] with `labels` [n], integers from 0.

    Optional: `valid_images`, `test_images`, their labels, and `classes`, the names. Without names, labels
    must be below the number of images. Raises a DataError for other arrays, and for Python objects, which
    are never loaded.
    """
    arrays = _arrays(path)
    matches = {part: [pair for pair in pairs if set(pair) <= set(arrays)] for part, pairs in KEYS.items()}
    keys = {part: pairs[0] for part, pairs in matches.items() if pairs}
    if "train" not in keys:
        raise DataError(f"{path} has {_listing(arrays)}; it needs the arrays 'images' and 'labels'")
    pixels = {part: _pixels(path, images, arrays[images]) for part, (images, _) in keys.items()}
    names = _names(path, arrays.get("classes"))
    classes = len(names) or sum(map(len, pixels.values()))
    parts = {
        part: Split(pixels[part], as_labels(arrays[labels], len(pixels[part]), classes, f"{path}: {labels}"))
        for part, (_, labels) in keys.items()
    }
    count = max(int(split.labels.max()) for split in parts.values()) + 1
    return Contents(names or tuple(map(str, range(count))), parts, "own")


def _arrays(path: Path) -> dict[str, Array]:
    """The arrays of the file whose names are "classes" or in `KEYS`."""
    names = {"classes", *(name for pairs in KEYS.values() for pair in pairs for name in pair)}
    arrays = {}
    with open_zip(path, ".npz file") as archive, warnings.catch_warnings(action="ignore"):  # old headers warn
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name in names:
                with (
                    as_data_error(f"{path}: {name}", "plain array", "save it again"),
                    archive.open(info) as stream,
                ):
                    arrays[name] = read_array(stream, allow_pickle=False)
                    if stream.read(1):
                        raise ValueError("its size differs from its header")
    return arrays


def _listing(arrays: dict[str, Array]) -> str:
    return ", ".join(arrays) or "no array with a known name"


def _names(path: Path, classes: Array | None) -> tuple[str, ...]:
    """The names of the classes; empty if the file has none. DataError for duplicates."""
    if classes is None:
        return ()
    if classes.ndim != 1 or classes.dtype.kind not in "USiu" or not classes.size:
        raise DataError(
            f"{path}: classes is {classes.dtype} {list(classes.shape)}; it must be a list of names"
        )
    with as_data_error(f"{path}: classes", "list of names", "save it again"):
        names = tuple(classes.astype(str).tolist())
    duplicates = [name for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise DataError(f"{path}: two classes are called '{duplicates[0]}'; rename one")
    return names


def _pixels(path: Path, name: str, images: Array) -> Tensor:
    """An array of images as uint8 [n c h w]; DataError if it has another type or shape."""
    is_uint8 = images.dtype == np.uint8 and images.size
    pixels = channels_first(torch.from_numpy(images)) if is_uint8 else None
    if pixels is None:
        actual = f"{path}: {name} is {images.dtype} {list(images.shape)}"
        raise DataError(f"{actual}; it must be uint8 [n h w] or [n h w c], with 1 or 3 channels")
    return pixels.contiguous()


def read_unlabelled(path: Path, shape: tuple[int, ...]) -> Split:
    """All pictures of a folder, at any depth, or `images` of an .npz, in a shape [c h w]; all labels are −1.

    Pictures are cropped, then resized to the shape; arrays are only resized. Labels in the file are ignored.
    Raises a DataError if the path or its images are missing.
    """
    if not path_exists(path) or not (path.is_dir() or path.suffix == ".npz"):
        raise DataError(f"data.unlabelled is {path}, which is not a folder or an .npz file; correct the path")
    path = path.resolve()

    def read() -> Contents:
        with readable(path):
            images = _all_pictures(path, shape) if path.is_dir() else _training_images(path)
        images = with_channels(images, shape[0])
        if images.shape[2:] != shape[1:]:
            images = area_average(images, *shape[1:])
        split = Split(images.contiguous(), torch.zeros(len(images), dtype=torch.int64))
        return Contents((path.stem,), {"train": split}, "own")

    return cached(f"{path.stem}-unlabelled", path, shape, read).parts["train"].without_labels()


def _all_pictures(folder: Path, shape: tuple[int, ...]) -> Tensor:
    files = tree(folder)
    names = [name for name in files.names if is_picture(name)]
    if not names:
        raise DataError(f"{folder} holds no pictures; known suffixes are {', '.join(SUFFIXES)}")
    return decode_all(names, files.read, files.where, (shape[2], shape[1]), folder.name)


def _training_images(path: Path) -> Tensor:
    arrays = _arrays(path)
    for name, _ in KEYS["train"]:
        if name in arrays:
            return _pixels(path, name, arrays[name])
    raise DataError(f"{path} has {_listing(arrays)}; it needs the array 'images'")
