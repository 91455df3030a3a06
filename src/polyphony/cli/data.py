"""`polyphony data`: list, check, download, corrupt and view data sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich import progress
from rich.columns import Columns
from rich.text import Text

from polyphony._util.files import atomic_path
from polyphony.cli.options import DataRoot, file_option
from polyphony.cli.terminal import console, errors, line

if TYPE_CHECKING:  # torch is imported when work starts, so that --help answers at once
    from polyphony.data.dataset import Dataset, Download, Place

app = App(name="data", help="Find, check, download, corrupt and view data sets.", group_commands="Commands")

OWN = "Name of a data set, or path of your own folder or .npz"
Resolution = Annotated[int | None, Parameter(help="Resize your own pictures to this side, in pixels.")]


@Parameter(name="*")
@dataclass(frozen=True)
class CorruptOptions:
    """Which images are corrupted, and how."""

    test: int | None = None
    """Number of test images, as data.test in the recipe (default: all)."""
    resolution: int | None = None
    """Resize the images to this side, in pixels, before they are corrupted."""
    split_seed: int = 0
    """The recipe's data.seed, for data without a test split."""
    seed: int = 0
    """Seed of the random corruptions."""


@app.command(name="list")
def list_(*, data: DataRoot = None) -> None:
    """List the known data sets: which are here, and where they are expected."""
    from polyphony.data.catalogue import DATASETS
    from polyphony.data.files import data_root
    from polyphony.data.load import first_place

    root = data_root(data)
    line(f"Data folder: {root}")
    for dataset in DATASETS.values():
        place = first_place(dataset, root)
        expected = ", ".join(each.path for each in dataset.places)
        here = _where(place, root / place.path) if place else f"no; expected {expected}"
        size = sum(download.size for download in dataset.downloads) / 1e6
        line(f"\n{dataset.name}", "bold")
        line(f"  what  {dataset.title}\n  here  {here}")
        if size:
            line(f"  get   {size:,.0f} MB with 'polyphony data get {dataset.name}'")
        line(f"  terms {dataset.terms}\n  home  {dataset.homepage}")


@app.command(usage="Usage: polyphony data check [NAME] [OPTIONS]")
def check(
    name: Annotated[str | None, Parameter(help=f"{OWN} (default: all that are here).")] = None,
    *,
    data: DataRoot = None,
    resolution: Resolution = None,
) -> int:
    """Read a data set, count its images, and compare its files with the official checksums.

    The exit code is 0 for complete data, and 1 for usable data that differs from the official data.
    """
    from polyphony.data.catalogue import DATASETS
    from polyphony.data.files import DataError, data_root
    from polyphony.data.load import first_place, identify

    root = data_root(data)
    present = ((each, first_place(dataset, root)) for each, dataset in DATASETS.items())
    names = [name] if name else [each for each, place in present if place and place.path]
    if not names:
        raise DataError(
            f"no known data set is in {root}; 'polyphony data list' says which files are expected"
        )
    complete = [_is_complete(dataset, root, resolution) for dataset in map(identify, names)]
    return 0 if all(complete) else 1


def _is_complete(dataset: Dataset, root: Path, resolution: int | None) -> bool:
    """Print how a data set differs from the official one. Returns False for a subset or altered data."""
    from polyphony.data import Options
    from polyphony.data.load import VERDICTS, locate, read
    from polyphony.data.load import check as compare

    place, path = locate(dataset, root)
    contents = read(dataset, place, path, Options(resolution=resolution))
    origin, differences = compare(dataset, place, path, contents)
    counts = ", ".join(f"{part} {len(split):,}" for part, split in contents.parts.items())
    line(dataset.name, "bold")
    for text in (_where(place, path), VERDICTS[origin], f"images: {counts}", *differences):
        line(f"  {text}")
    return origin not in ("subset", "altered")


@app.command
def get(name: Annotated[str, Parameter(help="Name of a data set.")], *, data: DataRoot = None) -> None:
    """Download a data set from its official address, check it and unpack it."""
    from polyphony.data.files import DataError, data_root
    from polyphony.data.load import identify

    dataset = identify(name)
    if not dataset.downloads:
        raise DataError(f"{dataset.name} needs no download")
    line(f"{dataset.title}\nterms: {dataset.terms}\nhome:  {dataset.homepage}")
    for download in dataset.downloads:
        line(f"{_fetch(download, data_root(data))} is here")


def _fetch(download: Download, root: Path) -> Path:
    """Download a file with a progress bar."""
    from polyphony.data.fetch import fetch

    columns = (
        progress.TextColumn("{task.description}"),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=errors, transient=True) as bars:
        bar = bars.add_task(Path(download.path).name, total=download.size)
        return fetch(download, root, lambda have: bars.update(bar, completed=have))


@app.command
def corrupt(
    name: Annotated[str, Parameter(help=f"{OWN}.")],
    *,
    data: DataRoot = None,
    options: CorruptOptions = CorruptOptions(),
) -> None:
    """Write corrupted versions of a data set's test images, in the layout of CIFAR-C.

    Formulas and constants are CIFAR-C's. The images are not the official ones, so that reports call them
    "regenerated".
    """
    from polyphony.data import Options, load
    from polyphony.data.corruptions import regenerate
    from polyphony.data.files import data_root
    from polyphony.data.shifted import regenerated_folder

    wanted = Options(test=options.test, resolution=options.resolution, seed=options.split_seed)
    splits = load(name, wanted, data)
    folder = data_root(data) / regenerated_folder(splits.name)
    steps = regenerate(splits.name, splits.test, folder, options.seed)
    for _ in progress.track(steps, f"{splits.name} corrupted", 75, console=errors, transient=True):
        pass
    images = f"{len(splits.test):,} images"
    line(f"{folder}: 15 corruptions × 5 severities of {images}, regenerated (not official)")


@app.command
def preview(
    name: Annotated[str, Parameter(help=f"{OWN}, or name of corrupted images.")],
    *,
    data: DataRoot = None,
    out: Annotated[Path | None, file_option("png", "File to write (default: NAME.png).")] = None,
    resolution: Resolution = None,
) -> None:
    """Write example pictures of each class as a PNG, and print how many images each class has."""
    from polyphony.data import Options
    from polyphony.data.files import data_root
    from polyphony.data.load import contents, identify, locate
    from polyphony.data.preview import class_rows, corruption_rows, sheet

    dataset = identify(name)
    place, path = locate(dataset, data_root(data))
    images = contents(dataset, place, path, Options(resolution=resolution))
    plain = {part: split for part, split in images.parts.items() if part in ("train", "test")}
    examples = plain.get("train") or plain.get("test")
    rows = class_rows(examples, images.classes) if examples else corruption_rows(images.parts)
    file = out or Path(f"{dataset.name}.png")
    with atomic_path(file) as beside:
        sheet(rows).save(beside, "PNG")
    for part, split in plain.items():
        line(f"{part}: {len(split):,} images", "bold")
        counts = split.labels.bincount(minlength=len(images.classes)).tolist()
        texts = (f"{label} {count:,}" for label, count in zip(images.classes, counts, strict=True))
        console.print(Columns(map(Text, texts)), highlight=False)
    line(f"origin: {images.origin}\ncontact sheet: {file}")


def _where(place: Place, path: Path) -> str:
    from polyphony.data.cache import stamp

    if not place.path:
        return "installed with a package, no download needed"
    return f"{path} ({sum(size for _, size, _ in stamp(path)) / 1e6:,.1f} MB)"
