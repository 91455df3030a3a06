"""Fixtures of the report's tests: a small run with known numbers, and a real browser."""

from __future__ import annotations

import base64
import csv
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from polyphony.metrics import DirichletPredictions
from polyphony.runs.predictions import KIND

MEMBERS, EXTRA, CLASSES, EXAMPLES = 3, 2, 4, 120
METHODS: dict[str, dict[str, str]] = {
    "scratch": {},
    "kd": {"perturb": "clean"},
    "kd-gaussian": {"perturb": "gaussian"},
    "kd-ods": {"perturb": "ods"},
}
SEEDS = (0, 1)
SCHEDULE = {"epochs": 4, "batch": 16, "learning_rate": 0.1}


def of_form(kind: str, **settings: str) -> dict[str, Any]:
    return {"form": {"kind": kind}, **settings}


# Every kind of student that a report may have to show side by side.
MANY: dict[str, dict[str, Any]] = {
    "scratch": {},
    "kd": {"perturb": "clean"},
    "kd-gaussian": {"perturb": "gaussian"},
    "kd-ods": {"perturb": "ods"},
    "kd-confods": {"perturb": "confods"},
    "kd-adversarial": {"perturb": "adversarial"},
    "kd-ods-external": {"perturb": "ods", "source": "extra"},
    "kd-mixup": {"perturb": "mixup"},
    "kd-mixup-ods": {"perturb": "mixup+ods"},
    "mimo-ods": of_form("mimo", perturb="ods"),
    "hydra-ods": of_form("hydra", perturb="ods"),
    "one-network": of_form("single"),
    "mean-kd": of_form("single", perturb="clean"),
    "end2": of_form("dirichlet", perturb="clean"),
    "latentbe": of_form("latent_be", perturb="clean"),
    "latentbe-diversify": of_form("latent_be", perturb="diversify"),
}
VOICE = 0.2  # of students with a member for each teacher
SPREADS = {"scratch": 0.9, "kd": 0.2, "kd-gaussian": 0.25, "kd-ods": 0.6}
ONE_NETWORK = ("single", "dirichlet", "latent_be")

