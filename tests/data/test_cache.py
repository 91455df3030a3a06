from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from polyphony._util.files import atomic_path
from polyphony.data import Split
from polyphony.data.cache import cached
from polyphony.data.dataset import Contents


class Reader:
    """Counts how often it is asked."""

    def __init__(self, path: Path) -> None:
        self.path, self.calls = path, 0

    def __call__(self) -> Contents:
        self.calls += 1
        levels = torch.tensor(list(self.path.read_bytes()), dtype=torch.uint8)
        split = Split(levels.view(-1, 1, 1, 1), torch.arange(len(levels)) % 2)
        return Contents(("näive", "b/c"), {"train": split, "test": split[torch.tensor([0])]}, "subset")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").write_bytes(b"abc")
    return tmp_path / "source"


def test_the_cache_restores_what_was_read(source: Path) -> None:
    reader = Reader(source)
    first, second = (cached("x", source, (), reader) for _ in range(2))
    assert reader.calls == 1
    for contents in (first, second):
        assert (contents.classes, contents.origin) == (("näive", "b/c"), "subset")
        assert list(contents.parts) == ["train", "test"]
        assert contents.parts["train"].fingerprint == reader().parts["train"].fingerprint


def test_a_changed_source_or_other_options_are_read_again(
    source: Path, cached_files: Callable[[], list[str]]
) -> None:
    reader = Reader(source)
    cached("x", source, (None,), reader)
    cached("x", source, (8,), reader)
    assert (reader.calls, len(cached_files())) == (2, 2)
    source.write_bytes(b"xyz")
    os.utime(source, ns=(5, 5))
    changed = cached("x", source, (None,), reader)
    assert changed.parts["train"].images.flatten().tolist() == [120, 121, 122]
    assert (reader.calls, len(cached_files())) == (3, 2)  # the stale one is gone, the other reading stays
    cached("x", source, (None,), reader)
    assert reader.calls == 3


@pytest.mark.parametrize(
    "damage", [lambda content: b"", lambda content: content[:40], lambda content: b"x" * len(content)]
)
def test_a_damaged_cache_is_rebuilt(damage, source: Path, tmp_path: Path) -> None:
    reader = Reader(source)
    cached("x", source, (), reader)
    (file,) = (tmp_path / "cache").rglob("*.safetensors")
    file.write_bytes(damage(file.read_bytes()))
    assert cached("x", source, (), reader).parts["train"].images.flatten().tolist() == [97, 98, 99]
    assert reader.calls == 2
    assert cached("x", source, (), reader).parts["test"].labels.tolist() == [0]
    assert reader.calls == 2


def test_unfinished_files_of_killed_processes_are_removed_and_those_of_running_ones_stay(
    source: Path, cached_files: Callable[[], list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "cache" / "polyphony" / "data"
    folder.mkdir(parents=True)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    abandoned, in_use = (f".x-1-2.safetensors.0123abcd.{pid}.part" for pid in (ended.pid, os.getpid()))
    (folder / abandoned).write_bytes(b"half")
    (folder / in_use).write_bytes(b"half")
    cached("x", source, (), Reader(source))
    assert [name for name in cached_files() if name.startswith(".")] == [in_use]


def test_a_cache_that_cannot_be_written_is_no_error(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    reader = Reader(source)
    for _ in range(2):
        assert cached("x", source, (), reader).parts["train"].labels.tolist() == [0, 1, 0]
    assert reader.calls == 2


def test_changing_a_tensor_does_not_change_the_cache(source: Path) -> None:
    reader = Reader(source)
    cached("x", source, (), reader).parts["train"].images.fill_(0)
    assert cached("x", source, (), reader).parts["train"].images.flatten().tolist() == [97, 98, 99]


def test_a_cache_file_is_never_incomplete(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "file"
    with suppress(RuntimeError), atomic_path(file) as beside:
        beside.write_text("half")
        raise RuntimeError
    assert list(file.parent.iterdir()) == []
    with atomic_path(file) as beside:
        beside.write_text("all")
        assert not file.exists()
    assert [entry.name for entry in file.parent.iterdir()] == ["file"]
    assert file.read_text() == "all"
