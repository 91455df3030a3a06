"""Is a data set on disk whole, and is it the official one?"""

from __future__ import annotations

from hashlib import md5
from pathlib import Path

from polyphony.data.dataset import Contents, Dataset, Place
from polyphony.data.files import file_md5, there, unpacked

VERDICTS = {  # the origin of data in one sentence
    "official": "complete, and every checksum is the official one",
    "unverified": "complete by its counts; no official checksums are known for this form",
    "subset": "not the official data: fewer images, a subset or a re-made copy",
    "altered": "not the official data: the right number of images, but other files",
    "own": "your own data, readable",
    "regenerated": "made here by polyphony, not the official files",
}


def check(dataset: Dataset, place: Place, path: Path, contents: Contents) -> tuple[str, list[str]]:
    """Compares what was read with the official counts, and the files with the official checksums.

    The origin in one word, and a sentence for everything that differs.
    """
    if contents.origin != "unverified":  # the reader knows better than any checksum
        return contents.origin, []
    wrong_files, wrong_counts = _files(place, path), _counts(dataset, contents)
    if not wrong_files and not wrong_counts:
        origin = "official" if place.checksums else "unverified"
    else:
        origin = "subset" if wrong_counts else "altered"
    return origin, wrong_counts + wrong_files


def _counts(dataset: Dataset, contents: Contents) -> list[str]:
    return [
        f"{part} has {len(split):,} images, officially {dataset.counts[part]:,}"
        for part, split in contents.parts.items()
        if len(split) != dataset.counts.get(part, len(split))
    ]


def _files(place: Place, path: Path) -> list[str]:
    """A line for every file whose checksum is not the official one; a part that is not there is no fault."""
    found = ((name, _checksum(path / name if name else path)) for name in place.checksums)
    return [
        f"file {name or path.name}: MD5 {got}, officially {place.checksums[name]}"
        for name, got in found
        if got not in (None, place.checksums[name])
    ]


def _checksum(file: Path) -> str | None:
    packed = file.with_name(file.name + ".gz")
    if there(file):
        return file_md5(file)
    return md5(unpacked(packed), usedforsecurity=False).hexdigest() if there(packed) else None
