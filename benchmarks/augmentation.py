"""The cost of augmented batches, against the usual per-image pipeline and against a training step.

Run from the project's root: `python benchmarks/augmentation.py`. The two pipelines and the step take turns
in one run, so that a busy machine slows them equally. Prints times and ratios, and writes them to
`benchmarks/results/augmentation.csv`. `share` is the time of a batch over that of a ResNet-32 training step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

from polyphony._util.files import processor
from polyphony.data import Augmentation, Split, batches
from polyphony.nn import resnet
from polyphony.runs.rows import csv_text

RESULTS = Path(__file__).parent / "results" / "augmentation.csv"
SIZE, ROUNDS = 128, 15
Row = dict[str, str | int | float]


def random_split(side: int, n: int = 2560) -> Split:
    """Images of noise: the cost does not depend on their content."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 3, side, side), generator=rng, dtype=torch.uint8)
    return Split(images, torch.randint(10, (n,), generator=rng))


def per_image(split: Split, pad: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """One batch the usual way: Pillow pads, crops and flips each image, then all are collated."""
    rows, side = rng.permutation(len(split))[:SIZE], split.images.shape[-1]
    tensors = []
    for row in rows:
        picture = Image.fromarray(split.images[row].permute(1, 2, 0).numpy())
        x, y = rng.integers(0, 2 * pad + 1, 2)
        picture = ImageOps.expand(picture, pad).crop((x, y, x + side, y + side))
        if rng.integers(2):
            picture = ImageOps.mirror(picture)
        tensors.append(torch.from_numpy(np.asarray(picture).transpose(2, 0, 1) / np.float32(255)))
    return torch.stack(tensors), split.labels[rows]


def epoch(split: Split, pad: int, rng: torch.Generator) -> int:
    """Our epoch; returns the number of batches."""
    return sum(len(y) == SIZE for _, y in batches(split, SIZE, Augmentation(pad), rng))


def step(network: torch.nn.Module, x: Tensor, y: Tensor) -> None:
    """Forward and backward pass of a training step; without the optimiser, which only raises our share."""
    network.zero_grad()
    F.cross_entropy(network(x), y).backward()


def seconds(work: Callable[[], object]) -> float:
    """The time of one run."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(side: int, pad: int) -> Row:
    """The shortest time for a batch of each of the three, measured in turn: the cost on an idle machine."""
    split, ours, theirs = random_split(side), torch.Generator().manual_seed(0), np.random.default_rng(0)
    network = resnet(32, 10).to(memory_format=torch.channels_last)
    x, y = next(batches(split, SIZE, Augmentation(pad), ours))
    times: dict[str, list[float]] = {"ours": [], "per_image": [], "step": []}
    for _ in range(ROUNDS):
        times["ours"].append(seconds(lambda: epoch(split, pad, ours)) / (len(split) // SIZE))
        times["per_image"].append(seconds(lambda: per_image(split, pad, theirs)))
        times["step"].append(seconds(lambda: step(network, x, y)))
    batch, usual, training = (min(times[name]) for name in ("ours", "per_image", "step"))
    return {
        "side": side,
        "pad": pad,
        "batch": SIZE,
        "threads": torch.get_num_threads(),
        "ours_ms": round(1000 * batch, 3),
        "per_image_ms": round(1000 * usual, 3),
        "step_ms": round(1000 * training, 1),
        "times_faster": round(usual / batch, 1),
        "share": round(batch / training, 4),
        "per_image_share": round(usual / training, 4),
        "torch": torch.__version__,
        "machine": processor(),
    }


def report(row: Row) -> None:
    """Print the results for one image size."""
    print(f"{row['side']}×{row['side']}, pad {row['pad']}, batch of {SIZE}, {row['threads']} threads")
    for name, ms, share in (("ours", "ours_ms", "share"), ("per image", "per_image_ms", "per_image_share")):
        print(f"  {name:<10}{row[ms]:>9} ms  {100 * float(row[share]):6.2f} % of a step")
    print(f"  step      {row['step_ms']:>9} ms; ours is {row['times_faster']} times as fast as per image")


def main() -> None:
    """Measure the image sizes of CIFAR and TinyImageNet."""
    rows = [measure(32, 4), measure(64, 8)]
    for row in rows:
        report(row)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(csv_text(list(rows[0]), (row.values() for row in rows)))


if __name__ == "__main__":
    main()
