"""A cache of decoded data: one file on disk, valid until its source changes."""

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


def cached(name: str, path: Path, reading: tuple[object, ...], read: Callable[[], Contents]) -> Contents:
    """`read()`, or its cached result if `path` has not changed. `reading` distinguishes ways to read it."""
    source = _digest(FORMAT, name, str(path.resolve()), reading)[:12]
    file = cache_root() / f"{name}-{source}-{_digest(stamp(path))[:16]}.safetensors"
    with suppress(Exception):
        return restore(file)  # if it is missing or damaged, the source is read again
    contents = read()
    with suppress(OSError, RuntimeError):  # a full disk, or a limit on mapped memory: reading is only slower
        clear_leftovers(file.parent)  # of killed processes
        keep(contents, file)
        for old in file.parent.glob(f"*-{source}-*.safetensors"):
            if old != file:
                old.unlink()
        return restore(file)  # mapped from disk, so that memory holds the data once
    return contents


def stamp(path: Path) -> list[tuple[str, int, int]]:
    """(name, size, modification time) of the file, or of everything in the folder."""
    found = walk(path) if path.is_dir() else [(path.name, path.stat())]
    return sorted(
        (name, 0, 0) if name.endswith("/") else (name, status.st_size, status.st_mtime_ns)
        for name, status in found  # an empty folder is a change too
    )


def _digest(*what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()


def keep(contents: Contents, file: Path) -> None:
    """Write the contents to the file atomically."""
    parts = contents.parts.items()
    arrays = {f"{part}.labels": split.labels.contiguous().numpy() for part, split in parts}
    arrays |= {f"{part}.images": split.images.contiguous().numpy() for part, split in parts}
    facts = {"classes": contents.classes, "origin": contents.origin, "parts": list(contents.parts)}
    with atomic_path(file) as beside:
        save_file(arrays, beside, {"facts": json.dumps(facts)})


def restore(file: Path) -> Contents:
    """The contents of a file written by `keep`, memory-mapped."""
    with safe_open(regular(file), framework="pt") as stored:
        facts, tensor = json.loads(stored.metadata()["facts"]), stored.get_tensor
        parts = {part: Split(tensor(f"{part}.images"), tensor(f"{part}.labels")) for part in facts["parts"]}
    for split in parts.values():
        as_labels(split.labels.numpy(), len(split), len(facts["classes"]), file)
    return validated(Contents(tuple(facts["classes"]), parts, facts["origin"]), file)
