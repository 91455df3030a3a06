"""The 15 corruptions of CIFAR-C with its constants. The results are "regenerated", not the official files.

They follow Hendrycks and Dietterich, Benchmarking Neural Network Robustness, 2019: the same formulas and
constants, but other random numbers, and generated frost with the colour and contrast of the official
photographs. Lengths are in pixels of a 32×32 image, for images of any size.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy import ndimage

from polyphony._util.files import atomic_folder
from polyphony.data.cifar_c import MARK, SEVERITIES
from polyphony.data.files import DataError
from polyphony.data.splits import Split
from polyphony.data.textures import (
    Array,
    Draws,
    bilinear,
    blur,
    frost_sheets,
    mirrored,
    motion_blur,
    plasma,
    reflected,
    shifted,
    zoomed,
)

CHUNK = 500 * 3 * 32 * 32  # values at a time, to fit the CPU's cache; results do not depend on it


def corrupt(images: torch.Tensor, corruption: str, severity: int, seed: int = 0) -> torch.Tensor:
    """Corrupted images, severity 1 to 5. uint8 [n c h w] → uint8 [n c h w]

    The result for an image depends on its pixels, its index, the severity and the seed, not on other images.
    Raises a DataError for an unknown corruption or severity.
    """
    if corruption not in CORRUPTIONS or severity not in SEVERITIES:
        raise DataError(
            f"there is no corruption {corruption!r} of severity {severity}; "
            f"take one of {', '.join(CORRUPTIONS)}, severity 1 to 5"
        )
    apply, constants = CORRUPTIONS[corruption]
    out = torch.empty_like(images, memory_format=torch.contiguous_format)
    step = max(1, CHUNK // math.prod(images.shape[1:]))
    for start in range(0, len(images), step):
        chunk = images[start : start + step].permute(0, 2, 3, 1).numpy()
        draws = Draws(seed, corruption, severity, range(start, start + len(chunk)))
        result = apply(chunk.astype(np.float32) / 255, constants[severity - 1], draws)
        levels = (result.clip(0, 1) * 255 + 1e-3).astype(np.uint8)  # integers are exact in float32
        out[start : start + step] = torch.from_numpy(levels).permute(0, 3, 1, 2)
    return out


def gaussian_noise(x: Array, scale: float, draws: Draws) -> Array:
    """Gaussian noise with standard deviation `scale`."""
    return x + scale * draws.normal(*x.shape[1:])


def shot_noise(x: Array, photons: float, draws: Draws) -> Array:
    """Poisson noise; white has a mean of `photons` photons."""
    return np.asarray(draws.poisson(x * photons) / photons)


def impulse_noise(x: Array, amount: float, draws: Draws) -> Array:
    """A share `amount` of all values becomes 1 or 0, with equal probability (salt and pepper)."""
    chance = draws.uniform(0, 1, *x.shape[1:])
    return np.where(chance < amount / 2, 1, np.where(chance < amount, 0, x))


def defocus_blur(x: Array, constants: tuple[float, float], draws: Draws) -> Array:
    """Convolution with a disk that is blurred by a 3×3 Gaussian. Constants: radius, sigma of the Gaussian."""
    radius, softness = constants
    offsets = np.arange(-3, 4)
    disk = (offsets[:, None] ** 2 + offsets**2 <= radius**2).astype(float)
    taper = np.exp(-(np.arange(-1, 2) ** 2) / (2 * softness**2))
    taper /= taper.sum()
    kernel = ndimage.convolve(disk / disk.sum(), taper[:, None] * taper, mode="constant")
    return np.asarray(ndimage.correlate(x, kernel[None, :, :, None], mode="mirror"))


def glass_blur(x: Array, constants: tuple[float, int], draws: Draws) -> Array:
    """Blur, replace pixels by a neighbour above or to the left, blur again.

    The official loop should swap two pixels, but swaps array views, which copies one pixel over the other. It
    scans backwards, so that a pass equals the shift here, of all but the first two rows and columns.
    """
    sigma, passes = constants
    x = np.floor(blur(x, sigma) * 255 + 1e-3) / np.float32(255)
    for _ in range(passes):
        down, right = (-draws.below(2, *x.shape[1:3]) for _ in range(2))
        for offset in (down, right):
            offset[:, :2], offset[:, :, :2] = 0, 0
        x = shifted(x, down, right)
    return blur(x, sigma)


def motion(x: Array, constants: tuple[int, float], draws: Draws) -> Array:
    """Motion blur in a direction between -45° and 45°, rounded to 8 bits as the official tool does."""
    return np.asarray(np.rint(motion_blur(x, *constants, draws.uniform(-45, 45)) * 255) / 255)


def zoom_blur(x: Array, furthest: float, draws: Draws) -> Array:
    """The mean of the image and its enlargements by 1, 1.01, … up to `furthest`."""
    factors = np.arange(1, furthest, 0.01)
    total = sum((zoomed(x, float(factor)) for factor in factors), start=x)
    return np.asarray(total / np.float32(len(factors) + 1))


def snow(x: Array, constants: tuple[float, float, float, float, int, float, float], draws: Draws) -> Array:
    """Motion-blurred flakes, and the same flakes rotated by 180°, over a whitened image."""
    mean, scale, zoom, threshold, radius, sigma, keep = constants
    flakes = zoomed((mean + scale * draws.normal(*x.shape[1:3]))[..., None], zoom)
    flakes = np.where(flakes < threshold, 0, np.floor(flakes.clip(0, 1) * 255) / 255).astype(np.float32)
    flakes = np.rint(motion_blur(flakes, radius, sigma, draws.uniform(-135, -45)) * 255) / 255
    white = np.maximum(x, luminance(x) * 1.5 + 0.5)
    return np.asarray(keep * x + (1 - keep) * white + flakes + flakes[:, ::-1, ::-1])


def frost(x: Array, constants: tuple[float, float], draws: Draws) -> Array:
    """A random piece of a generated sheet of frost (see `frost_sheets`), added to a darkened image.

    For images larger than a sheet, the sheet is repeated.
    """
    keep, amount = constants
    sheets, (height, width) = frost_sheets(), x.shape[1:3]
    side = sheets.shape[1]
    pick = draws.below(len(sheets))
    top, left = (draws.below(max(1, side - max(height, width))) for _ in range(2))
    rows, columns = top[:, None, None] + np.arange(height)[:, None], left[:, None, None] + np.arange(width)
    pieces = sheets[pick[:, None, None], rows % side, columns % side] / 255
    return np.asarray(keep * x + amount * (pieces if x.shape[3] == 3 else luminance(pieces)))


def fog(x: Array, constants: tuple[float, float], draws: Draws) -> Array:
    """Clouds are added, and the result is scaled back to the image's maximum. Constants: density, decay."""
    density, decay = constants
    brightest = x.max((1, 2, 3), keepdims=True)
    clouds = plasma(draws, max(x.shape[1:3]), decay)[:, : x.shape[1], : x.shape[2], None]
    return np.asarray((x + density * clouds) * brightest / (brightest + density))


