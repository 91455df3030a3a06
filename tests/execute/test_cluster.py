"""Jobs on a Ray cluster on this machine: real nodes, killed where they stand; GPUs are only counted."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

import polyphony as package
from polyphony._util.files import Terminated
from polyphony.compute.parallel import GoneError
from polyphony.execute.board import Board, Started
from polyphony.execute.cluster import GIB, Cluster, ClusterError, LostError, Place, Share, compare, run_task
from polyphony.execute.job import Graph
from polyphony.execute.processes import WorkerLostError
from polyphony.recipe import read_recipe
from polyphony.study.run import run_study
from polyphony.study.study import Study
from polyphony.training.tally import DivergedError

pytest.importorskip("ray", reason="a cluster needs Ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")
PATIENCE = 900.0  # seconds for what takes a few, on a machine that is busy
EPOCHS = 8  # of which six steps are two or three: there a training waits for the one who kills it
TRIES = 3
os.environ.setdefault("RAY_health_check_period_ms", "500")  # not three seconds: a lost node is missed sooner
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # no process for jobs that do not come
RECIPE = f"""
members = 2
seeds = [0]
data = {{ name = "stripes.npz", valid = 12, test = 12 }}
methods = {{ kd-ods = {{ perturb = "ods" }} }}
[teachers]
network = {{ kind = "python", name = "own:network" }}
epochs = {EPOCHS}
batch = 25
learning_rate = 0.1
[student]
network = {{ kind = "resnet", depth = 8, width = 2 }}
epochs = 2
batch = 25
learning_rate = 0.1
"""
OWN = """
import os
import time
from pathlib import Path
from torch import nn

class Network(nn.Sequential):
    steps = 0

    def forward(self, x):
        self.steps += self.training
        while self.steps > 6 and Path("hold").exists():
            Path(f"held-{os.getpid()}").touch()
            time.sleep(0.05)
        return super().forward(x)

def network(classes, channels):
    return Network(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, classes))
"""


@contextmanager
def clusters() -> Iterator[Callable[..., Any]]:
    """Start clusters of some nodes, which end in the end."""
    paths = [Path(package.__file__).parents[1], Path(__file__).parent]  # modules that jobs need
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield partial(started, stack)


@pytest.fixture
def nodes() -> Iterator[Callable[..., Any]]:
    """Start a cluster of some nodes, which ends with the test."""
    with clusters() as start:
        yield start


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where there is a cluster of one node that says it has two GPUs, for several tests.

    Its memory has room for one job of the usual size: every process of Ray's has to import PyTorch.
    """
    with clusters() as start:
        yield start({"num_cpus": 3, "num_gpus": 2, "memory": 3 * GIB}).address


def started(stack: ExitStack, *resources: dict[str, int]) -> Any:
    """A cluster of nodes with these resources; Ray gives a node 30 s to start, which a busy machine takes."""
    for _ in range(TRIES):
        cluster = cluster_utils.Cluster()
        stack.callback(cluster.shutdown)
        try:
            for each in resources:
                cluster.add_node(include_dashboard=False, include_log_monitor=False, **each)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            cluster.shutdown()
        else:
            return cluster
    return pytest.skip("Ray's nodes do not start in their time: the machine is too busy")


def logged(run: Path) -> dict[str, int]:
    """The number of logged epochs, by teacher."""
    return {path.parent.name: len(path.read_text().splitlines()) for path in run.glob("teachers/*/log.jsonl")}


def held() -> list[Path]:
    """A file of each training that was held, which is touched as long as it is."""
    return list(Path().glob("held-*"))


def wait_for_one_to_end() -> None:
    """Until one training at most is held: the other's process outlives its node by a moment."""
    deadline, waiting = time.monotonic() + PATIENCE, 2
    while waiting > 1 and time.monotonic() < deadline:
        time.sleep(1.0)
        waiting = sum(time.time() - path.stat().st_mtime < 1.0 for path in held())


