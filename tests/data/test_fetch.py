from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from polyphony.data import DataError
from polyphony.data.dataset import Download
from polyphony.data.fetch import fetch

CONTENT = os.urandom(700_000)


class Server:
    """Serves `content`, optionally breaking off, and remembers the ranges it was asked for."""

    def __init__(self) -> None:
        self.content, self.stop_after, self.ranges = CONTENT, None, []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wanted = self.headers.get("Range")
                server.ranges.append(wanted)
                start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
                body = server.content[start:]
                self.send_response(206 if wanted else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: server.stop_after])

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/file"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def download(url: str, content: bytes = CONTENT, unpacked: str | None = None) -> Download:
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return Download(url, "sub/file.tar" if unpacked else "sub/file", md5, len(content), unpacked)


def files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_a_file_is_fetched_once(server: Server, root: Path) -> None:
    progress: list[int] = []
    path = fetch(download(server.url), root, progress.append)
    assert path.read_bytes() == CONTENT
    assert progress == sorted(progress)
    assert progress[-1] == len(CONTENT)
    fetch(download(server.url), root, progress.append)
    assert server.ranges == [None]
    assert files(root) == ["sub/file"]


def test_an_interrupted_download_is_resumed(server: Server, root: Path) -> None:
    server.stop_after = 300_000
    with pytest.raises(DataError, match="stopped at 300,000 of 700,000 bytes; run again"):
        fetch(download(server.url), root, lambda have: None)
    assert files(root) == ["sub/file.part"]
    server.stop_after = None
    assert fetch(download(server.url), root, lambda have: None).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-"]


def test_a_second_process_is_rejected_during_a_download(server: Server, root: Path) -> None:
    refused: list[int] = []

    def fetch_again(have: int) -> None:
        with pytest.raises(DataError, match=r"another process downloads .*sub/file; run again"):
            fetch(download(server.url), root, lambda have: None)
        refused.append(have)

    assert fetch(download(server.url), root, fetch_again).read_bytes() == CONTENT
    assert refused
    assert server.ranges == [None]
    assert files(root) == ["sub/file"]


def test_the_lock_of_a_killed_download_does_not_block_the_next(server: Server, root: Path) -> None:
    again = download(server.url)
    killed = f"""
import os
from pathlib import Path
from polyphony.data.dataset import Download
from polyphony.data.fetch import fetch
fetch({again!r}, Path({str(root)!r}), lambda have: os.kill(os.getpid(), 9) if have > 300_000 else None)
"""
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -9
    assert "sub/file" not in files(root)
    assert fetch(again, root, lambda have: None).read_bytes() == CONTENT
    assert files(root) == ["sub/file"]


@pytest.mark.parametrize("content", [CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]), CONTENT + b"more" * 100_000])
def test_another_file_than_the_official_one_is_removed(content: bytes, server: Server, root: Path) -> None:
    server.content = content
    with pytest.raises(DataError, match="is not the official file"):
        fetch(download(server.url), root, lambda have: None)
    assert files(root) == []


def test_a_downloaded_archive_is_unpacked_and_removed(server: Server, root: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as out:
        info = tarfile.TarInfo("things/a")
        info.size = 5
        out.addfile(info, io.BytesIO(b"hello"))
    server.content = stream.getvalue()
    fetch(download(server.url, server.content, "things"), root, lambda have: None)
    assert files(root) == ["things/a"]


def test_the_users_copy_of_an_archive_is_checked_and_not_removed(root: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as out:
        out.addfile(tarfile.TarInfo("things/a"))
    (root / "sub").mkdir()
    (root / "sub" / "file.tar").write_bytes(b"another file")
    wanted = download("http://127.0.0.1:9/never-asked", stream.getvalue(), "things")
    with pytest.raises(DataError, match=r"sub/file\.tar is not the official file"):
        fetch(wanted, root, lambda have: None)
    (root / "sub" / "file.tar").write_bytes(stream.getvalue())
    fetch(wanted, root, lambda have: None)
    assert files(root) == ["sub/file.tar", "things/a"]


def test_without_network_the_error_says_what_to_put_where(root: Path) -> None:
    gone = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    url = f"http://127.0.0.1:{gone.server_port}/file"
    gone.server_close()
    with pytest.raises(DataError, match=rf"cannot download \(.*\): get {url} and put it at .*sub/file$"):
        fetch(download(url), root, lambda have: None)
    assert list(root.iterdir()) == []
