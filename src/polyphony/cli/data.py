"""`polyphony data`: is a data set there and sound, get it, corrupt it, look at it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.columns import Columns
from rich.console import Console
from rich.progress import (
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
    track,
)
from rich.text import Text

from polyphony.machine import whole

if TYPE_CHECKING:  # torch is imported when work starts, so that --help answers at once
    from polyphony.data.dataset import Dataset, Place

app = App(name="data", help="Find, check, fetch, corrupt and look at data sets.")

Root = Annotated[Path | None, Parameter(name="--data")]


@app.command(name="list")
def list_(*, data: Root = None) -> None:
    """List the known data sets: what is here and where it is looked for.

    Parameters
    ----------
    data
        The folder that holds the data. Default: $POLYPHONY_DATA, else the user's data folder.
    """
    from polyphony.data.catalogue import DATASETS
    from polyphony.data.files import data_root

    root = data_root(data)
    _say(f"looked for below {root}")
    for dataset in DATASETS.values():
        _say(f"\n{dataset.name}", "bold")
        for key, value in _facts(dataset, root).items():
            _say(f"  {key:<6}{value}")


@app.command
def check(name: str | None = None, *, data: Root = None, resolution: int | None = None) -> int:
    """Read a data set, count it, and compare its files with the official checksums.

    The exit code is 0 for complete data, 1 for data that can be used but is not the official one.

    Parameters
    ----------
    name
        A known name, or the path of your own folder or .npz. Default: everything that is here.
    data
        The folder that holds the data. Default: $POLYPHONY_DATA, else the user's data folder.
    resolution
        Bring your own pictures to this side first, for those of different sizes.
    """
    from polyphony.data import Options
    from polyphony.data.check import check as compare
    from polyphony.data.errors import DataError
    from polyphony.data.files import data_root
    from polyphony.data.load import found, identify, read

    root, complete = data_root(data), True
    names = [name] if name else _present(root)
    if not names:
        raise DataError(f"no known data set is in {root}; 'polyphony data list' says what is looked for")
    for dataset in map(identify, names):
        place, path = found(dataset, root)
        result = compare(dataset, place, path, read(dataset, place, path, Options(resolution=resolution)))
        counts = ", ".join(f"{part} {count:,}" for part, count in result.counts.items())
        _say(dataset.name, "bold")
        for line in (_where(place, path), result.verdict, f"images: {counts}", *result.differences):
            _say(f"  {line}")
        complete &= result.origin not in ("subset", "altered")
    return 0 if complete else 1


@app.command
def get(name: str, *, data: Root = None) -> None:
    """Download a data set from its official address, check it and unpack it.

    Parameters
    ----------
    name
        A known name.
    data
        The folder to put it in. Default: $POLYPHONY_DATA, else the user's data folder.
    """
    from polyphony.data.errors import DataError
    from polyphony.data.fetch import fetch
    from polyphony.data.files import data_root
    from polyphony.data.load import identify

    root, dataset = data_root(data), identify(name)
    if not dataset.downloads:
        raise DataError(f"{dataset.name} needs no download")
    _say(f"{dataset.title}\nterms: {dataset.terms}\nhome:  {dataset.homepage}")
    columns = (
        TextColumn("{task.description}"),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    for download in dataset.downloads:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            bar = bars.add_task(Path(download.path).name, total=download.size)
            goal = fetch(download, root, partial(_advance, bars, bar))
        _say(f"{goal} is there")


@app.command
def corrupt(
    name: str,
    *,
    data: Root = None,
    test: int | None = None,
    resolution: int | None = None,
    split_seed: int = 0,
    seed: int = 0,
) -> None:
    """Make corrupted versions of a data set's test images, in the layout of CIFAR-C.

    They are marked "regenerated" wherever they are used: the formulas and constants are CIFAR-C's, the images
    are not the official ones.

    Parameters
    ----------
    name
        A known name, or the path of your own folder or .npz.
    data
        The folder that holds the data. Default: $POLYPHONY_DATA, else the user's data folder.
    test
        As in the recipe: the first so many test images, or so many set aside where there is no test split.
    resolution
        Bring the images to this side before they are corrupted; without, the recipe's applies afterwards.
    split_seed
        The data seed of the recipe, for data without a test split.
    seed
        Of the random corruptions.
    """
    from polyphony.data import Options, load
    from polyphony.data.files import data_root
    from polyphony.data.regenerate import regenerate
    from polyphony.data.shifted import regenerated_folder

    splits = load(name, Options(test=test, resolution=resolution, seed=split_seed), data)
    folder = data_root(data) / regenerated_folder(splits.name)
    _watch(regenerate(splits.name, splits.test, folder, seed), f"{splits.name} corrupted", 75)
    images = f"{len(splits.test):,} images"
    _say(f"{folder}: 15 corruptions × 5 severities of {images}, regenerated (not official)")


@app.command
def preview(name: str, *, data: Root = None, out: Path | None = None, resolution: int | None = None) -> None:
    """Write a contact sheet with labels as PNG, and print how many images each class has.

    Parameters
    ----------
    name
        A known name, or the path of your own folder or .npz, or of corrupted images made here.
    data
        The folder that holds the data. Default: $POLYPHONY_DATA, else the user's data folder.
    out
        The file to write. Default: NAME.png in the current folder.
    resolution
        Bring your own pictures to this side first, for those of different sizes.
    """
    from polyphony.data import Options
    from polyphony.data.files import data_root
    from polyphony.data.load import contents, found, identify
    from polyphony.data.preview import class_rows, corruption_rows, sheet

    dataset = identify(name)
    place, path = found(dataset, data_root(data))
    kept = contents(dataset, place, path, Options(resolution=resolution))
    plain = {part: split for part, split in kept.parts.items() if part in ("train", "test")}
    shown = plain.get("train") or plain.get("test")
    rows = class_rows(shown, kept.classes) if shown else corruption_rows(kept.parts)
    file = out or Path(f"{dataset.name}.png")
    with whole(file) as beside:
        sheet(rows).save(beside, "PNG")
    for part, split in plain.items():
        counts = split.labels.bincount(minlength=len(kept.classes)).tolist()
        _say(f"{part}: {len(split):,} images", "bold")
        named = zip(kept.classes, counts, strict=True)
        Console(highlight=False).print(Columns(Text(f"{label} {count:,}") for label, count in named))
    _say(f"origin: {kept.origin}\ncontact sheet: {file}")


def _say(text: str, style: str | None = None) -> None:
    """A line as it is: a name may hold what looks like markup, and a path must not be broken."""
    Console(highlight=False).print(text, style=style, markup=False, soft_wrap=True)


def _watch(steps: Iterable[object], what: str, total: int) -> None:
    """Take all steps, with a bar that goes away."""
    for _ in track(steps, what, total, console=Console(stderr=True), transient=True):
        pass


def _advance(bars: Progress, bar: TaskID, have: int) -> None:
    bars.update(bar, completed=have)


def _facts(dataset: Dataset, root: Path) -> dict[str, str]:
    """What `list` says of a data set."""
    here = _here(dataset, root)
    looked_for = "no; looked for " + ", ".join(place.path for place in dataset.places)
    facts = {"what": dataset.title, "here": looked_for if here is None else _where(here, root / here.path)}
    if size := sum(download.size for download in dataset.downloads):
        facts["get"] = f"{size / 1e6:,.0f} MB with 'polyphony data get {dataset.name}'"
    return facts | {"terms": dataset.terms, "home": dataset.homepage}


def _here(dataset: Dataset, root: Path) -> Place | None:
    from polyphony.data.files import there

    return next((place for place in dataset.places if not place.path or there(root / place.path)), None)


def _present(root: Path) -> list[str]:
    from polyphony.data.catalogue import DATASETS

    return [name for name, dataset in DATASETS.items() if (here := _here(dataset, root)) and here.path]


def _where(place: Place, path: Path) -> str:
    from polyphony.data.cache import stamp

    if not place.path:
        return "comes with scikit-learn, the extra polyphony[demo]"
    return f"{path} ({sum(size for _, size, _ in stamp(path)) / 1e6:,.1f} MB)"
