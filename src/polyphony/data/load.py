"""Loads the splits of a data set by its name or path."""

from __future__ import annotations

from dataclasses import replace
from hashlib import md5
from pathlib import Path

import torch

from polyphony._util.text import suggestion
from polyphony.data.cache import cached
from polyphony.data.catalogue import DATASETS
from polyphony.data.dataset import Contents, Dataset, Place, validated
from polyphony.data.files import (
    DataError,
    MissingDataError,
    data_root,
    file_md5,
    path_exists,
    readable,
    unpacked,
)
from polyphony.data.options import (
    Options,
    converted,
    holdout_size,
    left_without_labels,
    sample,
    shuffled,
    stratified,
    take_rows,
    trim,
)
from polyphony.data.own import own, read_unlabelled
from polyphony.data.splits import Resize, Split, Splits

EVERYTHING = Options()
SUPERCLASSES = 20  # of CIFAR-100


def load(source: str, options: Options = EVERYTHING, root: Path | None = None) -> Splits:
    """The train, validation and test splits of a data set.

    Args:
        source: The name of a data set ("cifar10", "digits", …; see `polyphony data list`), or the path of a
            folder of class folders or of an .npz.
        options: How much of it to use.
        root: Folder of the data sets (default: $POLYPHONY_DATA, or the user's data folder).

    Returns:
        Images uint8 `[n c h w]` with labels. `Splits.origin` says whether they are the official data.

    Raises:
        DataError: The data is missing or damaged, or has too few images for the options.

    Examples:
        >>> digits = load("digits", Options(per_class=20, valid=300))
        >>> digits.train.images.shape
        torch.Size([200, 1, 8, 8])
    """
    dataset = identify(source)
    place, path = locate(dataset, data_root(root))
    return _trainable(arrange(dataset, contents(dataset, place, path, options), options), options)


def outline(source: str, options: Options = EVERYTHING) -> Splits:
    """The splits that `load` would return for the official data, with blank images.

    They take no memory if the validation images are the last rows, as in CIFAR. Random rows, `per_class` and
    another resolution take as much memory as real images. Raises a DataError if the
    size of the data set is unknown before it is read.
    """
    dataset = identify(source)
    if dataset.shape is None:
        raise DataError(f"the size of {dataset.name} is unknown until it is read")
    _reject_coarse(dataset, dataset.places[0], options)
    classes = SUPERCLASSES if options.coarse else dataset.labels
    blank = torch.zeros(1, *dataset.shape, dtype=torch.uint8)
    parts = {
        part: Split(blank.expand(count, *dataset.shape), torch.arange(count) % classes)
        for part, count in dataset.counts.items()
    }
    contents = Contents(tuple(map(str, range(classes))), parts, origin="outline")
    return _trainable(arrange(dataset, contents, options), options)


def _trainable(splits: Splits, options: Options) -> Splits:
    """The splits, with the unlabelled images of a folder or an .npz if the options name one.

    Raises a DataError if there are fewer than two classes to train on.
    """
    if len(splits.train.labels.unique()) < 2:
        raise DataError(f"the training images of {splits.name} are all of one class; a classifier needs two")
    if not isinstance(options.unlabelled, str):
        return splits
    shape = tuple(splits.train.images.shape[1:])
    return replace(splits, unlabelled=read_unlabelled(Path(options.unlabelled), shape))


def identify(source: str) -> Dataset:
    """The data set with this name, or the user's own data at this path; DataError if there is neither."""
    if source in DATASETS:
        return DATASETS[source]
    if source and path_exists(Path(source)) and (Path(source).is_dir() or source.endswith(".npz")):
        return own(Path(source))
    if Path(source).name != source:
        raise DataError(f"there is no folder and no .npz file {source!r}")
    hint = suggestion(source, DATASETS)
    raise DataError(f"{source!r} is not a known data set, a folder or an .npz file; {hint}")


def locate(dataset: Dataset, root: Path) -> tuple[Place, Path]:
    """The first form of a data set that exists below the root, and its path; else MissingDataError."""
    place = first_place(dataset, root)
    if place is None:
        message = f"{dataset.name} is not in {root}: put {dataset.places[0].path} there"
        raise MissingDataError(message, dataset.name)
    return place, root / place.path


def first_place(dataset: Dataset, root: Path) -> Place | None:
    """The first form of a data set that exists below the root, or None."""
    return next((place for place in dataset.places if not place.path or path_exists(root / place.path)), None)


