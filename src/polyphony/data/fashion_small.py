"""A part of Fashion-MNIST at 14×14 pixels that comes with Polyphony: the demo needs no download.

Made by `load("fashion-mnist", Options(limit=4000, valid=2000, test=5000, resolution=14, seed=7))`.
Fashion-MNIST: copyright 2017 Zalando SE, MIT licence.
"""

from __future__ import annotations

from pathlib import Path

from polyphony.data.dataset import Contents, Dataset, Place
from polyphony.data.options import Options
from polyphony.data.own import read_npz

FILE = Path(__file__).with_name("fashion-small.npz")


def read(path: Path, options: Options) -> Contents:
    """4,000 training, 2,000 validation and 5,000 test images [n 1 14 14]; `path` is ignored."""
    contents = read_npz(FILE, options)
    return Contents(contents.classes, contents.parts, "subset")


FASHION_SMALL = Dataset(
    name="fashion-small",
    title="Fashion-MNIST, small: 14×14 photographs of clothes that come with Polyphony",
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    terms="MIT",
    places=(Place("", read, cached=False),),
    counts={"train": 4_000, "valid": 2_000, "test": 5_000},
    shape=(1, 14, 14),
    labels=10,
)
