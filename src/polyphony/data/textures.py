"""Building blocks of corruptions: random draws for each image, random fields, resampling.

Arrays are float32 [n h w c] or, for fields, [n h w]. Arithmetic is on whole batches. Random numbers are drawn
image by image, because every image has its own stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
from scipy import ndimage

Array = np.ndarray[Any, np.dtype[Any]]


class Draws:
    """A random stream for every image. It depends only on (seed, corruption, severity, image index).

    So an image is corrupted in the same way in any batch or subset.
    """

    def __init__(self, seed: int, corruption: str, severity: int, indexes: Sequence[int]) -> None:
        key = crc32(f"{seed} {corruption} {severity}".encode())
        self.streams = [np.random.Generator(np.random.Philox(key=[key, index])) for index in indexes]

    def normal(self, *shape: int) -> Array:
        """Standard normal, [n *shape]."""
        return np.stack([stream.standard_normal(shape, np.float32) for stream in self.streams])

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        """Uniform in [low, high), [n *shape]."""
        unit = np.stack([stream.random(shape, np.float32) for stream in self.streams])
        return low + (high - low) * unit

    def below(self, bound: int, *shape: int) -> Array:
        """Integers in [0, bound), [n *shape]."""
        return np.stack([stream.integers(bound, size=shape) for stream in self.streams])

    def poisson(self, rates: Array) -> Array:
        """Poisson counts with these rates, [n …]."""
        return np.stack([stream.poisson(rate) for stream, rate in zip(self.streams, rates, strict=True)])


def blur(x: Array, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> Array:
    """Gaussian blur over height and width; with sigma 0 the input is unchanged. [n h w …] → [n h w …]"""
    if sigma == 0:
        return x
    return np.asarray(ndimage.gaussian_filter(x, sigma, mode=mode, truncate=truncate, axes=(1, 2)))


def shifted(x: Array, down: Array, right: Array) -> Array:
    """out[i, y, x] = in[i, y + down, x + right]; edge pixels are repeated. Offsets are [n] or [n h w]."""
    n, height, width = x.shape[:3]
    rows = np.arange(height)[:, None] + down.reshape(n, *down.shape[1:] or (1, 1))
    columns = np.arange(width) + right.reshape(n, *right.shape[1:] or (1, 1))
    image = np.arange(n)[:, None, None]
    return np.asarray(x[image, rows.clip(0, height - 1), columns.clip(0, width - 1)])


def motion_blur(x: Array, radius: int, sigma: float, degrees: Array) -> Array:
    """One-sided Gaussian blur over 2 radius + 1 pixels, at an angle for each image. [n h w …], [n] → same"""
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    angle = np.radians(degrees)
    out = np.zeros_like(x)
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        down, right = (np.ceil(step * part(angle) - 0.5).astype(int) for part in (np.sin, np.cos))
        out += np.float32(weight) * shifted(x, down, right)
    return out


@lru_cache(maxsize=128)
def zoom_matrix(length: int, factor: float) -> Array:
    """The matrix of a linear zoom by `factor` into the middle of an axis. → [length length]"""
    visible = int(np.ceil(length / factor))  # pixels that the zoom enlarges
    start = (length - visible) // 2
    zoomed = ndimage.zoom(np.eye(visible), (factor, 1), order=1)
    trim = (len(zoomed) - length) // 2
    matrix = np.zeros((length, length), np.float32)
    matrix[:, start : start + visible] = zoomed[trim : trim + length]
    return matrix


def zoomed(x: Array, factor: float) -> Array:
    """The middle of every image, enlarged by `factor`. [n h w c] → [n h w c]"""
    rows, columns = zoom_matrix(x.shape[1], factor), zoom_matrix(x.shape[2], factor)
    zoomed_rows = np.tensordot(x, rows, (1, 1))  # [n w c h]
    return np.tensordot(zoomed_rows, columns, (1, 1)).transpose(0, 2, 3, 1)  # [n c h w] → [n h w c]


def plasma(draws: Draws, side: int, decay: float) -> Array:
    """Diamond-square clouds in [0, 1], one for each image. → [n side side]

    Every cell is set once: the mean of four neighbours (the map wraps) plus a weighted random number. The
    weight is divided by the square of `decay` each time the step is halved.
    """
    size = 1 << (side - 1).bit_length()
    noise = draws.uniform(-1, 1, size, size).astype(np.float64)
    clouds, step, amplitude = np.zeros_like(noise), size, 100.0
    while step >= 2:
        half = step // 2

        def fill(rows: slice, columns: slice, total: Array, weight: float = amplitude**2) -> None:
            clouds[:, rows, columns] = total / 4 + weight * noise[:, rows, columns]

        corners, middles = slice(0, size, step), slice(half, size, step)
        corner = clouds[:, corners, corners]
        pairs = corner + np.roll(corner, -1, 1)
        fill(middles, middles, pairs + np.roll(pairs, -1, 2))
        centre = clouds[:, middles, middles]
        fill(corners, middles, centre + np.roll(centre, 1, 1) + corner + np.roll(corner, -1, 2))
        fill(middles, corners, centre + np.roll(centre, 1, 2) + corner + np.roll(corner, -1, 1))
        step, amplitude = half, amplitude / decay
    clouds -= clouds.min((1, 2), keepdims=True)
    clouds /= np.maximum(clouds.max((1, 2), keepdims=True), 1e-9)  # all 0 on a single pixel
    return clouds[:, :side, :side].astype(np.float32)


# The five photographs of the official generator, at the size that it uses: mean red, green and blue, and the
# standard deviation of grey. The second and the third photograph are the same.
PHOTOGRAPHS = (
    (78, 149, 166, 18),
    (201, 205, 214, 22),
    (201, 205, 214, 22),
    (138, 153, 166, 29),
    (112, 123, 135, 43),
)


@lru_cache(maxsize=1)
def frost_sheets(size: int = 256) -> Array:
    """Five sheets of frost on glass in [0, 255], with the photographs' colour and contrast. → [5 size size 3]

    They replace the photographs, which may not be distributed. A sheet has ridges of smooth noise at six
    scales, all stretched in the sheet's own direction, and grain.
    """
    rng = np.random.Generator(np.random.Philox(key=[crc32(b"frost"), 0]))
    sheets = []
    for sheet, (*colour, contrast) in enumerate(PHOTOGRAPHS):
        field = np.zeros((size, size))
        for octave in range(6):
            smooth = ndimage.gaussian_filter(
                rng.standard_normal((size, size)), (1.2 * 2**octave, 0.5 * 2**octave), mode="wrap"
            )
            field += 1.2**octave * (1 - np.minimum(np.abs(smooth / smooth.std()), 1)) ** 2
        turned = ndimage.rotate(field, 36 * sheet, reshape=False, mode="wrap", order=1)
        grainy = turned / turned.std() + 0.7 * rng.standard_normal((size, size))
        level = (grainy - grainy.mean()) / grainy.std()
        sheets.append((colour + contrast * level[..., None]).clip(0, 255))
    return np.stack(sheets).astype(np.float32)


def bilinear(x: Array, rows: Array, columns: Array, border: Callable[[Array, int], Array]) -> Array:
    """Images interpolated at real positions; `border` maps them inside. [n h w c], [n h w] → [n h w c]"""
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    image = np.arange(len(x))[:, None, None]

    def at(dy: int, dx: int) -> Array:
        return np.asarray(x[image, border(top + dy, x.shape[1]), border(left + dx, x.shape[2])])

    upper = at(0, 0) * (1 - right) + at(0, 1) * right
    lower = at(1, 0) * (1 - right) + at(1, 1) * right
    return np.asarray(upper * (1 - down) + lower * down, np.float32)


def mirrored(position: Array, length: int) -> Array:
    """Positions reflected at the edges: … 2 1 0 1 2 …; the edge pixel is not repeated."""
    period = max(1, 2 * length - 2)
    folded = np.abs(position) % period
    return np.asarray(np.minimum(folded, period - folded))


def reflected(position: Array, length: int) -> Array:
    """Positions reflected at the edges: … 1 0 0 1 …; the edge pixel is repeated."""
    folded = position % (2 * length)
    return np.asarray(np.minimum(folded, 2 * length - 1 - folded))
