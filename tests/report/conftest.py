"""What the report's tests share: a small run made of known numbers, and a real browser."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 20) for n in sys.argv[1:3])
os.dup2(read, 3); os.dup2(write, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Chromium, spoken to through its debugging pipe: one JSON message after another, each ended by NUL."""

    def __init__(self, program: str, profile: Path) -> None:
        to_read, self.commands = os.pipe()
        self.answers, to_write = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        options += ["--disable-background-networking", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
        command = [program, *options, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, str(to_read), str(to_write), *command],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.buffer = b""
        self.number = 0
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; what happens meanwhile is kept in `events`."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next_message()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def next_message(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            block = os.read(self.answers, 1 << 20)
            assert block, "the browser went away"
            self.buffer += block
        message, self.buffer = self.buffer.split(b"\0", 1)
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.ask(method, self.session, **parameters)

    def open(self, page: Path, width: int, scheme: str) -> None:
        """Load a page from disk at a width, in "light" or "dark"."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.next_message())

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives on the open page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        os.close(self.commands)
        os.close(self.answers)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("there is no chromium on this machine (Debian: apt-get install chromium)")
    browser = Browser(program, tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()
