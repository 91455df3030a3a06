"""Decodes picture files in parallel into one array."""

from __future__ import annotations

import io
import math
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import current_process, get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.console import Console
from rich.progress import track

from polyphony._util.files import cores, end_with_parent
from polyphony.data.files import DataError, most_unpacked
from polyphony.data.splits import room

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
LARGEST = 80_000_000  # pixels; Pillow too treats more as a decompression bomb
CHUNK = 128  # pictures a task: sending them one by one costs more than decoding them
CHUNK_BYTES = 2 << 20  # bytes of pixels a task
MANY = 4096  # from so many pictures on, processes are faster than threads
ORIENTATION = 0x0112  # the Exif tag

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Size = tuple[int, int]  # width and height, as Pillow has them
Chunk = list[tuple[bytes, str]]  # (content, what to call it in a message)


def is_picture(name: str) -> bool:
    """Whether a file below a folder is a picture by its name, and not hidden."""
    return name.lower().endswith(SUFFIXES) and not any(part.startswith(".") for part in Path(name).parts)


def decode(content: bytes, where: str, size: Size | None) -> Pixels:
    """One picture as `fitted` returns it; DataError if it is no picture, damaged or too large."""
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
        if picture.width * picture.height > min(LARGEST, most_unpacked(len(content))):
            raise DataError(f"{where} has {picture.width}×{picture.height} pixels; remove or shrink it")
        return fitted(picture, where, size)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # a damaged picture can raise anything
        fault = "is no picture" if isinstance(error, UnidentifiedImageError) else f"is damaged ({error})"
        raise DataError(f"{where} {fault}; replace or remove it") from error


def fitted(picture: Image.Image, where: str, size: Size | None) -> Pixels:
    """RGB uint8 [3 h w], upright. With a size: cropped at the centre and averaged over areas to that size."""
    if picture.mode.startswith(("I", "F")):
        raise DataError(f"{where} has more than 8 bits a pixel ({picture.mode}); convert it to 8 bits")
    upright = ImageOps.exif_transpose(picture) if ORIENTATION in picture.getexif() else picture
    colour = upright.convert("RGB")
    if size is not None and colour.size != size:
        colour = ImageOps.fit(colour, size, Image.Resampling.BOX)
    return np.asarray(colour).transpose(2, 0, 1)


def decode_chunk(chunk: Chunk, size: Size | None) -> list[Pixels]:
    """`decode` for every picture of the chunk."""
    return [decode(content, where, size) for content, where in chunk]


def decode_all(
    names: Sequence[str],
    read: Callable[[str], bytes],
    where: Callable[[str], str],
    size: Size | None,
    title: str,
) -> torch.Tensor:
    """All pictures in order, uint8 [n 3 h w]. Without a size, all must have the size of the first.

    A terminal on standard error shows a progress bar.
    """
    shape = (3, size[1], size[0]) if size else decode(read(names[0]), where(names[0]), None).shape
    out = room(len(names), *shape)
    levels = out.numpy()
    each = max(1, min(CHUNK, CHUNK_BYTES // math.prod(shape)))
    chunks = (names[start : start + each] for start in range(0, len(names), each))
    loaded = ([(read(name), where(name)) for name in chunk] for chunk in chunks)
    with _workers(len(names)) as pool:
        pictures = (picture for decoded in _in_order(pool, loaded, size) for picture in decoded)
        for i, picture in enumerate(track(pictures, title, len(names), **_bar())):
            if picture.shape != shape:
                raise DataError(
                    f"{where(names[i])} is {_size(picture.shape)} where {where(names[0])} is {_size(shape)}; "
                    "set a resolution to bring all to one size"
                )
            levels[i] = picture
    return out


def _in_order(pool: Executor, chunks: Iterator[Chunk], size: Size | None) -> Iterator[list[Pixels]]:
    """Decoded chunks in order; only a few are in memory at a time."""
    waiting: deque[Future[list[Pixels]]] = deque()
    for chunk in chunks:
        waiting.append(pool.submit(decode_chunk, chunk, size))
        if len(waiting) > 2 * cores():
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _workers(count: int) -> Executor:
    """Processes for many pictures, else threads (threads wait for each other on small pictures).

    The processes are forked, so that the user's script needs no main guard; they only use Pillow. A worker
    process cannot start processes.
    """
    if count < MANY or not sys.platform.startswith("linux") or current_process().daemon:
        return ThreadPoolExecutor(min(8, cores()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside torch's idle threads
        pool = ProcessPoolExecutor(cores(), get_context("fork"), initializer=end_with_parent)
        pool.submit(decode_chunk, [], None).result()  # forks all workers now
    return pool


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[2]}×{shape[1]}"


def _bar() -> dict[str, Any]:
    return {"console": Console(stderr=True), "transient": True, "disable": not sys.stderr.isatty()}
