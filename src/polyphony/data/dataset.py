"""What a data set is before it is read: a row of facts, and a function for every form it comes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from polyphony.data.options import Holdout, Options, stratified
from polyphony.data.splits import Split


@dataclass(frozen=True, eq=False)
class Contents:
    """What a reader finds: the names of the classes, and the parts that are there ("train", "test", …).

    `origin` says how far the data is the official one: "official" (every checksum agrees), "unverified" (the
    right counts, no checksums known), "altered" (the right counts, other checksums), "subset" (fewer images),
    "own" (a user's), "regenerated" (corruptions made here).
    """

    classes: tuple[str, ...]
    parts: Mapping[str, Split]
    origin: str = "unverified"


Read = Callable[[Path, Options], Contents]


@dataclass(frozen=True)
class Place:
    """One form a data set has on disk: a folder or file below the data root, and how that form is read.

    `checksums` gives the MD5 of official files by their path below the place ("" for the place itself; of a
    file that may be there as .gz, of what is in it). `heeds` names the options that change what is read.
    `cached` is False for what is quicker to read again than to keep a second time.
    """

    path: str
    read: Read
    checksums: Mapping[str, str] = field(default_factory=dict)
    heeds: tuple[str, ...] = ()
    cached: bool = True


@dataclass(frozen=True)
class Download:
    """An official file: its address, where it goes below the root, its MD5 and its size in bytes.

    `unpacked` is the folder an archive makes below the root; a file without one is used as it is.
    """

    url: str
    path: str
    md5: str
    size: int
    unpacked: str | None = None


@dataclass(frozen=True)
class Dataset:
    """A known data set. `counts` are the official numbers of images by part, `shape` is [c h w] of each, and
    `labels` how many classes it has, where these are fixed.
    """

    name: str
    title: str
    homepage: str
    terms: str
    places: tuple[Place, ...]
    counts: Mapping[str, int]
    downloads: tuple[Download, ...] = ()
    holdout: Holdout = stratified
    shape: tuple[int, int, int] | None = None
    labels: int = 0
