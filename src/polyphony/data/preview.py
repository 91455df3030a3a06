"""A contact sheet of a data set: one row with a label for each class or corruption."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from polyphony.data.cifar_c import SEVERITIES
from polyphony.data.options import first_of_each_class
from polyphony.data.splits import Split

Strip = tuple[str, torch.Tensor]  # (label, images [k c h w])

TILE, LABEL, GAP = 56, 150, 3  # pixels
ROWS = 400  # largest number of rows on a page


def class_rows(split: Split, classes: Sequence[str], columns: int = 8) -> list[Strip]:
    """The first images of each of the first 400 classes, labelled with its name and number of images."""
    counts = torch.bincount(split.labels, minlength=len(classes)).tolist()
    first = first_of_each_class(split, columns)
    return [
        (f"{name} ({count:,})", first.images[first.labels == label])
        for label, (name, count) in enumerate(zip(classes[:ROWS], counts[:ROWS], strict=True))
    ]


def corruption_rows(parts: Mapping[str, Split], images: Sequence[int] = (0, 1)) -> list[Strip]:
    """The same few images under every corruption, severity 1 to 5."""
    rows = []
    for name, split in parts.items():
        n = len(split) // len(SEVERITIES)
        indices = [level * n + image for image in images if image < n for level in range(len(SEVERITIES))]
        rows.append((name, split.images[indices]))
    return rows


def sheet(rows: Sequence[Strip]) -> Image.Image:
    """All rows on one white page, in one or more blocks; small images are enlarged without smoothing."""
    widest = max(len(images) for _, images in rows)
    block_width, row_height = LABEL + widest * (TILE + GAP) + GAP, TILE + GAP
    blocks = max(1, round(math.sqrt(len(rows) * row_height / block_width)))  # side by side: about a square
    per_block = -(-len(rows) // blocks)
    page = Image.new("RGB", (blocks * block_width, per_block * row_height + GAP), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(12)
    for number, (label, images) in enumerate(rows):
        left, top = number // per_block * block_width, number % per_block * row_height + GAP
        draw.text((left + GAP, top + TILE // 2 - 8), _fitted(label, draw, font), fill="black", font=font)
        for column, image in enumerate(images):
            page.paste(_tile(image), (left + LABEL + column * (TILE + GAP), top))
    return page


def _tile(image: torch.Tensor) -> Image.Image:
    levels = image.permute(1, 2, 0).numpy().astype(np.uint8)
    picture = Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels).convert("RGB")
    shrink = max(picture.size) > TILE
    return picture.resize((TILE, TILE), Image.Resampling.BOX if shrink else Image.Resampling.NEAREST)


def _fitted(label: str, draw: ImageDraw.ImageDraw, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> str:
    while draw.textlength(label, font=font) > LABEL - 2 * GAP:
        label = label[:-2] + "…"
    return label
