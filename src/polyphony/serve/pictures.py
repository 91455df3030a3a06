"""Read pictures (files, PIL images, arrays) as the pixels that a student takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polyphony._util.text import first_line
from polyphony.data import DataError, pixels
from polyphony.data.archives import tree
from polyphony.data.files import as_data_error, read_bytes
from polyphony.data.images import SUFFIXES, decode, decode_all, fitted, is_picture
from polyphony.data.options import area_average, channels_first, with_channels
from polyphony.data.splits import Resize, describe

Array = np.ndarray[Any, np.dtype[Any]] | Tensor
Picture = str | Path | Image.Image | Array
Shape = tuple[int, int, int]  # channels, height, width


def batches_of(
    images: Picture | Sequence[Picture], shape: Shape, size: int, resize: Resize = "crop"
) -> Iterator[Tensor]:
    """The images as float32 in [0, 1], [b c h w], in batches of `size`.

    `images` may be one array of several images: uint8, or floats in [0, 1], as [n h w c], [n c h w], or grey
    [n h w]. Or one picture or a list of pictures: files, PIL images, arrays [h w c], [c h w] or [h w]. Files,
    PIL images and uint8 arrays of another size are cropped or squashed like the training images, and
    area-averaged to the shape. Grey images become colour images if the student needs them, and vice versa.
    Floats must have the student's size. Raises a DataError for anything else.
    """
    if isinstance(images, str | Path | Image.Image):
        images = [images]
    if not isinstance(images, np.ndarray | Tensor | Sequence) or isinstance(images, bytes):
        raise DataError(f"images must be files, PIL images or arrays, not a {type(images).__name__}")
    if isinstance(images, np.ndarray | Tensor) and not images.ndim:
        raise DataError("an array of images must be [n h w c], [n c h w] or [n h w], not one number")
    if isinstance(images, Tensor) and images.layout != torch.strided:
        raise DataError(f"images must be a plain array, not a tensor of layout {images.layout}")
    if not len(images):
        raise DataError("there are no images to predict; give one or more")
    if isinstance(images, np.ndarray | Tensor):
        _refuse_one_picture(tuple(images.shape), shape)
    for start in range(0, len(images), size):
        some = images[start : start + size]
        if isinstance(some, np.ndarray | Tensor):
            yield _as_float(_from_array(some, shape, resize))
        else:
            yield torch.cat([_as_float(_from_picture(each, shape, resize)) for each in some])


def _refuse_one_picture(sides: tuple[int, ...], shape: Shape) -> None:
    """Raise a DataError for an array that may be one picture; at a grey student's size it is several."""
    grey = shape[0] == 1 and sides[1:] == shape[1:]
    if len(sides) == 3 and not grey and (sides[0] == 3 or sides[2] in (1, 3, 4)):
        text = " ".join(map(str, sides))
        raise DataError(
            f"an array [{text}] may be one picture or {sides[0]} grey ones: put one picture in a list,"
            " and give grey ones as [n h w 1]"
        )


def read_pictures(paths: Sequence[str], shape: Shape, resize: Resize = "crop") -> Tensor:
    """Picture files as uint8 [n c h w]; raises a DataError that names the first unreadable file."""
    if resize == "squash":
        return torch.cat([_from_picture(path, shape, resize) for path in paths])
    size = shape[2], shape[1]
    images = decode_all(paths, lambda path: read_bytes(Path(path)), str, size, "pictures")
    return with_channels(images, shape[0])


def find_pictures(paths: Sequence[Path]) -> list[str]:
    """The files, and all picture files of the folders, at any depth; raises a DataError if there are none."""
    files = []
    for path in paths:
        if not path.is_dir():
            files.append(str(path))
            continue
        names = [name for name in tree(path).names if is_picture(name)]
        if not names:
            raise DataError(f"{path} holds no pictures; known suffixes are {', '.join(SUFFIXES)}")
        files += [str(path / name) for name in names]
    return files


def _from_picture(picture: Picture, shape: Shape, resize: Resize) -> Tensor:
    """One picture, uint8 or float [1 c h w]."""
    size = (shape[2], shape[1]) if resize == "crop" else None
    if isinstance(picture, str | Path):
        levels = decode(read_bytes(Path(picture)), str(picture), size)
    elif isinstance(picture, Image.Image):
        with as_data_error("a picture", "picture", "replace it"):
            levels = fitted(picture, "a picture", size)
    elif isinstance(picture, np.ndarray | Tensor):
        return _from_array(picture[None], shape, resize)
    else:
        raise DataError(f"an image must be a file, a PIL image or an array, not a {type(picture).__name__}")
    image = torch.from_numpy(levels.copy())[None]
    if image.shape[2:] != shape[1:]:
        image = area_average(image, *shape[1:])
    return with_channels(image, shape[0])


def _from_array(array: Array, shape: Shape, resize: Resize) -> Tensor:
    """uint8 or float [n …] → [n c h w]"""
    if isinstance(array, np.ndarray):  # PyTorch rejects negative strides and foreign byte orders
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    try:
        images = torch.as_tensor(array).cpu()
    except (TypeError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"this array cannot be read as images ({first_line(error)})") from error
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise DataError(f"images must be uint8, or floats in [0, 1], not {describe(images)}")
    ordered = channels_first(images)
    if ordered is None:
        raise DataError(
            f"images must be [n h w c], [n c h w] or [n h w], of 1 or 3 channels, not {describe(images)}"
        )
    if 0 in ordered.shape[1:]:
        raise DataError(f"images must have pixels; these are {describe(images)}")
    images = with_channels(ordered, shape[0])
    if images.shape[2:] == shape[1:]:
        return images
    if images.dtype != torch.uint8:
        sides = "×".join(map(str, shape[1:]))
        raise DataError(f"images of floats must be {sides} pixels, not {describe(images)}; resize them")
    if resize == "squash":
        return area_average(images, *shape[1:])
    levels = images[:, 0] if shape[0] == 1 else images.permute(0, 2, 3, 1)
    return torch.cat([_from_picture(Image.fromarray(each.numpy()), shape, resize) for each in levels])


def _as_float(images: Tensor) -> Tensor:
    if images.dtype == torch.uint8:
        return pixels(images)
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):  # also if one is NaN
        raise DataError(
            f"images of floats must be in [0, 1], not from {low:.4g} to {high:.4g}; divide them or give uint8"
        )
    return images.float()