@dataclass
class Killing(Board):
    """A board that removes a node once both teachers train, and remembers what it heard."""

    remove: Callable[[], object]
    first: dict[str, int] = field(default_factory=dict)  # teacher → the first epoch that was reported
    lost: set[str] = field(default_factory=set)

    def epoch(self, name: str, row: dict[str, float]) -> None:
        kind, _, number = name.partition(" ")
        if kind == "teacher" and number not in self.first:
            self.first[number] = int(row["epoch"])
            if len(self.first) == 2:
                self.remove()
                wait_for_one_to_end()
                Path("hold").unlink()

    def warn(self, name: str, sentence: str) -> None:
        if "lost" in sentence:
            self.lost.add(name)


def test_a_study_with_a_killed_driver_and_a_killed_node_has_the_files_of_an_undisturbed_one(
    stripes, nodes, here, quiet, files, program
):
    Path("own.py").write_text(OWN)
    Path("small.toml").write_text(RECIPE)
    study = Study(read_recipe("small.toml"), stripes / "alone" / "run")
    run_study(study, here, quiet)
    killed = replace(study, folder=stripes / "killed" / "run")
    killed.folder.mkdir(parents=True)  # where there is one, what it will cost is not measured
    cluster = nodes({"num_cpus": 1}, {"num_cpus": 1})

    Path("hold").touch()
    command = [*program, "study", "small.toml", "--out", killed.folder, "--cluster", cluster.address]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        deadline = time.monotonic() + PATIENCE
        while len(held()) < 2 and driver.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        driver.kill()
    saved = logged(killed.folder)
    assert len(saved) == 2
    assert max(saved.values()) < EPOCHS

    board = Killing(lambda: cluster.remove_node(*cluster.worker_nodes, allow_graceful=False))
    with Cluster(cluster.address, killed.folder, Share(cpus=1)) as runner:
        assert runner.at_once == 2
        run_study(killed, runner, board)
    assert all(board.first[teacher] >= epochs for teacher, epochs in saved.items())  # none was done again
    assert len(board.lost) == 1
    assert files(killed.folder) == files(study.folder)
    for log in killed.folder.glob("teachers/*/log.jsonl"):
        assert [json.loads(row)["epoch"] for row in log.read_text().splitlines()] == list(range(EPOCHS))


@dataclass(frozen=True)
class OnGpu:
    """A job that says which GPU it was given, once so many are there; `alone`, it fails if that is taken."""

    name: str
    folder: Path
    together: int = 1
    alone: bool = False
    epochs: int = 1
    needs: tuple[str, ...] = ()
    in_ranks: bool = False

    def is_done(self) -> bool:
        return False

    def run(self, watch: object) -> None:
        gpu = os.environ["CUDA_VISIBLE_DEVICES"]
        taken = self.folder / f"taken {gpu}"
        taken.touch(exist_ok=not self.alone)
        (self.folder / self.name).write_text(gpu)
        deadline = time.monotonic() + PATIENCE
        while len(list(self.folder.glob("job *"))) < self.together:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        taken.unlink(missing_ok=True)
        watch.epoch({})


@dataclass(frozen=True)
class Failing(OnGpu):
    """A job that fails so many times, and keeps count; its process is killed, or it diverges."""

    times: int = 1
    killed: bool = True

    def run(self, watch: object) -> None:
        with (self.folder / self.name).open("a") as tries:
            tries.write("x")
        if len((self.folder / self.name).read_text()) > self.times:
            return
        if not self.killed:
            raise DivergedError("the loss is not a number")
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Heard(Board):
    """A board that records its reports in order."""

    events: list[tuple[str, str]] = field(default_factory=list)

    def started(self, name: str, epochs: int) -> None:
        self.events.append(("started", name))

    def epoch(self, name: str, row: object) -> None:
        self.events.append(("epoch", name))

    def warn(self, name: str, sentence: str) -> None:
        self.events.append(("warn", name))

    def finished(self, name: str) -> None:
        self.events.append(("finished", name))


