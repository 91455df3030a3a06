from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from polyphony.data import DataError
from polyphony.data.archives import unpack


def tar(path: Path, *members: tarfile.TarInfo, content: bytes = b"hello") -> Path:
    with tarfile.open(path, "w:gz") as out:
        for member in members:
            member.size = len(content) if member.isfile() else 0
            out.addfile(member, io.BytesIO(content) if member.isfile() else None)
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_a_tar_unpacks_to_its_folder(root: Path, tmp_path: Path) -> None:
    folder = member("x", tarfile.DIRTYPE)
    archive = tar(tmp_path / "a.tar.gz", folder, member("x/one"), member("x/y/two"), member("aside"))
    unpack(archive, "x", root)
    assert everything(root) == ["x", "x/one", "x/y", "x/y/two"]
    assert (root / "x" / "y" / "two").read_text() == "hello"


@pytest.mark.parametrize("name", ["../out", "x/../../out", "/tmp/out", "C:\\out", "x\\..\\out"])
def test_no_path_may_escape(name: str, root: Path, tmp_path: Path) -> None:
    archive = tar(tmp_path / "bad", member("x/one"), member(name))
    before = everything(tmp_path)
    with pytest.raises(DataError, match=r"bad holds the path .* leaves its folder; do not trust"):
        unpack(archive, "x", root)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(kind: bytes, root: Path, tmp_path: Path) -> None:
    archive = tar(tmp_path / "bad.tar.gz", member("x/one"), member("x/link", kind, "/etc/passwd"))
    with pytest.raises(DataError, match=r"x/link is a link, device or sparse file"):
        unpack(archive, "x", root)
    assert everything(root) == []


def test_bombs_are_refused_and_leave_nothing(root: Path, tmp_path: Path) -> None:
    archive = tar(tmp_path / "bomb", member("x/zeros"), content=bytes(40 << 20))
    with pytest.raises(DataError, match=r"bomb unpacks to too many bytes"):
        unpack(archive, "x", root)
    assert everything(root) == []


def test_a_truncated_archive_leaves_nothing(root: Path, tmp_path: Path) -> None:
    archive = tar(tmp_path / "short", member("x/one"), content=os.urandom(100_000))
    archive.write_bytes(archive.read_bytes()[:50_000])
    with pytest.raises(DataError, match=r"short is not a valid archive"):
        unpack(archive, "x", root)
    assert everything(root) == []


def test_an_archive_without_the_folder_leaves_nothing(root: Path, tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", member("other/one"))
    with pytest.raises(DataError, match=r"a\.tar\.gz holds no folder x"):
        unpack(archive, "x", root)
    assert everything(root) == []
