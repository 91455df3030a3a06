"""A cache of decoded data: one file for each data set, valid until its source changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import safe_open
from safetensors.numpy import save_file

from polyphony._util.files import atomic_path, clear_leftovers
from polyphony.data.dataset import Contents, as_labels, validated
from polyphony.data.files import cache_root, regular, walk
from polyphony.data.splits import Split

FORMAT = 2  # raise it when a reader's result changes


def cached(name: str, path: Path, options: tuple[object, ...], read: Callable[[], Contents]) -> Contents:
    """`read()`, or its cached result if `path` has not changed.

    `options` are the values that change what is read from the path. Errors of the cache are ignored.
    """
    source = _digest(FORMAT, name, str(path.resolve()), options)[:12]
    file = cache_root() / f"{name}-{source}-{_digest(stamp(path))[:16]}.safetensors"
    with suppress(Exception):
        return restore(file)  # a missing or damaged file raises; then the source is read
    contents = read()
    # If the disk is full or mapped memory is limited, the next start is slower.
    with suppress(OSError, RuntimeError):
        clear_leftovers(file.parent)  # files of killed processes
        keep(contents, file)
        for old in file.parent.glob(f"*-{source}-*.safetensors"):
            if old != file:
                old.unlink()
        return restore(file)  # mapped from disk, so that processes share one copy in memory
    return contents


def stamp(path: Path) -> list[tuple[str, int, int]]:
    """(name, size, modification time) of the file, or of everything in the folder."""
    entries = walk(path) if path.is_dir() else [(path.name, path.stat())]
    return sorted(
        (name, 0, 0) if name.endswith("/") else (name, status.st_size, status.st_mtime_ns)
        for name, status in entries  # with folders, since a new empty folder is a change
    )


def _digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()


def keep(contents: Contents, file: Path) -> None:
    """Write the contents to the file atomically."""
    parts = contents.parts.items()
    arrays = {f"{part}.labels": split.labels.contiguous().numpy() for part, split in parts}
    arrays |= {f"{part}.images": split.images.contiguous().numpy() for part, split in parts}
    facts = {"classes": contents.classes, "origin": contents.origin, "parts": list(contents.parts)}
    with atomic_path(file) as temporary:
        save_file(arrays, temporary, {"facts": json.dumps(facts)})


def restore(file: Path) -> Contents:
    """The contents of a file written by `keep`, memory-mapped."""
    with safe_open(regular(file), framework="pt") as stored:
        facts, tensor = json.loads(stored.metadata()["facts"]), stored.get_tensor
        parts = {part: Split(tensor(f"{part}.images"), tensor(f"{part}.labels")) for part in facts["parts"]}
    for split in parts.values():
        as_labels(split.labels.numpy(), len(split), len(facts["classes"]), file)
    return validated(Contents(tuple(facts["classes"]), parts, facts["origin"]), file)
