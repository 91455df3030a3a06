"""Shifted images: another data set's classes, and corrupted versions of a study's test images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Literal, Protocol

from polyphony.data import Corrupted, DataError, Options, Split, corrupted, load, load_unknown
from polyphony.data.cifar_c import SEVERITIES
from polyphony.data.load import identify
from polyphony.recipe import Data
from polyphony.runs.predictions import CORRUPTED, UNKNOWN
from polyphony.study.study import Study, load_splits


class Shift(Protocol):
    """Shifted images in splits. Jobs are sent with it, so it does not hold the images."""

    @property
    def name(self) -> str:
        """Its name in files and tables."""

    @property
    def splits(self) -> Sequence[str]:
        """The names of its predictions."""

    def images(self, split: str) -> Split:
        """The images of one split, at the study's size."""


@dataclass(frozen=True)
class Unknown:
    """Another data set's test images, or the first `limit`."""

    study: Study
    source: str
    limit: int | None
    name: str

    @property
    def splits(self) -> Sequence[str]:
        return (f"{UNKNOWN}{self.name}",)

    def images(self, split: str) -> Split:
        return read_unknown(self.study.recipe.data, self.study.data_root, self.source, self.limit)


def unknown(study: Study, source: str, limit: int | None = None) -> Unknown:
    return Unknown(study, source, limit, identify(source).name)


@dataclass(frozen=True)
class Corruptions:
    """The test images under every corruption and severity, or the first `limit` of them."""

    study: Study
    limit: int | None
    name: str
    corruptions: tuple[str, ...]

    @property
    def conditions(self) -> dict[str, tuple[str, int]]:
        """Split → (corruption, severity)"""
        each = product(self.corruptions, SEVERITIES)
        return {f"{CORRUPTED}{self.name}-{part}-{severity}": (part, severity) for part, severity in each}

    @property
    def splits(self) -> Sequence[str]:
        return list(self.conditions)

    def images(self, split: str) -> Split:
        found = read_corrupted(self.study.recipe.data, self.study.data_root, self.limit)
        images, test = found[self.conditions[split]], self.study.data().test
        if not images.labels.equal(test.labels[: len(images)]):
            raise not_of_the_run(self.name)
        return images


def corruptions(study: Study, source: str, limit: int | None = None) -> Corruptions:
    """The corrupted test images of a run, by the name DATA-c: the official ones, or else regenerated ones.

    Regenerated images are always called DATA-c-regenerated.
    """
    name = study.data().name
    if source.removesuffix("-regenerated").removesuffix("-c") != name:
        raise DataError(f"{source} is not of the run's data: ask for {name}-c, its own test images")
    found = read_corrupted(study.recipe.data, study.data_root, limit)
    origin = "-regenerated" if found.origin == "regenerated" else ""
    return Corruptions(study, limit, f"{name}-c{origin}", tuple(found.parts))


@lru_cache(maxsize=1)
def read_unknown(data: Data, root: Path | None, source: str, limit: int | None) -> Split:
    """Unknown images, converted to the shape of a recipe's test images; cached."""
    splits = load_splits(data, root)
    if identify(source).name == splits.name:
        raise DataError(
            f"{source} holds the classes the run was trained on: unknown ones come from other data"
        )
    return load_unknown(source, splits.test, root, limit)


@lru_cache(maxsize=1)
def read_corrupted(data: Data, root: Path | None, limit: int | None) -> Corrupted:
    """The corrupted versions of a recipe's test images, or of the first `limit`; cached."""
    splits = load_splits(data, root)
    count = min(limit or len(splits.test), len(splits.test))
    found = corrupted(
        splits.name, root, Options(resolution=data.resolution, test=count, channels=data.channels)
    )
    made_of_these = found.source in (None, splits.test.fingerprint)
    if not made_of_these and found.source != source_split(found, data, root).fingerprint:
        raise not_of_the_run(f"{splits.name}-c-regenerated")
    return found


def source_split(made: Corrupted, data: Data, root: Path | None) -> Split:
    """A recipe's test images in the number and size that were corrupted, which may differ from its own."""
    whole = next(iter(made.parts.values()))
    (height, width), count = whole.images.shape[-2:], len(whole) // len(SEVERITIES)
    side = height if height == width else None
    channels: Literal[1, 3] = 1 if whole.images.shape[1] == 1 else 3
    options = Options(resolution=side, test=count, seed=data.seed, coarse=data.coarse, channels=channels)
    return load(data.name, options, root).test


def not_of_the_run(name: str) -> DataError:
    return DataError(
        f"the images of {name} are not corrupted versions of this run's test images:"
        " make them of as many test images as the recipe has"
    )
