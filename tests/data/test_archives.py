from __future__ import annotations

import io
import os
import tarfile
import zipfile
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


def zipped(path: Path, *names: str, content: bytes = b"hello") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name in names:
            out.writestr(name, content)
    return path


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_tar_and_a_zip_unpack_to_the_same(tmp_path: Path) -> None:
    tar(
        tmp_path / "a.tar.gz",
        member("x", tarfile.DIRTYPE),
        member("x/one"),
        member("x/y/two"),
        member("aside"),
    )
    zipped(tmp_path / "a.zip", "x/one", "x/y/two", "aside")
    for name in ("a.tar.gz", "a.zip"):
        root = tmp_path / f"root-{name}"
        unpack(tmp_path / name, "x", root)
        assert everything(root) == ["x", "x/one", "x/y", "x/y/two"]
        assert (root / "x" / "y" / "two").read_text() == "hello"


@pytest.mark.parametrize("name", ["../out", "x/../../out", "/tmp/out", "C:\\out", "x\\..\\out"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_no_path_may_escape(kind: str, name: str, tmp_path: Path) -> None:
    if kind == "tar":
        archive = tar(tmp_path / "bad", member("x/one"), member(name))
    else:
        archive = zipped(tmp_path / "bad", "x/one", name)
    before = everything(tmp_path)
    with pytest.raises(DataError, match=r"bad holds the path .* leaves its folder; do not trust"):
        unpack(archive, "x", tmp_path / "root")
    assert everything(tmp_path) == [*before, "root"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(kind: bytes, tmp_path: Path) -> None:
    archive = tar(tmp_path / "bad.tar.gz", member("x/one"), member("x/link", kind, "/etc/passwd"))
    with pytest.raises(DataError, match=r"x/link is a link, device or sparse file"):
        unpack(archive, "x", tmp_path / "root")
    assert everything(tmp_path / "root") == []


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_bombs_are_refused_and_leave_nothing(kind: str, tmp_path: Path) -> None:
    content = bytes(40 << 20)
    if kind == "tar":
        archive = tar(tmp_path / "bomb", member("x/zeros"), content=content)
    else:
        archive = zipped(tmp_path / "bomb", "x/zeros", content=content)
    with pytest.raises(DataError, match=r"bomb unpacks .*out of proportion"):
        unpack(archive, "x", tmp_path / "root")
    assert everything(tmp_path / "root") == []


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_truncated_archive_leaves_nothing(kind: str, tmp_path: Path) -> None:
    content = os.urandom(100_000)
    archive = (
        tar(tmp_path / "short", member("x/one"), content=content)
        if kind == "tar"
        else zipped(tmp_path / "short", "x/one", content=content)
    )
    archive.write_bytes(archive.read_bytes()[:50_000])
    with pytest.raises(DataError, match=r"short is not a valid archive"):
        unpack(archive, "x", tmp_path / "root")
    assert everything(tmp_path / "root") == []


def test_a_zip_with_a_damaged_file_leaves_nothing(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "bad.zip", "x/one", content=os.urandom(10_000))
    content = bytearray(archive.read_bytes())
    content[5_000] ^= 255
    archive.write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.zip is not a valid archive"):
        unpack(archive, "x", tmp_path / "root")
    assert everything(tmp_path / "root") == []


def test_an_archive_without_the_folder_and_a_folder_already_there(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", "other/one")
    with pytest.raises(DataError, match=r"a\.zip holds no folder x"):
        unpack(archive, "x", tmp_path / "root")
    (tmp_path / "root" / "other").mkdir()
    with pytest.raises(DataError, match="other is there already"):
        unpack(archive, "other", tmp_path / "root")
