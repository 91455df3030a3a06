"""What augmented batches cost, beside the usual per-image pipeline and beside a training step.

Run from the project's root: `python benchmarks/augmentation.py`. The two pipelines and the step take turns
in one run, so that a busy machine slows them alike. Prints times and ratios, and writes them to
`benchmarks/results/augmentation.csv`. `share` is the time of a batch over that of a ResNet-32 training step.
"""

from __future__ import annotations

import csv
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

from polyphony.data import Augmentation, Split, batches
from polyphony.nn import resnet

RESULTS = Path(__file__).parent / "results" / "augmentation.csv"
SIZE, ROUNDS = 128, 15
Row = dict[str, str | int | float]


def random_split(side: int, n: int = 2560) -> Split:
    """Images of noise: neither pipeline looks at what is in them."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 3, side, side), generator=rng, dtype=torch.uint8)
    return Split(images, torch.randint(10, (n,), generator=rng))


def per_image(split: Split, pad: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """One batch the usual way: each image through Pillow, padded, cropped, flipped, then all collated."""
    rows, side = rng.permutation(len(split))[:SIZE], split.images.shape[-1]
    tensors = []
    for row in rows:
        print(f"{row['side']}×{row['side']}, pad {row['pad']}, batch of {SIZE}, {row['threads']} threads")
        for name, ms, share in (
            ("ours", "ours_ms", "share"),
            ("per image", "per_image_ms", "per_image_share"),
        ):
            print(f"  {name:<10}{row[ms]:>9} ms  {100 * float(row[share]):6.2f} % of a step")
        print(f"  step      {row['step_ms']:>9} ms; ours is {row['times_faster']} times as fast as per image")
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    main()
