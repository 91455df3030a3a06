"""Corrupted test images made here, written in CIFAR-C's own layout so that any tool can read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from polyphony._util.files import whole_folder
from polyphony.data.cifar_c import MARK, SEVERITIES
from polyphony.data.corruptions import CORRUPTIONS, corrupt
from polyphony.data.errors import DataError
from polyphony.data.splits import Split


def regenerate(name: str, test: Split, folder: Path, seed: int = 0) -> Iterator[tuple[str, int]]:
    """Writes all corruptions of the split to `folder`, which appears when all are done.

    Yields (corruption, severity) after each, so that a caller can show progress.
    """
    if folder.exists():
        raise DataError(f"{folder} is there already; remove it to make the corrupted images again")
    with whole_folder(folder) as beside:
        for corruption in CORRUPTIONS:
            yield from _write(beside / f"{corruption}.npy", corruption, test, seed)
        kind = np.min_scalar_type(int(test.labels.max()))  # uint8, as the official file, up to 256 classes
        np.save(beside / "labels.npy", np.tile(test.labels.numpy().astype(kind), len(SEVERITIES)))
        facts = {
            "what": "corrupted images made by polyphony with CIFAR-C's constants; not the official files",
            "dataset": name,
            "fingerprint": test.fingerprint,
            "seed": seed,
        }
        (beside / MARK).write_text(json.dumps(facts, indent=1) + "\n")


def _write(file: Path, corruption: str, test: Split, seed: int) -> Iterator[tuple[str, int]]:
    n, channels, height, width = test.images.shape
    shape = (len(SEVERITIES) * n, height, width, channels)
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    with file.open("wb") as out:  # not mapped: on a full disk that would end the process
        np.lib.format.write_array_header_1_0(out, header)
        for severity in SEVERITIES:
            block = corrupt(test.images, corruption, severity, seed=seed)
            out.write(block.permute(0, 2, 3, 1).numpy().tobytes())
            yield corruption, severity
