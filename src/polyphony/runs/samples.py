"""A few images of each split, saved with a run, so that students can be exported without the data set."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch

from polyphony._util.text import first_line
from polyphony.data.splits import Split, Splits
from polyphony.runs.predictions import saved_key
from polyphony.runs.store import damaged_file, read_tensors, write_atomically

FILE = "samples.safetensors"
COUNTS = {"train": 512, "valid": 2000, "test": 2000}  # the largest number of images of a split
MAX_BYTES = 8 << 20  # of the images of a split


@dataclass(frozen=True, eq=False)
class Samples:
    """Training images to calibrate int8 on, validation images for temperatures, test images to compare on."""

    train: Split
    valid: Split
    test: Split

    @classmethod
    def of(cls, splits: Splits) -> Samples:
        """Evenly spaced images of each split."""
        bytes_per_image = math.prod(splits.train.images.shape[1:])
        counts = {name: max(1, min(count, MAX_BYTES // bytes_per_image)) for name, count in COUNTS.items()}
        return cls(**{name: getattr(splits, name).some(count) for name, count in counts.items()})


def keep_samples(folder: Path, splits: Splits, fingerprints: Mapping[str, str]) -> None:
    """Write the samples of a run, unless it already has samples of the same data."""
    path, key = folder / FILE, json.dumps(dict(sorted(fingerprints.items())))
    if saved_key(path) == key:
        return
    samples = Samples.of(splits)
    tensors = {
        f"{name}.{part}": getattr(getattr(samples, name), part).contiguous()
        for name in COUNTS
        for part in ("images", "labels")
    }
    write_atomically(path, safetensors.torch.save(tensors, metadata={"key": key}))


def read_samples(folder: Path) -> Samples | None:
    """The samples of a run; None for runs of early versions."""
    path = folder / FILE
    if not path.is_file():
        return None
    tensors = read_tensors(path)
    try:
        return Samples(
            **{name: Split(tensors[f"{name}.images"], tensors[f"{name}.labels"]) for name in COUNTS}
        )
    except (KeyError, ValueError) as error:
        raise damaged_file(path, first_line(error)) from error
