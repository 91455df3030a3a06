"""From a name or a path to the splits of a study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from polyphony._util.text import suggestion
from polyphony.data.cache import cached
from polyphony.data.catalogue import DATASETS
from polyphony.data.check import check
from polyphony.data.dataset import Contents, Dataset, Place, sound
from polyphony.data.errors import DataError, MissingDataError
from polyphony.data.files import data_root, readable, there
from polyphony.data.options import Holdout, Options, brought, first_images, share, stratified, trim
from polyphony.data.own import own
from polyphony.data.splits import Resize, Split, Splits
from polyphony.data.unlabelled import left_without_labels, read_unlabelled

EVERYTHING = Options()
SUPERCLASSES = 20  # of CIFAR-100


def load(source: str, options: Options = EVERYTHING, root: Path | None = None) -> Splits:
    """The train, validation and test splits of a data set.

    Args:
        source: A known name ("cifar10", "digits", …; see `polyphony data list`), or the path of a folder of
            class folders or of an .npz.
        options: How much of it to use.
        root: Folder of the data sets (default: $POLYPHONY_DATA, or the user's data folder).

    Returns:
        Images uint8 `[n c h w]` with labels. `Splits.origin` says whether they are the official data.

    Raises:
        DataError: The data is missing, damaged or smaller than asked for.

    Examples:
        >>> digits = load("digits", Options(per_class=20, valid=300))
        >>> digits.train.images.shape
        torch.Size([200, 1, 8, 8])
    """
    dataset = identify(source)
    place, path = found(dataset, data_root(root))
    return learnable(
        with_pictures(arrange(dataset, contents(dataset, place, path, options), options), options)
    )


def outline(source: str, options: Options = EVERYTHING) -> Splits:
    """The splits `load` would give of the official data, with blank images.

    They take no memory where validation images are the last rows, as CIFAR's are. Rows that are drawn at
    random or by `per_class`, and images brought to another resolution, take as much as real ones.
    """
    dataset = identify(source)
    if dataset.shape is None:
        raise DataError(f"how large {dataset.name} is cannot be said without it")
    _refuse_coarse(dataset, dataset.places[0], options)
    classes = SUPERCLASSES if options.coarse else dataset.labels
    blank = torch.zeros(1, *dataset.shape, dtype=torch.uint8)
    parts = {
        part: Split(blank.expand(count, *dataset.shape), torch.arange(count) % classes)
        for part, count in dataset.counts.items()
    }
    names = tuple(str(label) for label in range(classes))
    whole = Contents(names, parts, origin="outline")
    return learnable(with_pictures(arrange(dataset, whole, options), options))


def with_pictures(splits: Splits, options: Options) -> Splits:
    """The splits with the unlabelled images of a folder or an .npz, if such are asked for."""
    if not isinstance(options.unlabelled, str):
        return splits
    shape = tuple(splits.train.images.shape[1:])
    return replace(splits, unlabelled=read_unlabelled(Path(options.unlabelled), shape))


def learnable(splits: Splits) -> Splits:
    """The splits, if there is anything to tell apart; else DataError."""
    if len(splits.train.labels.unique()) < 2:
        raise DataError(f"the training images of {splits.name} are all of one class; a classifier needs two")
    return splits


def identify(source: str) -> Dataset:
    """The data set of that name, or the user's own at that path; else DataError with the nearest name."""
    if source in DATASETS:
        return DATASETS[source]
    if source and there(Path(source)) and (Path(source).is_dir() or source.endswith(".npz")):
        return own(Path(source))
    hint = suggestion(source, DATASETS)
    raise DataError(f"{source!r} is no known data set and no folder or .npz file; {hint}")


def found(dataset: Dataset, root: Path) -> tuple[Place, Path]:
    """The place below the root where the data set is, and its path; else MissingDataError."""
    place = here(dataset, root)
    if place is None:
        where = f"{dataset.name} is not in {root}: put {dataset.places[0].path} there"
        raise MissingDataError(where, dataset.name)
    return place, root / place.path


def here(dataset: Dataset, root: Path) -> Place | None:
    """The first of the data set's places that exists below the root, or nothing."""
    return next((place for place in dataset.places if not place.path or there(root / place.path)), None)


def contents(dataset: Dataset, place: Place, path: Path, options: Options = EVERYTHING) -> Contents:
    """What is at the place, its origin checked; from the cache when the source has not changed."""
    _refuse_coarse(dataset, place, options)

    def checked() -> Contents:
        fresh = read(dataset, place, path, options)
        origin, _ = check(dataset, place, path, fresh)
        return replace(fresh, origin=origin)

    if not place.cached:
        return read(dataset, place, path, options)
    return cached(dataset.name, path, tuple(getattr(options, name) for name in place.heeds), checked)


def _refuse_coarse(dataset: Dataset, place: Place, options: Options) -> None:
    if options.coarse and "coarse" not in place.heeds:
        raise DataError(f"{dataset.name} has no coarse labels, only CIFAR-100 has: leave coarse out")


def read(dataset: Dataset, place: Place, path: Path, options: Options = EVERYTHING) -> Contents:
    """What is at the place, afresh; DataError unless it is sound."""
    with readable(path):
        return sound(place.read(path, options), path, dataset.shape)


def arrange(dataset: Dataset, whole: Contents, options: Options) -> Splits:
    """Sets test and validation images aside, unless the data has its own; then trims and resizes."""
    train, valid, test = (whole.parts.get(part) for part in ("train", "valid", "test"))
    set_aside = tuple(part for part in ("valid", "test") if part not in whole.parts)
    if train is None:
        raise DataError(f"{dataset.name} has no training images here; use it as unknown or shifted data only")
    if test is None:
        train, test = _set_aside(train, stratified, share(len(train), 5, options.test, "test"), options.seed)
    elif options.test is not None:
        test = first_images(test, options.test, "test", "leave the option test out or shuffle them")
    if valid is None:
        count = share(len(train), 10, options.valid, "validation")
        train, valid = _set_aside(train, dataset.holdout, count, options.seed)
    elif options.valid is not None:
        valid = first_images(valid, options.valid, "validation", "leave the option valid out or shuffle them")
    spare = left_without_labels(train, options)
    squashed = options.resolution and test.images.shape[-2:] != 2 * (options.resolution,)
    train, valid, test = (brought(split, options) for split in (trim(train, options), valid, test))
    resize: Resize = "squash" if squashed else "crop"  # a reader that resizes has cropped
    return Splits(dataset.name, whole.classes, train, valid, test, whole.origin, resize, spare, set_aside)


def _set_aside(split: Split, holdout: Holdout, count: int, seed: int) -> tuple[Split, Split]:
    kept, aside = holdout(split.labels, count, seed)
    return _rows(split, kept), _rows(split, aside)


def _rows(split: Split, rows: Tensor) -> Split:
    """The split's rows, without a copy where they are consecutive."""
    if len(rows) and bool((rows.diff() == 1).all()):
        return split[int(rows[0]) : int(rows[-1]) + 1]
    return split[rows]
