"""Images without labels, which teachers answer beside the training images."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from polyphony.data.archives import tree
from polyphony.data.cache import cached
from polyphony.data.dataset import Contents
from polyphony.data.errors import DataError
from polyphony.data.files import readable, there
from polyphony.data.images import SUFFIXES, decode_all, is_picture
from polyphony.data.options import Options, area_average, brought, left_out, with_channels
from polyphony.data.own import images_of_npz
from polyphony.data.splits import UNLABELLED, Split


def read_unlabelled(path: Path, shape: tuple[int, ...]) -> Split:
    """All pictures of a folder, at any depth, or `images` of an .npz, brought to a shape [c h w]; labels −1.

    Pictures are cropped to the shape's sides; arrays are averaged to them. Labels are ignored. DataError
    where there are no pictures.
    """
    if not there(path) or not (path.is_dir() or path.suffix == ".npz"):
        raise DataError(f"data.unlabelled is {path}, which is no folder and no .npz file; correct the path")
    path = path.resolve()

    def read() -> Contents:
        with readable(path):
            images = _pictures(path, shape) if path.is_dir() else images_of_npz(path)
        images = with_channels(images, shape[0])
        if images.shape[2:] != shape[1:]:
            images = area_average(images, *shape[1:])
        return Contents((path.stem,), {"train": Split(images.contiguous(), _labels(images, 0))}, "own")

    images = cached(f"{path.stem}-unlabelled", path, shape, read).parts["train"].images
    return Split(images, _labels(images, UNLABELLED))


def left_without_labels(train: Split, options: Options) -> Split | None:
    """The first so many training images that the options leave out, labels −1; none where none are wanted."""
    if not isinstance(options.unlabelled, int):
        return None
    rows = left_out(train, options)
    if len(rows) < options.unlabelled:
        raise DataError(
            f"{options.unlabelled:,} unlabelled images were asked for, but per_class and limit leave out"
            f" {len(rows):,} training images"
        )
    images = brought(train[rows[: options.unlabelled]], options).images
    return Split(images, _labels(images, UNLABELLED))


def _pictures(folder: Path, shape: tuple[int, ...]) -> Tensor:
    files = tree(folder)
    names = [name for name in files.names if is_picture(name)]
    if not names:
        raise DataError(f"{folder} holds no pictures; known are {', '.join(SUFFIXES)}")
    return decode_all(names, files.read, files.where, (shape[2], shape[1]), folder.name)


def _labels(images: Tensor, label: int) -> Tensor:
    return torch.full((len(images),), label)
