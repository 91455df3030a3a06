"""TinyImageNet from `tiny-imagenet-200/` or its zip: 200 classes of 64×64 JPEGs."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import torch

from polyphony.data.archives import Tree, tree
from polyphony.data.dataset import Contents, Dataset, Download, Place
from polyphony.data.files import DataError
from polyphony.data.images import decode_all
from polyphony.data.options import Options, last_of_each_class
from polyphony.data.splits import Split

Listing = list[tuple[str, int]]  # (file, label)


def read(path: Path, options: Options) -> Contents:
    """Read the training images, and the official validation images as the part test. RGB uint8 [n 3 64 64]"""
    files = tree(path)
    wnids = files.text("wnids.txt").split()
    label = {wnid: i for i, wnid in enumerate(wnids)}
    if not wnids or len(label) < len(wnids):
        raise DataError(f"{files.where('wnids.txt')} is empty or names a class twice; get the archive again")
    listings = {"train": _train(files, label), "test": _val(files, label)}
    parts = {part: _split(files, listing) for part, listing in listings.items()}
    return Contents(_names(files, wnids), parts)


def _names(files: Tree, wnids: list[str]) -> tuple[str, ...]:
    """The first name of every class: "goldfish" for "goldfish, Carassius auratus"."""
    lines = (line.partition("\t") for line in files.text("words.txt").splitlines())
    words = {wnid: text.split(",")[0] for wnid, _, text in lines}
    return tuple(words.get(wnid, wnid) for wnid in wnids)


def _train(files: Tree, label: dict[str, int]) -> Listing:
    """The training images in the order of wnids.txt; within a class, by the number in the file's name."""
    images: dict[str, list[str]] = {wnid: [] for wnid in label}
    for name in files.names:
        parts = PurePosixPath(name).parts
        if len(parts) == 4 and parts[0] == "train" and parts[2] == "images":
            if parts[1] not in images:
                raise DataError(f"{files.where(name)} belongs to no class of wnids.txt; remove it")
            images[parts[1]].append(name)
    for wnid, names in images.items():
        if not names:
            raise DataError(f"{files.where(f'train/{wnid}/images')} holds no images; get the archive again")
    return [(name, label[wnid]) for wnid, names in images.items() for name in sorted(names, key=_by_number)]


def _by_number(name: str) -> tuple[int, str]:
    """A sort key that puts 10 after 9: the names of a class differ only in their number."""
    return len(name), name


def _val(files: Tree, label: dict[str, int]) -> Listing:
    """The validation images in the order of val_annotations.txt; each line starts with file, tab, class."""
    listing, present = [], set(files.names)
    for line in files.text("val/val_annotations.txt").splitlines():
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in label or f"val/images/{name}" not in present:
            fault = "an unknown class" if wnid not in label else "a missing file"
            where = files.where("val/val_annotations.txt")
            raise DataError(f"{where} names {fault} in the line {line!r}; get the archive again")
        listing.append((f"val/images/{name}", label[wnid]))
    if not listing:
        raise DataError(f"{files.where('val/val_annotations.txt')} is empty; get the archive again")
    return listing


def _split(files: Tree, listing: Listing) -> Split:
    names = [name for name, _ in listing]
    images = decode_all(names, files.read, files.where, None, "TinyImageNet")
    return Split(images, torch.tensor([label for _, label in listing]))


SITE = "http://cs231n.stanford.edu"
ARCHIVE, MD5, SIZE = "tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", 248_100_043

TINYIMAGENET = Dataset(
    name="tinyimagenet",
    title="TinyImageNet: 64×64 colour photographs of 200 classes",
    homepage=f"{SITE}/",
    terms="ImageNet's terms: non-commercial research and education",
    places=(Place("tiny-imagenet-200", read), Place(ARCHIVE, read, {"": MD5})),
    counts={"train": 100_000, "test": 10_000},
    shape=(3, 64, 64),
    labels=200,
    downloads=(Download(f"{SITE}/{ARCHIVE}", ARCHIVE, MD5, SIZE),),
    holdout=last_of_each_class,
)