def test_jobs_share_a_gpu_only_on_request_and_lost_jobs_run_again(address, tmp_path, monkeypatch):
    board = Heard()
    whole, half, both = (tmp_path / name for name in ("whole", "half", "both"))
    for folder in (whole, half, both):
        folder.mkdir()
    with Cluster(address, tmp_path, Share(cpus=1, gpus=1, memory=0.5)) as runner:
        assert runner.at_once == 2
        runner.run(Graph([OnGpu(f"job {k}", whole, 2, alone=True) for k in range(3)]), board)
        assert {path.read_text() for path in whole.glob("job *")} == {"0", "1"}
        for name in ("job 0", "job 1", "job 2"):
            reports = [what for what, who in board.events if who == name]
            assert reports == ["started", "epoch", "finished"]

        runner.share = Share(cpus=2, gpus=2, memory=0.5, processes=2)
        assert runner.at_once == 1
        runner.run(Graph([OnGpu("job 0", both)]), board)
        assert (both / "job 0").read_text() == "0,1"

        runner.share = Share(cpus=1, gpus=0.5, memory=0.5)
        assert runner.at_once == 3  # by its CPUs
        with pytest.raises(FileExistsError):  # of two that share one, which would be noticed above, too
            runner.run(Graph([OnGpu(f"job {k}", half, 3, alone=True) for k in range(3)]), board)
        board.events.clear()
        runner.share = Share(cpus=1, memory=0.5)
        runner.run(Graph([Failing("lost once", half)]), board)
        assert [what for what, _ in board.events] == ["started", "warn", "finished"]
        with pytest.raises(DivergedError, match="not a number"):
            runner.run(Graph([Failing("diverging", half, killed=False)]), board)
        assert (half / "diverging").read_text() == "x"
        monkeypatch.setattr("polyphony.execute.cluster.RETRIES", 0)
        with pytest.raises(LostError, match="lost always was lost 1 times"):
            runner.run(Graph([Failing("lost always", half, times=9)]), board)


def test_a_job_that_begins_too_often_stops_the_study(tmp_path):
    runner, board = Cluster("auto", tmp_path, Share(cpus=1)), Heard()
    graph = Graph([OnGpu("job", tmp_path)])
    graph.next()
    begun = [Started("job", 1)]
    runner._mailbox = SimpleNamespace(size=lambda: 1, get_nowait_batch=lambda size: begun)
    for _ in range(4):
        runner._forward_reports(graph, board)
    assert [what for what, _ in board.events] == ["started", "warn", "warn", "warn"]
    with pytest.raises(LostError, match="job was lost 4 times"):
        runner._forward_reports(graph, board)


class EndedError(Exception):
    """This process would have ended."""


@pytest.mark.parametrize("lost", [WorkerLostError, GoneError, Terminated])
def test_a_job_with_a_lost_or_terminated_process_exits_to_be_retried(tmp_path, monkeypatch, lost):
    monkeypatch.setattr("polyphony.execute.cluster.run_in_ranks", mock.Mock(side_effect=lost))
    monkeypatch.setattr(Place, "apply", lambda place: None)
    monkeypatch.setattr("os._exit", mock.Mock(side_effect=EndedError))
    with pytest.raises(EndedError):
        run_task(pickle.dumps(OnGpu("job", tmp_path, in_ranks=True)), Place(tmp_path, {}, 2, "cpu", 2), None)
    os._exit.assert_called_once_with(1)


RESNET = 'kind = "resnet", depth = 8, width = 2'
SMALL = f"""
members = 2
data = {{ name = "stripes.npz", valid = 12, test = 12 }}
methods = {{ kd-ods = {{ perturb = "ods" }} }}
[teachers]
network = {{ {RESNET} }}
epochs = 2
batch = 25
learning_rate = 0.1
[student]
epochs = 1
batch = 25
learning_rate = 0.1
"""


@pytest.fixture
def connected(address: str) -> Iterator[str]:
    """The address of a cluster to which this process is connected already, and stays so."""
    import ray

    ray.init(address=address, log_to_driver=False, configure_logging=False)
    yield address
    assert ray.is_initialized()
    ray.shutdown()


def test_every_command_writes_the_same_files_on_a_cluster(connected, stripes, say, files, refused):
    refused(say("teach", "digits", "--cluster", "127.0.0.1:1"), f"the Ray cluster at '{connected}', not")
    Path("small.toml").write_text(SMALL)
    for where, there in (("here", ("--workers", "1")), ("cluster", ("--cluster", connected))):
        run, sweep = Path(where, "run"), Path(where, "sweep")
        run.mkdir(parents=True)  # where there is a folder, what it will cost is not measured
        sweep.mkdir()
        for command in (
            ("distill", "small.toml", "--out", run),
            ("evaluate", run),
            ("analyse", run, "jacobians", "factors", "--examples", "3"),
            ("sweep", "small.toml", "--alpha", "0.5", "--out", sweep),
        ):
            answer = say(*command, *there)
            assert answer.code == 0, answer.err
    results = files(Path("cluster"))
    assert results == files(Path("here"))
    names = {Path(name).name for name in results}
    assert {"scores.csv", "jacobians.csv", "factors.csv", "sweep.csv"} <= names


