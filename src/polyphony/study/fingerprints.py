"""The hashes that a plan depends on: of a study's images, and of its pretrained teachers' weights."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from polyphony.data.files import path_exists, readable, regular
from polyphony.distill.match import MATCH_IMAGES
from polyphony.nn.weights import file_and_key
from polyphony.recipe import PretrainedTeachers
from polyphony.runs.store import Spec
from polyphony.study.study import TRAIN_SUBSET, Study


@dataclass(frozen=True)
class Fingerprints:
    """The hashes of a study's images and of its pretrained teachers' files."""

    images: Mapping[str, str]  # by split: train, valid, test, and unlabelled if the study has one
    classes: int | None = None  # None if the largest label of train and valid tells the number of classes
    teachers: tuple[str, ...] = ()  # of pretrained teachers' files
    drawn: bool = False  # are subsets of the images drawn, because classes take turns?


def fingerprints(study: Study) -> Fingerprints:
    """The hashes of a study's images and of its pretrained teachers' files; raises if one cannot be read."""
    splits, teachers = study.data(), study.recipe.teachers
    classes = len(splits.classes)
    classes_in_labels = 1 + max(int(split.labels.max()) for split in (splits.train, splits.valid))
    files = teachers.weights if isinstance(teachers, PretrainedTeachers) else ()
    images = {"train": splits.train, "valid": splits.valid, "test": splits.test}
    images |= {"unlabelled": splits.unlabelled} if splits.unlabelled else {}
    subsets = itertools.product((splits.train, splits.valid), (MATCH_IMAGES, TRAIN_SUBSET))
    return Fingerprints(
        {name: split.fingerprint for name, split in images.items()},
        None if classes == classes_in_labels else classes,
        tuple(
            pretrained_hash(study, j, Path(file), splits.valid.fingerprint) for j, file in enumerate(files)
        ),
        any(split.needs_draw(count) for split, count in subsets),
    )


def pretrained_hash(study: Study, j: int, file: Path, valid: str) -> str:
    """The hash of a pretrained teacher's file.

    If the file is missing, the hash comes from the run's copy, provided that nothing else has changed.
    """
    copy = study.teacher(j)
    if not path_exists(file_and_key(file)[0]) and copy.is_finished():
        spec = copy.record()["spec"]
        if spec == pretrained_spec(study, j, valid, spec.get("weights", "")):
            return str(spec["weights"])
    return weights_hash(file)


def pretrained_spec(study: Study, j: int, valid: str, weights: str) -> Spec:
    """What a pretrained teacher depends on: its network, its file, and the images that it was checked on."""
    network = study.recipe.teachers.network_of(j).spec()
    return {"kind": "given teacher", "network": network, "valid": valid, "weights": weights}


def weights_hash(path: Path) -> str:
    """The hash of a file of weights, followed by "#KEY" for a path like "a.pt#KEY".

    The hash is cached while the file does not change.
    """
    file, key = file_and_key(path)
    with readable(file):
        status = file.stat()
    return _hash(file, status.st_mtime_ns, status.st_size) + (f"#{key}" if key else "")


@lru_cache
def _hash(path: Path, changed: int, size: int) -> str:
    with readable(path), regular(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
