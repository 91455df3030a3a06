from __future__ import annotations

import os
from pathlib import Path

import pytest

from polyphony._util import files as machine


def limited(root: Path, groups: str, **files: str) -> Path:
    """A root folder with these control groups of the process and these files of limits."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_two_writers_of_one_file_have_different_temporary_files(tmp_path):
    file = tmp_path / "scores.csv"
    with machine.atomic_path(file) as first:  # like processes with the same ID on two machines
        first.write_text("first")
        with machine.atomic_path(file) as second:
            second.write_text("second")
        assert file.read_text() == "second"
    assert file.read_text() == "first"
    assert list(tmp_path.iterdir()) == [file]


def test_the_unfinished_folder_of_a_killed_process_with_the_same_id_is_no_obstacle(tmp_path):
    killed = machine.atomic_folder(tmp_path / "packed")
    killed.__enter__()  # without an exit, as after a kill
    with machine.atomic_folder(tmp_path / "packed") as temporary:
        (temporary / "a").touch()
    assert [path.name for path in (tmp_path / "packed").iterdir()] == ["a"]


def test_memory_is_the_smallest_limit_of_the_groups(tmp_path):
    files = {
        "memory.max": "max\n",
        "job/memory.max": "3000\n",
        "job/step/memory.max": "max\n",
        "other/memory.max": "1\n",
    }
    assert machine.memory(limited(tmp_path, "0::/job/step\n", **files)) == 3000


def test_memory_in_the_older_layout(tmp_path):
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/job/memory.limit_in_bytes": "5000\n",
    }
    assert machine.memory(limited(tmp_path, "9:memory:/job\n8:pids:/\n", **files)) == 5000


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 64), ("250000 100000", 2), ("50000 100000", 1)]
)
def test_cores_are_limited_by_a_container(tmp_path, monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    assert machine.cores(limited(tmp_path, "0::/\n", **{"cpu.max": quota})) == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_cores_are_limited_by_a_scheduler():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert machine.cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_without_limits_all_memory_and_cores_are_available(tmp_path):
    assert machine.memory(tmp_path) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.cores(tmp_path) >= 1


@pytest.mark.parametrize(
    ("name", "size"), [("config.json", 3 << 30), ("a.pt", 1 << 40), ("b.safetensors", 1 << 40)]
)
def test_a_sparse_file_of_any_size_is_refused_before_it_is_opened(tmp_path, name, size):
    path = tmp_path / name
    with path.open("wb") as stream:
        stream.truncate(size)
    with pytest.raises(OSError, match=r"larger than the [0-9,]+ bytes"):
        machine.regular(path)
    with path.open("wb") as stream:
        stream.truncate(10)
    assert machine.regular(path) == path