LOSING = """
import os
from pathlib import Path
from torch import nn

class Network(nn.Sequential):
    def forward(self, x):
        if os.environ.get("RANK") == "1" and not Path("lost").exists():
            Path("lost").touch()
            os._exit(9)
        return super().forward(x)

def network(classes, channels):
    layers = (nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return Network(*layers, nn.Linear(64, classes))
"""


def test_two_processes_on_a_cluster_train_as_one_even_if_one_is_lost(address, stripes, say):
    Path("own.py").write_text(LOSING)
    Path("small.toml").write_text(SMALL.replace(RESNET, 'kind = "python", name = "own:network"'))
    for where, there in (
        ("here", ("--workers", "1")),
        ("cluster", ("--cluster", address, "--processes-per-job", "2")),
    ):
        run = Path(where, "run")
        run.mkdir(parents=True)
        said = say("teach", "small.toml", "--set", "members=1", "--out", run, *there)
        assert said.code == 0, said.err
    assert Path("lost").exists()
    one, two = (Path(where, "run", "teachers", "0") for where in ("here", "cluster"))
    assert json.loads((two / "done.json").read_text())["machine"]["processes"] == 2
    theirs = load_file(two / "weights.safetensors")
    for name, weight in load_file(one / "weights.safetensors").items():
        torch.testing.assert_close(theirs[name], weight, rtol=1e-3, atol=1e-4)


def test_a_share_fits_only_if_all_its_resources_fit():
    node = {"CPU": 8.0, "GPU": 2.0, "memory": 16.0 * GIB, "object_store_memory": 1.0}
    assert Share(1, 0, 1).room(node) == 8
    assert Share(1, 0.5, 1).room(node) == 4
    assert Share(1, 0.5, 8).room(node) == 2
    assert Share(1, 0.2, 1).room({"CPU": 64.0, "GPU": 1.0, "memory": 64.0 * GIB}) == 5  # 1.0 // 0.2 is 4
    assert Share(1, 0.3, 1).room(node) == 6
    assert Share(16).room(node) == 0
    assert Share(1, 1, 1).room({"CPU": 8.0, "memory": 16.0 * GIB}) == 0


def test_a_cluster_without_nodes_runs_one_job_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("polyphony.execute.cluster.nodes", list)
    assert Cluster("auto", tmp_path, Share(1)).at_once == 1  # of which an estimate and a search make use


def test_a_node_that_differs_is_named():
    here = {"folder": "True", "Polyphony": "0.1.0 (abc)", "Python": "3.11.7", "Ray": "2.60.0"}
    compare("n1", here, dict(here), Path("run"))
    with pytest.raises(ClusterError, match=r"node n1 does not see run: .* all nodes share"):
        compare("n1", here, here | {"folder": "False", "Ray": "1"}, Path("run"))
    with pytest.raises(ClusterError, match=r"node n1 has Python 3\.12\.1, and this process has 3\.11\.7"):
        compare("n1", here, here | {"Python": "3.12.1"}, Path("run"))


def test_no_cluster_and_no_ray_are_one_sentence(say, refused, monkeypatch):
    refused(say("teach", "digits", "--cluster", "127.0.0.1:1"), "no Ray cluster at '127.0.0.1:1'")
    local = ("teach", "digits", "--cluster", "local")
    refused(say(*local, "--workers", "2"), "leave out --workers")
    refused(say(*local, "--gpus-per-job", "1.5"), "a fraction below 1, or an integer")
    refused(say(*local, "--gpus-per-job", "2", "--processes-per-job", "3"), "every process uses one GPU")
    refused(say("teach", "digits", "--processes-per-job", "2"), "torchrun --nproc-per-node 2")
    monkeypatch.setattr("polyphony.execute.cluster.find_spec", lambda name: None)
    refused(say(*local), "pip install '.[cluster]'")
    assert not Path("runs").exists()