def brightness(x: Array, amount: float, draws: Draws) -> Array:
    """The value in HSV is raised by `amount`; hue and saturation stay, so one factor scales all channels."""
    value = x.max(3, keepdims=True)
    raised = np.minimum(value + amount, 1)
    return np.asarray(np.where(value > 0, x * raised / np.maximum(value, 1e-6), raised))


def contrast(x: Array, share: float, draws: Draws) -> Array:
    """The distance of every channel from its mean is multiplied by `share`."""
    means = x.mean((1, 2), keepdims=True)
    return np.asarray((x - means) * share + means)


def elastic_transform(x: Array, constants: tuple[float, float, float], draws: Draws) -> Array:
    """A random affine map, then a smooth random displacement. Constants are shares of the image's height."""
    height, width = x.shape[1:3]
    alpha, sigma, reach = (height * constant for constant in constants)
    y, x_axis = np.mgrid[:height, :width].astype(np.float32)
    columns, rows = _affine(draws.uniform(-reach, reach, 3, 2), height, width, x_axis, y)
    x = bilinear(x, rows, columns, mirrored)
    right, down = (blur(draws.uniform(-1, 1, height, width), sigma, "reflect", 3) * alpha for _ in range(2))
    return bilinear(x, y + down, x_axis + right, reflected)


