"""From a name or a path to the splits of a study."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import torch

from polyphony.data.catalogue import DATASETS
from polyphony.data.dataset import Contents, Dataset, Place
from polyphony.data.errors import DataError
from polyphony.data.files import data_root
from polyphony.data.options import Holdout, Options, resized, share, stratified, trim
from polyphony.data.splits import Split, Splits

EVERYTHING = Options()


def load(source: str, options: Options = EVERYTHING, root: Path | None = None) -> Splits:
    """The train, validation and test splits of a data set.

    `source` is a known name ("cifar10", "digits", …; see `DATASETS`) looked for below `data_root(root)`.
    Raises DataError, one sentence, where the data is missing, damaged or smaller than what is asked for.
    """
    dataset = known(source)
    place, path = found(dataset, data_root(root))
    return arrange(source, place.read(path, options), dataset.holdout, options)


def known(name: str) -> Dataset:
    """The data set of that name, or a sentence with the nearest one."""
    if name not in DATASETS:
        near = get_close_matches(name, DATASETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(DATASETS))}"
        raise DataError(f"there is no data set named {name!r} and no such folder or .npz file; {hint}")
    return DATASETS[name]


def found(dataset: Dataset, root: Path) -> tuple[Place, Path]:
    """The first of the data set's places that exists below the root, and its path."""
    for place in dataset.places:
        if not place.path or (root / place.path).exists():
            return place, root / place.path
    raise DataError(
        f"{dataset.name} is not in {root}: put {dataset.places[0].path} there "
        f"or run 'polyphony data get {dataset.name}'"
    )


def arrange(name: str, contents: Contents, holdout: Holdout, options: Options) -> Splits:
    """Sets test (unless the data has its own) and validation images aside, then trims and resizes."""
    train, test = contents.train, contents.test
    if train is None:
        raise DataError(f"{name} has test images only; it serves as unknown classes, not for training")
    if test is None:
        train, test = _set_aside(train, stratified, share(len(train), 5, options.test, "test"), options.seed)
    elif options.test is not None:
        test = test[: options.test]
    train, valid = _set_aside(
        train, holdout, share(len(train), 10, options.valid, "validation"), options.seed
    )
    train, valid, test = (resized(split, options.resolution) for split in (trim(train, options), valid, test))
    return Splits(name, contents.classes, train, valid, test)


def _set_aside(split: Split, holdout: Holdout, count: int, seed: int) -> tuple[Split, Split]:
    kept, aside = holdout(split.labels, count, seed)
    return _rows(split, kept), _rows(split, aside)


def _rows(split: Split, rows: torch.Tensor) -> Split:
    """The split's rows, without a copy where they are consecutive."""
    if len(rows) and int(rows[-1] - rows[0]) == len(rows) - 1 and bool((rows.diff() == 1).all()):
        return split[int(rows[0]) : int(rows[-1]) + 1]
    return split[rows]
