"""The hashes of files that a plan depends on: a study's images, and its pretrained teachers' weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from polyphony.data.files import readable, regular, there
from polyphony.nn.weights import file_and_key
from polyphony.recipe import PretrainedTeachers
from polyphony.runs.store import Spec
from polyphony.study.study import Study


@dataclass(frozen=True)
class Fingerprints:
    """Hashes of the files that a recipe names."""

    images: Mapping[str, str]  # by split: train, valid, test, and unlabelled if there are any
    classes: int | None = None  # the number of classes, if the labels of train and valid do not show it
    teachers: tuple[str, ...] = ()  # the hashes of pretrained teachers' files


def fingerprints(study: Study) -> Fingerprints:
    """The hashes of a study's images and of its pretrained teachers' files; raises if one cannot be read."""
    splits, teachers = study.data(), study.recipe.teachers
    count, labels = len(splits.classes), (splits.train.labels, splits.valid.labels)
    shown = 1 + max(int(each.max()) for each in labels)
    given = teachers.weights if isinstance(teachers, PretrainedTeachers) else ()
    images = {"train": splits.train, "valid": splits.valid, "test": splits.test}
    images |= {"unlabelled": splits.unlabelled} if splits.unlabelled else {}
    return Fingerprints(
        {name: split.fingerprint for name, split in images.items()},
        None if count == shown else count,
        tuple(
            pretrained_hash(study, j, Path(file), splits.valid.fingerprint) for j, file in enumerate(given)
        ),
    )


def pretrained_hash(study: Study, j: int, file: Path, valid: str) -> str:
    """The hash of a pretrained teacher's file.

    If the file is gone, the run's copy replaces it, provided that nothing else has changed.
    """
    copy = study.teacher(j)
    if not there(file_and_key(file)[0]) and copy.is_there():
        spec = copy.record()["spec"]
        if spec == pretrained_spec(study, j, valid, spec.get("weights", "")):
            return str(spec["weights"])
    return weights_hash(file)


def pretrained_spec(study: Study, j: int, valid: str, weights: str) -> Spec:
    """What a pretrained teacher depends on: its network, its file, and the images that it was checked on."""
    network = study.recipe.teachers.network_of(j).spec()
    return {"kind": "given teacher", "network": network, "valid": valid, "weights": weights}


def weights_hash(path: Path) -> str:
    """The hash of a file of weights, with the key in "a.pt#ema"; cached while the file does not change."""
    file, key = file_and_key(path)
    with readable(file):
        status = file.stat()
    return _hash(file, status.st_mtime_ns, status.st_size) + (f"#{key}" if key else "")


@lru_cache
def _hash(path: Path, changed: int, size: int) -> str:
    with readable(path), regular(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