def contents(dataset: Dataset, place: Place, path: Path, options: Options = EVERYTHING) -> Contents:
    """The contents of a place with their origin, from the cache if the source has not changed."""
    _reject_coarse(dataset, place, options)
    if not place.cached:
        return read(dataset, place, path, options)

    def read_and_check() -> Contents:
        unchecked = read(dataset, place, path, options)
        origin, _ = check(dataset, place, path, unchecked)
        return replace(unchecked, origin=origin)

    used_options = tuple(getattr(options, name) for name in place.options)
    return cached(dataset.name, path, used_options, read_and_check)


def _reject_coarse(dataset: Dataset, place: Place, options: Options) -> None:
    if options.coarse and "coarse" not in place.options:
        raise DataError(
            f"{dataset.name} has no coarse labels, only CIFAR-100 has them: remove the option coarse"
        )


def read(dataset: Dataset, place: Place, path: Path, options: Options = EVERYTHING) -> Contents:
    """Read the contents of a place without the cache; DataError if they are invalid."""
    with readable(path):
        return validated(place.read(path, options), path, dataset.shape)


def arrange(dataset: Dataset, contents: Contents, options: Options) -> Splits:
    """Split off test and validation images unless the data has its own; then trim and convert.

    Raises a DataError if there are no training images, or too few.
    """
    parts = dict(contents.parts)
    if "train" not in parts:
        raise DataError(f"{dataset.name} has no training images here; use it as unknown or shifted data only")
    if options.shuffle:
        parts["train"] = shuffled(parts["train"], options.seed)
    for part, what, share, holdout in (
        ("test", "test", 5, stratified),
        ("valid", "validation", 10, dataset.holdout),
    ):
        count, train = getattr(options, part), parts["train"]
        if part not in parts:
            size = holdout_size(len(train), share, count, what)
            rest, split_off = holdout(train.labels, size, options.seed)
            parts[part], parts["train"] = take_rows(train, split_off), take_rows(train, rest)
        elif count is not None:
            parts[part] = sample(parts[part], count, options.seed)
    unlabelled = left_without_labels(parts["train"], options)
    parts["train"] = trim(parts["train"], options)
    train, valid, test = (converted(parts[part], options) for part in ("train", "valid", "test"))
    squashed = test.images.shape[2:] != parts["test"].images.shape[2:]
    resize: Resize = "squash" if squashed else "crop"  # readers that resize crop first
    set_aside = tuple(part for part in ("valid", "test") if part not in contents.parts)
    return Splits(
        dataset.name, contents.classes, train, valid, test, contents.origin, resize, unlabelled, set_aside
    )


VERDICTS = {  # the origin of data in one sentence
    "official": "complete, and every checksum is the official one",
    "unverified": "complete by its counts; no official checksums are known for this form",
    "subset": "not the official data: another number of images",
    "altered": "not the official data: the right number of images, but other files",
    "own": "your own data, readable",
    "regenerated": "made by polyphony, not the official files",
}


def check(dataset: Dataset, place: Place, path: Path, contents: Contents) -> tuple[str, list[str]]:
    """Compare the number of images and the checksums of the files with the official ones.

    Returns the origin in one word, and a sentence for each difference.
    """
    if contents.origin != "unverified":  # the reader has decided
        return contents.origin, []
    wrong_counts = [
        f"{part} has {len(split):,} images, officially {dataset.counts[part]:,}"
        for part, split in contents.parts.items()
        if len(split) != dataset.counts.get(part, len(split))
    ]
    checksums = {name: _checksum(path / name if name else path) for name in place.checksums}
    wrong_files = [
        f"file {name or path.name}: MD5 {md5}, officially {place.checksums[name]}"
        for name, md5 in checksums.items()
        if md5 not in (None, place.checksums[name])  # parts may be missing
    ]
    if wrong_counts or wrong_files:
        return "subset" if wrong_counts else "altered", wrong_counts + wrong_files
    return "official" if place.checksums else "unverified", []


def _checksum(file: Path) -> str | None:
    """The MD5 of a file, or of the content of its .gz; None if neither exists."""
    packed = file.with_name(file.name + ".gz")
    if path_exists(file):
        return file_md5(file)
    return md5(unpacked(packed), usedforsecurity=False).hexdigest() if path_exists(packed) else None
