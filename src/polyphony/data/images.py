"""Decodes picture files into one array, with several threads."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.console import Console
from rich.progress import track

from polyphony._util.files import cores
from polyphony.data.files import DataError, most_unpacked
from polyphony.data.splits import image_buffer

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
LARGEST = 80_000_000  # pixels; Pillow too warns of a decompression bomb above about this size
CHUNK = 1 << 25  # bytes of decoded pictures that wait to be copied
ORIENTATION = 0x0112  # Exif tag

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Size = tuple[int, int]  # width and height, in Pillow's order


def is_picture(name: str) -> bool:
    """Whether a relative path has a picture's suffix and no hidden part."""
    return name.lower().endswith(SUFFIXES) and not any(part.startswith(".") for part in Path(name).parts)


def decode(content: bytes, where: str, size: Size | None) -> Pixels:
    """One picture as `fitted` returns it; DataError if it is invalid, damaged or too large."""
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
        if picture.width * picture.height > min(LARGEST, most_unpacked(len(content))):
            raise DataError(f"{where} has {picture.width}×{picture.height} pixels; remove or shrink it")
        return fitted(picture, where, size)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # a damaged picture can raise anything
        invalid = isinstance(error, UnidentifiedImageError)
        fault = "is not a valid picture" if invalid else f"is damaged ({error})"
        raise DataError(f"{where} {fault}; replace or remove it") from error


def fitted(picture: Image.Image, where: str, size: Size | None) -> Pixels:
    """RGB uint8 [3 h w], upright. With a size: cropped at the centre and resized by area averaging."""
    if picture.mode.startswith(("I", "F")):
        raise DataError(f"{where} has more than 8 bits per pixel ({picture.mode}); convert it to 8 bits")
    upright = ImageOps.exif_transpose(picture) if ORIENTATION in picture.getexif() else picture
    colour = upright.convert("RGB")
    if size is not None and colour.size != size:
        colour = ImageOps.fit(colour, size, Image.Resampling.BOX)
    return np.asarray(colour).transpose(2, 0, 1)


def decode_all(
    names: Sequence[str],
    read: Callable[[str], bytes],
    where: Callable[[str], str],
    size: Size | None,
    title: str,
) -> torch.Tensor:
    """All pictures in order, uint8 [n 3 h w]. DataError without a size if their sizes differ.

    Shows a progress bar if standard error is a terminal.
    """

    def picture(name: str) -> Pixels:
        return decode(read(name), where(name), size)

    shape = (3, size[1], size[0]) if size else picture(names[0]).shape
    out = image_buffer(len(names), *shape)
    array, hide_bar = out.numpy(), not sys.stderr.isatty()
    pictures = _in_order(picture, names, CHUNK // math.prod(shape))
    bar = track(pictures, title, len(names), console=Console(stderr=True), transient=True, disable=hide_bar)
    for i, pixels in enumerate(bar):
        if pixels.shape != shape:
            raise DataError(
                f"{where(names[i])} is {_size(pixels.shape)}, but {where(names[0])} is {_size(shape)}; "
                "set a resolution to resize all pictures"
            )
        array[i] = pixels
    return out


def _in_order(picture: Callable[[str], Pixels], names: Sequence[str], count: int) -> Iterator[Pixels]:
    """Yield the pictures in order, decoded by threads; about `count` are in memory at a time."""
    step = max(count, cores())
    with ThreadPoolExecutor(cores()) as pool:
        for start in range(0, len(names), step):
            yield from pool.map(picture, names[start : start + step])


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[2]}×{shape[1]}"
