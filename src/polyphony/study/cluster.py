"""Run jobs on a Ray cluster, as tasks; what they report reaches one board in this process.

A task whose worker or node is lost is given to another, which goes on from the last whole epoch. What a job
itself raises is not tried again: it stops all others and is raised here.
"""

from __future__ import annotations

import os
import pickle
import secrets
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Self

import torch

from polyphony.devices import choose_device
from polyphony.study.processes import LOOK_SECONDS, sendable
from polyphony.study.runner import Board, Event, Graph, JobError, Relay, run_job
from polyphony.words import SentenceError, first_line

RETRIES = 3  # of a job whose worker or node was lost
CONNECT_SECONDS = 5.0  # Ray itself would try for many minutes
CHECK_SECONDS = 600.0  # for every node to say what it has
GIB = 2**30
SMALL_STORE = 100 * 2**20  # bytes in which a cluster of one's own passes objects on: ours are small
CARRIED = ("POLYPHONY_DATA", "XDG_DATA_HOME", "XDG_CACHE_HOME")  # variables that say where data lies


class ClusterError(SentenceError, RuntimeError):
    """A cluster cannot be used as it is; the message says why."""


class LostError(JobError):
    """A job's worker or node was lost too often."""


@dataclass(frozen=True)
class Share:
    """What a job takes of its node: CPUs, which are its threads, GPUs, and GiB of memory."""

    cpus: int
    gpus: float = 0.0
    memory: float = 1.0

    def __str__(self) -> str:
        return f"{self.cpus} CPU, {self.gpus:g} GPU and {self.memory:g} GiB of memory"

    def room(self, resources: Mapping[str, float]) -> int:
        """How many such jobs a node has room for."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory * GIB}
        return int(min(resources.get(name, 0.0) // amount for name, amount in wanted.items() if amount))


@dataclass(frozen=True)
class Place:
    """What a job finds where this process runs, and is to find where Ray runs it."""

    folder: Path
    variables: Mapping[str, str]
    threads: int
    device: str

    def take(self) -> None:
        """Make this process such a place; raises where there is no such device."""
        if self.folder.is_dir():
            os.chdir(self.folder)
        os.environ.update(self.variables)
        torch.set_num_threads(self.threads)
        try:
            choose_device(self.device)
        except ValueError as error:
            raise ClusterError(f"node {socket.gethostname()}: {error}") from error


@dataclass
class Cluster:
    """Jobs on the Ray cluster at an address: HOST:PORT; "auto": this machine's; "local": one of its own.

    Every node must see the folder of the results, and have the same Polyphony, Python and Ray.
    """

    address: str
    folder: Path
    share: Share
    device: str = "cpu"
    _begun: set[str] = field(default_factory=set)  # names of jobs that the board knows of
    _is_checked: bool = False

    def __enter__(self) -> Self:
        self._ray = connect(self.address)
        from ray.util.queue import Queue

        if not self.at_once:
            self._ray.shutdown()
            raise ClusterError(f"no node of the cluster has room for a job: {self.share}")
        here = self._ray.get_runtime_context().get_node_id()
        self._mailbox = Queue(actor_options={"num_cpus": 0} | on_node(here))
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    @property
    def at_once(self) -> int:
        """How many jobs the nodes that are there have room for."""
        return sum(self.share.room(node["Resources"]) for node in nodes())

    def run(self, graph: Graph, board: Board) -> None:
        """Run a graph's jobs, each where there is room; the first failure stops them all and is raised."""
        if not self._is_checked:
            check_nodes(self._ray, self.folder)
            self._is_checked = True
        running: dict[Any, str] = {}  # task → name of its job
        self._begun.clear()
        try:
            while graph.left():
                running |= self._start_jobs(graph)
                ended, _ = self._ray.wait(list(running), timeout=LOOK_SECONDS)
                self._pass_on(graph, board)
                for task in ended:
                    self._finish(task, running.pop(task), graph, board)
        except self._ray.exceptions.RayError as lost:
            raise LostError(f"the cluster does not answer ({first_line(lost)})") from lost
        finally:
            for task in running:  # at the end there are none
                self._ray.cancel(task, force=True)

    def _start_jobs(self, graph: Graph) -> dict[Any, str]:
        """Hand Ray all jobs that can be started; it keeps those for which there is no room yet."""
        variables = {name: os.environ[name] for name in CARRIED if name in os.environ}
        place = Place(Path.cwd(), variables, self.share.cpus, self.device)
        task = self._ray.remote(run_there).options(
            num_cpus=self.share.cpus,
            num_gpus=self.share.gpus,
            memory=int(self.share.memory * GIB),
            max_retries=RETRIES,
            retry_exceptions=False,
            scheduling_strategy="SPREAD",
        )
        started = {}
        while (job := graph.next()) is not None:
            started[task.remote(pickle.dumps(job), place, self._mailbox)] = job.name
        return started

    def _pass_on(self, graph: Graph, board: Board) -> None:
        """Tell the board what jobs have sent; one that begins again was lost with its worker."""
        for what, name, *details in self._mailbox.get_nowait_batch(self._mailbox.size()):
            if name not in graph.running:  # done, by another than this one, which was taken for lost
                continue
            if what == "started" and name in self._begun:
                board.warn(name, "its worker or node was lost: another goes on from its last whole epoch")
            else:
                self._begun.add(name)
                getattr(board, what)(name, *details)

    def _finish(self, task: Any, name: str, graph: Graph, board: Board) -> None:
        """A task has ended: raise what made its job fail, or say that it is done."""
        try:
            error: Exception | None = self._ray.get(task)
        except self._ray.exceptions.RayError as lost:
            raise LostError(f"{name} was lost {RETRIES + 1} times ({first_line(lost)})") from lost
        if error is not None:
            raise error
        board.finished(name)
        graph.finish(name)


