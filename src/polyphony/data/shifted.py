"""Shifted data: images of unknown classes, and corrupted versions of the test images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from polyphony.data.catalogue import DATASETS
from polyphony.data.cifar_c import SEVERITIES, read, source
from polyphony.data.dataset import validated
from polyphony.data.files import MissingCorruptedError, data_root, path_exists
from polyphony.data.load import EVERYTHING, arrange, contents, identify, locate
from polyphony.data.options import Options, area_average, converted, first_images, with_channels
from polyphony.data.splits import Split


def load_unknown(name: str, like: Split, root: Path | None = None, limit: int | None = None) -> Split:
    """The test images of another data set, converted to the channels and size of `like`.

    Pictures in a folder are cropped to a square if `like` is square; other images are squashed. `limit` takes
    the first images only; DataError if they lack classes because the images are sorted by class. Labels are
    those of the other data set, so they have no meaning for the known classes.
    """
    dataset = identify(name)
    place, path = locate(dataset, data_root(root))
    channels, height, width = like.images.shape[1:]
    crop = height == width and "resolution" in place.options
    data = contents(dataset, place, path, Options(resolution=height) if crop else EVERYTHING)
    split = data.parts["test"] if "test" in data.parts else arrange(dataset, data, EVERYTHING).test
    if limit is not None:
        split = first_images(split, limit, dataset.name)
    images = with_channels(split.images, channels)
    if images.shape[-2:] != (height, width):
        images = area_average(images, height, width)
    return Split(images, split.labels)


@dataclass(frozen=True, eq=False)
class Corrupted:
    """Corrupted versions of a test split. Iterating yields (corruption, severity, Split), read lazily.

    `origin` is "official", "unverified" or, for images made by `polyphony data corrupt`, "regenerated". Show
    it with every score. `source` is the fingerprint of the test split that the images were made from.
    """

    parts: Mapping[str, Split]
    origin: str
    options: Options = EVERYTHING
    source: str | None = None

    def __len__(self) -> int:
        return len(self.parts) * len(SEVERITIES)

    def __iter__(self) -> Iterator[tuple[str, int, Split]]:
        for name in self.parts:
            for severity in SEVERITIES:
                yield name, severity, self[name, severity]

    def __getitem__(self, condition: tuple[str, int]) -> Split:
        name, severity = condition
        split = self.parts[name]
        n = len(split) // len(SEVERITIES)
        block = split[(severity - 1) * n : severity * n]
        if self.options.test is not None:
            block = first_images(block, self.options.test, "corrupted")
        return converted(block, self.options)


def corrupted(name: str, root: Path | None = None, options: Options = EVERYTHING) -> Corrupted:
    """The corrupted test images of a data set: the official ones if they exist, else the regenerated ones.

    Only the options `test`, `resolution` and `channels` are used. Raises a MissingCorruptedError if there are
    neither.
    """
    base = data_root(root)
    official, regenerated = DATASETS.get(f"{name}-c"), base / regenerated_folder(name)
    if official is not None and path_exists(base / official.places[0].path):
        place, folder = locate(official, base)
        data = contents(official, place, folder)
    elif path_exists(regenerated):
        folder, data = regenerated, validated(read(regenerated, options), regenerated)
    else:
        names = f"{official.places[0].path} or {regenerated.name}" if official else regenerated.name
        raise MissingCorruptedError(f"{names} is not in {base}: put it there", name)
    return Corrupted(data.parts, data.origin, options, source(folder))


def regenerated_folder(name: str) -> str:
    """The name of the folder below the root that holds a data set's regenerated corrupted images."""
    return f"{name}-c-regenerated"
