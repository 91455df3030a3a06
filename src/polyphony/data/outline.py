"""A data set's numbers without its images: what a study of it costs can be said before it is here."""

from __future__ import annotations

import torch

from polyphony.data.dataset import Contents
from polyphony.data.errors import DataError
from polyphony.data.load import EVERYTHING, arrange, identify, learnable
from polyphony.data.options import Options
from polyphony.data.splits import Split, Splits

CLASSES, SUPERCLASSES = 100, 20  # of CIFAR-100


def outline(source: str, options: Options = EVERYTHING) -> Splits:
    """The splits `load` would give of the official data, with blank images.

    They take no memory where validation images are the last rows, as CIFAR's are. Rows that are drawn at
    random or by `per_class`, and images brought to another resolution, take as much as real ones.
    """
    dataset = identify(source)
    if dataset.shape is None:
        raise DataError(f"how large {dataset.name} is cannot be said without it")
    if options.coarse and dataset.labels != CLASSES:
        raise DataError(f"{dataset.name} has no coarse labels; only CIFAR-100 does, so leave coarse out")
    classes = SUPERCLASSES if options.coarse else dataset.labels
    blank = torch.zeros(1, *dataset.shape, dtype=torch.uint8)
    parts = {
        part: Split(blank.expand(count, *dataset.shape), torch.arange(count) % classes)
        for part, count in dataset.counts.items()
    }
    names = tuple(str(label) for label in range(classes))
    return learnable(arrange(dataset, Contents(names, parts, origin="outline"), options))