def run_there(packed: bytes, place: Place, mailbox: Any) -> Exception | None:
    """A task: one job from start to end, unless a lost worker has ended it; returned is why it failed."""
    import ray

    sent: list[Any] = []

    def send(event: Event) -> None:
        if event[0] != "finished":  # which the task's own end says
            sent[:] = [mailbox.actor.put_nowait.remote(event)]
        if event[0] == "started":  # must arrive, since a second one says that the first was lost
            ray.get(sent)

    try:
        place.take()  # before the job, which may hold what lies in the folder
        job = pickle.loads(packed)
        if job.is_done():
            Relay(send).started(job.name, job.epochs)
        else:
            run_job(job, Relay(send))
        ray.get(sent)  # all have arrived before the end
    except Exception as error:
        return sendable(error)
    return None


def connect(address: str) -> Any:
    """Ray, connected to a cluster; raises one sentence where that cannot be."""
    if find_spec("ray") is None:
        raise ClusterError("a cluster needs Ray: pip install 'polyphony[cluster]'")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # else under uv every worker makes its own
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # as Ray will have it one day; no warning
    import ray

    before = signal.getsignal(signal.SIGTERM)
    own = {"include_dashboard": False, "object_store_memory": SMALL_STORE} if address == "local" else {}
    try:
        if ":" in address:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, configure_logging=False, **own)
    except Exception as error:
        raise ClusterError(
            f"there is no Ray cluster at '{address}' to work with ({first_line(error)})"
        ) from error
    if current_thread() is main_thread():  # where Ray has put a handler of its own
        signal.signal(signal.SIGTERM, before)
    return ray


def nodes() -> list[dict[str, Any]]:
    """The nodes that are alive and have a CPU for tasks."""
    import ray

    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


def on_node(identity: str) -> dict[str, Any]:
    """Ray's option for a task or actor that runs on one node alone."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(identity, soft=False)}


def check_nodes(ray: Any, folder: Path) -> None:
    """Raise unless every node sees the folder, and has what this process has."""
    token = folder.resolve() / f".token-{secrets.token_hex(8)}"
    token.touch()
    look, alive = looker(), nodes()
    task = ray.remote(num_cpus=0, max_retries=0)(look)
    try:
        here = look(str(token))
        tasks = [task.options(**on_node(node["NodeID"])).remote(str(token)) for node in alive]
        answers = ray.get(tasks, timeout=CHECK_SECONDS)
    except ray.exceptions.RayError as error:
        raise ClusterError(f"a node of the cluster does not answer ({first_line(error)})") from error
    finally:
        token.unlink()
    for node, there in zip(alive, answers, strict=True):
        compare(node["NodeManagerHostname"], here, there, folder)


def compare(node: str, here: Mapping[str, str], there: Mapping[str, str], folder: Path) -> None:
    """Raise the first thing in which a node differs from this process."""
    for name, ours in here.items():
        if there[name] != ours and name == "folder":
            raise ClusterError(
                f"node {node} does not see {folder}: results need a folder that all nodes share"
            )
        if there[name] != ours:
            raise ClusterError(
                f"node {node} has {name} {there[name]}, and here is {ours}: they must be the same"
            )


def looker() -> Callable[[str], dict[str, str]]:
    """What tells of a node; made here, so that it is sent as it is written and needs no Polyphony there."""

    def look(token: str) -> dict[str, str]:
        import hashlib
        import importlib.metadata
        import importlib.util
        import pathlib
        import platform

        import ray

        ours, spec = "missing", importlib.util.find_spec("polyphony")
        for folder in (spec and spec.submodule_search_locations) or ():
            sources = [path.read_bytes() for path in sorted(pathlib.Path(folder).rglob("*.py"))]
            digest = hashlib.sha256(b"".join(sources)).hexdigest()
            ours = f"{importlib.metadata.version('polyphony')} ({digest[:8]})"
        sees = str(pathlib.Path(token).exists())
        return {
            "folder": sees,
            "Polyphony": ours,
            "Python": platform.python_version(),
            "Ray": ray.__version__,
        }

    return look