def _affine(shifts: Array, height: int, width: int, x: Array, y: Array) -> tuple[Array, Array]:
    """The source (x, y) of each pixel if three points around the centre move by `shifts` [n 3 2] pixels."""
    centre, third = np.array([height // 2, width // 2]), min(height, width) // 3
    points = centre + third * np.array([[1, 1], [1, -1], [-1, -1]])
    homogeneous = np.concatenate([points + shifts, np.ones((len(shifts), 3, 1))], 2)
    inverse = np.linalg.solve(homogeneous, np.broadcast_to(points, shifts.shape).astype(float))  # [n 3 2]
    grid = np.stack([x, y, np.ones_like(x)], -1)
    sources = np.einsum("hwk,nkd->dnhw", grid, inverse)
    return sources[0], sources[1]


def pixelate(x: Array, share: float, draws: Draws) -> Array:
    """Every image is shrunk to a share of its sides and enlarged again, both by area averaging."""

    def coarse(picture: Image.Image) -> Image.Image:
        small = (max(1, int(picture.width * share)), max(1, int(picture.height * share)))
        return picture.resize(small, Image.Resampling.BOX).resize(picture.size, Image.Resampling.BOX)

    return _by_picture(x, coarse)


def jpeg_compression(x: Array, quality: int, draws: Draws) -> Array:
    """Every image is compressed as JPEG and read back."""

    def through_jpeg(picture: Image.Image) -> Image.Image:
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=quality)
        return Image.open(stream)

    return _by_picture(x, through_jpeg)


def _by_picture(x: Array, change: Callable[[Image.Image], Image.Image]) -> Array:
    """Apply a function to images one by one, since Pillow has no batches."""
    levels = np.rint(x * 255).astype(np.uint8)
    images = levels[..., 0] if x.shape[3] == 1 else levels
    return np.stack([np.asarray(change(Image.fromarray(image))) for image in images]).reshape(x.shape) / 255


def luminance(x: Array) -> Array:
    """RGB images as grey (ITU-R 601); grey images unchanged. [n h w c] → [n h w 1]"""
    if x.shape[3] == 1:
        return x
    return np.asarray(x @ np.array([0.299, 0.587, 0.114], np.float32))[..., None]


Apply = Callable[[Array, Any, Draws], Array]

CORRUPTIONS: dict[str, tuple[Apply, tuple[Any, ...]]] = {
    "gaussian_noise": (gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": (defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": (glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "motion_blur": (motion, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": (zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "snow": (
        snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": (frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": (fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": (brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": (
        elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": (pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": (jpeg_compression, (80, 65, 58, 50, 40)),
}


def regenerate(name: str, test: Split, folder: Path, seed: int = 0) -> Iterator[tuple[str, int]]:
    """Write all corruptions of a split to `folder`, completely or not at all.

    Yields (corruption, severity) after each block, for a progress bar. Raises a DataError if the folder
    exists.
    """
    if folder.exists():
        raise DataError(f"{folder} exists already; remove it to make the corrupted images again")
    with atomic_folder(folder) as temporary:
        for corruption in CORRUPTIONS:
            yield from _write(temporary / f"{corruption}.npy", corruption, test, seed)
        dtype = np.min_scalar_type(int(test.labels.max()))  # up to 256 classes uint8, as in the official file
        np.save(temporary / "labels.npy", np.tile(test.labels.numpy().astype(dtype), len(SEVERITIES)))
        facts = {
            "what": "corrupted images made by polyphony with CIFAR-C's constants; not the official files",
            "dataset": name,
            "fingerprint": test.fingerprint,
            "seed": seed,
        }
        (temporary / MARK).write_text(json.dumps(facts, indent=1) + "\n")


def _write(file: Path, corruption: str, test: Split, seed: int) -> Iterator[tuple[str, int]]:
    n, channels, height, width = test.images.shape
    shape = (len(SEVERITIES) * n, height, width, channels)
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    with file.open("wb") as out:  # not memory-mapped: on a full disk that would kill the process
        np.lib.format.write_array_header_1_0(out, header)
        for severity in SEVERITIES:
            block = corrupt(test.images, corruption, severity, seed=seed)
            out.write(block.permute(0, 2, 3, 1).numpy().tobytes())
            yield corruption, severity