_START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 20) for n in sys.argv[1:3])
os.dup2(read, 3); os.dup2(write, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Chromium, controlled through its debugging pipe: JSON messages, each ended by NUL."""

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
        """Send a command and return its answer; events that arrive before it are stored in `events`."""
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
        """The value of a JavaScript expression on the open page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The full page as a PNG."""
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


class RunMaker:
    """Writes the files of run folders with known numbers, without a study."""

    def __init__(self, rng: np.random.Generator, methods: dict[str, dict[str, Any]] = METHODS) -> None:
        self.rng = rng
        self.methods = methods
        self.labels = rng.integers(CLASSES, size=EXAMPLES)

    def write(self, folder: Path, name: str = "small") -> Path:
        """A run with scores, predictions and logs, and no analysis."""
        recipe = {
            "name": name,
            "members": MEMBERS,
            "seeds": list(SEEDS),
            "data": {"name": "digits", "test": EXAMPLES},
            "teachers": {"network": {"kind": "resnet", "depth": 8, "width": 16}, "extra": EXTRA, **SCHEDULE},
            "student": SCHEDULE,
            "methods": self.methods,
        }
        facts = {
            "recipe": recipe,
            "data": {"origin": "unverified", "train": "aa", "valid": "bb", "test": "cc"},
            "versions": {"polyphony": "0.1.0"},
            "machine": {"processor": "some", "cores": 2},
        }
        folder.mkdir(parents=True)
        (folder / "recipe.json").write_text(json.dumps(facts))
        rows = self.predict_and_score(folder)
        write_csv(folder / "scores.csv", rows)
        self.write_behind_scores(folder)
        for j in range(MEMBERS + EXTRA):
            self.log(folder / "teachers" / str(j), 1, 20.0)
        for place, method in enumerate(self.methods):
            for seed in SEEDS:
                self.log(
                    folder / "students" / method / str(seed), self.members(method), 30.0 + 5 * place + seed
                )
        return folder

    def kind(self, method: str) -> str:
        return str(self.methods[method].get("form", {}).get("kind", "batch_ensemble"))

    def members(self, method: str) -> int:
        return 1 if self.kind(method) in ONE_NETWORK else MEMBERS

    def params(self, method: str) -> int:
        return {"batch_ensemble": 1100, "mimo": 1150, "hydra": 1040}.get(self.kind(method), 1000)

    def logits(self, members: int, spread: float) -> np.ndarray:
        """Logits of members that are mostly right and differ by noise of this spread. [m n k]"""
        signal = 2.5 * np.eye(CLASSES)[self.labels] + self.rng.normal(size=(EXAMPLES, CLASSES))
        noise = self.rng.normal(size=(members, EXAMPLES, CLASSES))
        return (signal + spread * noise).astype(np.float32)

    def predict_and_score(self, folder: Path) -> list[dict[str, Any]]:
        rows = []
        perturbing = [m for m, own in self.methods.items() if own.get("perturb", "clean") != "clean"]
        seen: dict[tuple[str, str], np.ndarray] = {}  # by perturbation and source
        for split in ("train", *(f"train+{method}" for method in perturbing), "valid", "test"):
            members = MEMBERS + EXTRA * (split in ("valid", "test"))
            own = self.methods.get(split.removeprefix("train+"), {"perturb": split})
            way = own["perturb"], own.get("source", "")
            logits = seen[way] = seen[way] if way in seen else self.logits(members, 1.0)
            self.save(folder, "teachers", split, logits)
            rows += self.rows("teachers", "", split, logits[:MEMBERS], params=3000)
            if split in ("valid", "test"):
                rows += self.rows("best teacher", 1, split, logits[1:2], params=1000)
        for place, method in enumerate(self.methods):
            spread = SPREADS.get(method, 0.2 + 0.05 * place)
            for seed in SEEDS:
                for split in ("valid", "test"):
                    logits = self.logits(self.members(method), spread)
                    self.save(folder, f"{method}/{seed}", split, logits, self.kind(method))
                    rows += self.rows(method, seed, split, logits, self.params(method))
        return rows

    def write_behind_scores(self, folder: Path) -> None:
        """Write the teachers' DEE curves, and temperatures between 1.5 and 2."""
        write_csv(
            folder / "analysis" / "dee.csv",
            [
                {"split": split, "calibration": kind, "size": n, "nll": nll}
                for split in ("valid", "test")
                for kind, worse in (("calibrated", 1.0), ("standard", 1.1))
                for n, nll in enumerate(curve(worse))
            ],
        )
        models = [("teachers", ""), ("best teacher", 1), *((m, s) for m in self.methods for s in SEEDS)]
        write_csv(
            folder / "analysis" / "temperatures.csv",
            [
                {"model": m, "seed": s, "temperature": 1.5 + 0.5 * place / len(models)}
                for place, (m, s) in enumerate(models)
            ],
        )

    def save(self, folder: Path, who: str, split: str, logits: np.ndarray, kind: str = "") -> None:
        path = folder / "predictions" / who / f"{split}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {KIND: DirichletPredictions.kind} if kind == "dirichlet" else None
        save_file({"logits": logits, "labels": self.labels}, path, metadata)

    def rows(
        self, model: str, seed: int | str, split: str, logits: np.ndarray, params: int
    ) -> list[dict[str, Any]]:
        mean = softmax(logits).mean(0)
        own = mean[np.arange(EXAMPLES), self.labels]
        nll = float(-np.log(own).mean())
        numbers = {
            "acc": float((mean.argmax(-1) == self.labels).mean()),
            "nll": nll,
            "bs": float(((mean - np.eye(CLASSES)[self.labels]) ** 2).sum(-1).mean()),
            "ece": 0.01,
            "dee": dee(nll, curve(1.0)) if split in ("valid", "test") else "",
            "kld": naive_kld(logits),
            "params": params,
            "voice": VOICE if model in self.methods and len(logits) == MEMBERS else "",
        }
        if model in self.methods and self.kind(model) == "dirichlet":
            numbers["kld"] = float(((CLASSES - 1) / np.exp(logits[0].astype(np.float64)).sum(-1)).mean())
        named = {"model": model, "seed": seed, "split": split}
        return [{**named, "calibration": kind, **numbers} for kind in ("standard", "calibrated")]

    def log(self, folder: Path, members: int, seconds: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        rows: list[dict[str, float]] = [
            {"epoch": e, "valid_nll": (2.0 + seconds / 100) / (e + 1), "valid_acc": e / 5} for e in range(4)
        ]
        if members > 1:
            rows = [row | {"valid_kld": seconds / 100 / (1 + row["epoch"])} for row in rows]
        (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "done.json").write_text(json.dumps({"seconds": seconds}))

    def analyse(self, folder: Path) -> Path:
        """Add the files of all analyses and of evaluations on other data."""
        self.save(folder, "teachers", "train+external", self.logits(MEMBERS, 1.5))
        self.save(folder, "teachers", "ood-svhn", self.logits(MEMBERS, 3.0) / 4)
        for method in self.methods:
            for seed in SEEDS:
                unknown = self.logits(self.members(method), 2.0) / 4
                self.save(folder, f"{method}/{seed}", "ood-svhn", unknown, self.kind(method))
        analysis = folder / "analysis"
        centres = {m: 0.1 if not own.get("perturb") else 0.3 for m, own in self.methods.items()}
        centres |= {m: 0.5 for m, own in self.methods.items() if "ods" in own.get("perturb", "")}
        write_csv(
            analysis / "jacobians.csv",
            [
                {"split": split, "model": m, "seed": 0, "member": j, "example": i, "cosine": cosine}
                for split in ("train", "valid")
                for m in self.methods
                if self.members(m) > 1
                for j in range(MEMBERS)
                for i, cosine in enumerate(self.rng.normal(centres[m], 0.15, 20).round(3))
            ],
        )
        steps = [(k, 2.0**p / 255) for k in ("gaussian", "ods") for p in range(-1, 4)]
        write_csv(
            analysis / "snr.csv",
            [
                {"perturbation": k, "step_size": s, "snr": s * (90 if k == "ods" else 20), "samples": 64}
                for k, s in steps
            ],
        )
        models = [("teachers", ""), *((m, s) for m in self.methods for s in SEEDS)]
        write_csv(
            analysis / "latency.csv",
            [
                {"model": m, "params": 1100, "milliseconds": batch * ms, "batch": batch, "threads": 1,
                 "bytes": int(5000 * ms), "runtime": "onnxruntime 1.31.1", "machine": "some"}
                for batch in (1, 64)
                for m, ms in (("teachers", 3), ("best teacher", 1), *((m, 1.2) for m in self.methods))
            ],
        )  # fmt: skip
        write_csv(
            analysis / "ood.csv",
            [
                {"model": m, "seed": s, "unknown": "svhn", "score": score, "auroc": 0.8, "aupr": 0.7,
                 "fpr95": 0.5, "known_entropy": 0.3, "unknown_entropy": 1.1}
                for m, s in models
                for score in ("entropy", "mutual_information", "doubt")
            ],
        )  # fmt: skip
        write_csv(
            analysis / "corrupted.csv",
            [
                {"model": m, "seed": s, "data": "digits-c", "corruption": kind, "severity": severity,
                 "acc": 0.9 - 0.1 * severity, "nll": 0.2 * severity + 0.1 * place + 0.01 * (s or 0),
                 "bs": 0.1, "ece": 0.02 * severity + 0.01 * place}
                for m, s in models
                for place, kind in enumerate(("fog", "blur", "noise"))
                for severity in (1, 2, 3)
            ],
        )  # fmt: skip
        tensors = {
            "images": self.rng.integers(0, 255, (5, 1, 8, 8), dtype=np.uint8),
            "perturbed": self.rng.integers(0, 255, (5, 1, 8, 8), dtype=np.uint8),
            "teachers": self.probabilities(MEMBERS, 3.0),
        }
        tensors |= {f"students.{m}": self.probabilities(self.members(m), 1.0) for m in self.methods}
        save_file(tensors, analysis / "members.safetensors")
        return folder

    def probabilities(self, members: int, scale: float) -> np.ndarray:
        """Members on five images and on five perturbed ones. [2 m 5 k]"""
        return softmax(scale * self.rng.normal(size=(2, members, 5, CLASSES))).astype(np.float32)


def curve(worse: float) -> list[float]:
    """The NLL of 0, 1, 2, … teachers: each teacher lowers it by a quarter."""
    return [math.log(CLASSES) * worse * 0.75**n for n in range(MEMBERS + EXTRA + 1)]


def dee(nll: float, curve: list[float]) -> float:
    """The interpolated place where a falling curve has this NLL; infinite past its end."""
    places = np.linspace(0, len(curve) - 1, 100_001)
    below = np.interp(places, range(len(curve)), curve) <= nll
    return float(places[below.argmax()]) if below.any() else math.inf


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def naive_kld(logits: np.ndarray) -> float:
    """Mean over examples and ordered pairs of KL(p_j ‖ p_i), pair by pair; 0 where there are none."""
    probs = softmax(logits)
    pairs = [(i, j) for i in range(len(probs)) for j in range(len(probs)) if i != j]
    if not pairs:
        return 0.0
    return float(np.mean([(probs[j] * np.log(probs[j] / probs[i])).sum(-1).mean() for i, j in pairs]))


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def with_scores(folder: Path, change: Callable[[dict[str, str]], dict[str, Any]]) -> Path:
    """Change scores.csv of a run: `change` returns the new cells of a row."""
    with (folder / "scores.csv").open(newline="") as file:
        rows = [row | change(row) for row in csv.DictReader(file)]
    write_csv(folder / "scores.csv", rows)
    return folder


@pytest.fixture
def rescored() -> Callable[..., Path]:
    """`with_scores` for tests."""
    return with_scores


@pytest.fixture
def maker() -> RunMaker:
    return RunMaker(np.random.default_rng(0))


@pytest.fixture(scope="session")
def reported(made_once: Callable[..., Path]) -> Path:
    """A run with every analysis, and its report; tests must not change it."""

    def make(folder: Path) -> None:
        from polyphony.report import write_report

        maker = RunMaker(np.random.default_rng(0))
        write_report([maker.analyse(maker.write(folder / "full", "full"))])

    return made_once("reported", make) / "full"


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of sixteen methods with every analysis; tests must not change it."""
    maker = RunMaker(np.random.default_rng(1), MANY)
    return maker.analyse(maker.write(tmp_path_factory.mktemp("many") / "many", "many"))


@pytest.fixture
def small_run(maker: RunMaker, tmp_path: Path) -> Path:
    """A run without analyses."""
    return maker.write(tmp_path / "small")


@pytest.fixture
def full_run(maker: RunMaker, tmp_path: Path) -> Path:
    """A run with every analysis."""
    return maker.analyse(maker.write(tmp_path / "full", "full"))
