"""Picture files decoded in parallel, straight into one array."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.console import Console
from rich.progress import track

from polyphony.data.errors import DataError

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
LARGEST = 80_000_000  # pixels; more is taken for a decompression bomb, as Pillow does

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def decode(content: bytes, where: str, side: int | None) -> Pixels:
    """One picture as RGB uint8 [3 h w], cropped to a square and area-averaged to `side` if one is given."""
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
        if picture.width * picture.height > LARGEST:
            raise DataError(f"{where} has {picture.width}×{picture.height} pixels; remove or shrink it")
        if picture.mode.startswith(("I", "F")):
            raise DataError(f"{where} has more than 8 bits a pixel ({picture.mode}); convert it to 8 bits")
        colour = ImageOps.exif_transpose(picture).convert("RGB")
    except DataError:
        raise
    except Exception as error:  # a damaged picture can raise anything
        fault = "is no picture" if isinstance(error, UnidentifiedImageError) else f"is damaged ({error})"
        raise DataError(f"{where} {fault}; replace or remove it") from error
    if side is not None and colour.size != (side, side):
        colour = ImageOps.fit(colour, (side, side), Image.Resampling.BOX)
    return np.asarray(colour).transpose(2, 0, 1)


def decode_all(
    names: Sequence[str],
    read: Callable[[str], bytes],
    where: Callable[[str], str],
    side: int | None,
    title: str,
) -> torch.Tensor:
    """All pictures, in order, uint8 [n 3 h w]; without a side, all must have the size of the first.

    Several threads decode; a terminal on standard error shows a progress bar.
    """
    first = decode(read(names[0]), where(names[0]), side)
    out = np.empty((len(names), *first.shape), np.uint8)

    def fill(i: int) -> None:
        picture = decode(read(names[i]), where(names[i]), side)
        if picture.shape != first.shape:
            raise DataError(
                f"{where(names[i])} is {_size(picture)} where {where(names[0])} is {_size(first)}; "
                "set a resolution to bring all to one size"
            )
        out[i] = picture

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        try:
            for _ in track(pool.map(fill, range(len(names))), title, len(names), **_bar()):
                pass
        except DataError:
            pool.shutdown(cancel_futures=True)
            raise
    return torch.from_numpy(out)


def _size(picture: Pixels) -> str:
    return f"{picture.shape[2]}×{picture.shape[1]}"


def _bar() -> dict[str, Any]:
    return {"console": Console(stderr=True), "transient": True, "disable": not sys.stderr.isatty()}
