"""Run jobs as tasks on a Ray cluster; the board in this process shows their reports.

If a worker or node is lost, Ray gives its task to another one, which continues from the last complete epoch.
An error of a job is not retried: it stops all other jobs and is raised here.
"""

from __future__ import annotations

import os
import pickle
import secrets
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Self

import torch

from polyphony._util.files import Terminated
from polyphony._util.text import UserError, extra, first_line
from polyphony.compute.devices import choose_device
from polyphony.compute.parallel import GoneError
from polyphony.execute.board import Board, Event, Finished, Relay, Started
from polyphony.execute.job import Graph
from polyphony.execute.processes import POLL_SECONDS, WorkerLostError, sendable
from polyphony.execute.ranks import run_in_ranks
from polyphony.execute.runner import JobError, run_job

RETRIES = 3  # of a job whose worker or node was lost
CONNECT_SECONDS = 5.0  # timeout; Ray's own is many minutes
CHECK_SECONDS = 600.0  # timeout for the answers of all nodes
GIB = 2**30
SMALL_STORE = 100 * 2**20  # bytes of the object store of a local cluster: our objects are small
JOB_VARIABLES = ("POLYPHONY_DATA", "XDG_DATA_HOME", "XDG_CACHE_HOME")  # environment variables that jobs need


class ClusterError(UserError, RuntimeError):
    """A cluster cannot be used; the message says why."""


class LostError(JobError):
    """A job's worker or node was lost too often."""


@dataclass(frozen=True)
class Share:
    """The resources of one job: CPUs (its threads), GPUs, and GiB of memory.

    A training divides them among `processes`; other jobs have one process.
    """

    cpus: int
    gpus: float = 0.0
    memory: float = 1.0
    processes: int = 1

    def __str__(self) -> str:
        return f"{self.cpus} CPU, {self.gpus:g} GPU and {self.memory:g} GiB of memory"

    def room(self, resources: Mapping[str, float]) -> int:
        """How many such jobs fit on a node with these resources."""
        needs = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory * GIB}
        ratios = [resources.get(name, 0.0) / amount for name, amount in needs.items() if amount]
        return int(min(ratios) + 1e-9)  # 0.2 of a GPU fits five times, despite rounding


@dataclass(frozen=True)
class Place:
    """The folder, environment variables, threads and device that a job needs in a worker of Ray."""

    folder: Path
    variables: Mapping[str, str]
    threads: int
    device: str
    processes: int = 1  # of a training

    def apply(self) -> None:
        """Set them in this process; raises a ClusterError if there is no such device."""
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
    """Runs jobs on a Ray cluster. The address is HOST:PORT, "auto" (this machine's) or "local" (a new one).

    Every node must see the output folder and have the same versions of Polyphony, Python and Ray. If this
    process is already connected to a cluster, it uses that one.
    """

    address: str
    folder: Path
    share: Share
    device: str = "cpu"
    _starts: Counter[str] = field(default_factory=Counter)  # how often each job was started
    _is_checked: bool = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._ray = stack.enter_context(connected(self.address))
            if not self._room():
                raise ClusterError(f"no node of the cluster has room for a job: {self.share}")
            from ray.util.queue import Queue

            here = self._ray.get_runtime_context().get_node_id()
            self._mailbox = Queue(actor_options={"num_cpus": 0} | on_node(here))  # of reports of jobs
            self._connection = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @property
    def at_once(self) -> int:
        """How many jobs fit on the nodes, at least one, even while all nodes with room are lost."""
        return max(1, self._room())

    def _room(self) -> int:
        return sum(self.share.room(node["Resources"]) for node in nodes())

    def run(self, graph: Graph, board: Board) -> None:
        """Run the jobs of a graph; the first failure stops them all and is raised."""
        if not self._is_checked:
            check_nodes(self._ray, self.folder)
            self._is_checked = True
        running: dict[Any, str] = {}  # task → name of its job
        self._starts.clear()
        self._mailbox.get_nowait_batch(self._mailbox.size())  # reports of cancelled jobs
        try:
            while graph.left():
                running |= self._start_jobs(graph)
                ended, _ = self._ray.wait(list(running), timeout=POLL_SECONDS)
                self._forward_reports(graph, board)
                for task in ended:
                    self._finish(task, running.pop(task), graph, board)
        except self._ray.exceptions.RayError as error:
            raise LostError(f"the cluster does not answer ({first_line(error)})") from error
        finally:
            for task in running:  # empty unless a job failed
                self._ray.cancel(task, force=True)

    def _start_jobs(self, graph: Graph) -> dict[Any, str]:
        """Give Ray all jobs that can start; it queues jobs that have no room yet. Returns names by task."""
        variables = {name: os.environ[name] for name in JOB_VARIABLES if name in os.environ}
        place = Place(Path.cwd(), variables, self.share.cpus, self.device, self.share.processes)
        task = self._ray.remote(run_task).options(
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

    def _forward_reports(self, graph: Graph, board: Board) -> None:
        """Send the reports of jobs to the board. A second start of a job means that its worker was lost.

        Raises a LostError if a job starts too often: Ray does not count tasks that ran out of memory.
        """
        for event in self._mailbox.get_nowait_batch(self._mailbox.size()):
            name, is_start = event.name, isinstance(event, Started)
            if name not in graph.running:  # another worker has finished it, because this one seemed lost
                continue
            self._starts[name] += is_start
            if self._starts[name] > RETRIES + 1:
                raise LostError(f"{name} was lost {RETRIES + 1} times (is there too little memory for it?)")
            if is_start and self._starts[name] > 1:
                board.warn(
                    name, "its worker or node was lost; another continues from the last complete epoch"
                )
            else:
                event.report_to(board)

    def _finish(self, task: Any, name: str, graph: Graph, board: Board) -> None:
        """After the end of a task: raise the error of its job, or report that the job is done."""
        try:
            error: Exception | None = self._ray.get(task)
        except self._ray.exceptions.RayError as lost:
            raise LostError(f"{name} was lost {RETRIES + 1} times ({first_line(lost)})") from lost
        if error is not None:
            raise error
        board.finished(name)
        graph.finish(name)


def run_task(pickled_job: bytes, place: Place, mailbox: Any) -> Exception | None:
    """The task of Ray: run one job unless it is done. Returns the job's error, or None."""
    import ray

    last_sent: list[Any] = []

    def send(event: Event) -> None:
        if not isinstance(event, Finished):  # the end of the task reports that
            last_sent[:] = [mailbox.actor.put_nowait.remote(event)]
        if isinstance(event, Started):  # must arrive: a second start means that the first worker was lost
            ray.get(last_sent)

    try:
        place.apply()  # before unpickling the job, which may import modules from the folder
        job = pickle.loads(pickled_job)
        if job.is_done():
            Relay(send).started(job.name, job.epochs)
        elif place.processes > 1 and job.in_ranks:
            rank_place = replace(place, threads=max(1, place.threads // place.processes))
            run_in_ranks(job, place.processes, rank_place.apply, Relay(send))
        else:
            run_job(job, Relay(send))
        ray.get(last_sent)  # wait until all reports have arrived
    except (WorkerLostError, GoneError, Terminated):  # a process of the training was lost or terminated
        os._exit(1)  # ends all processes of the training, and Ray retries it
    except Exception as error:
        return sendable(error)
    return None


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect to a cluster, and disconnect at the end of the block. Yields the module `ray`.

    If this process is already connected, that connection is used and stays open. Raises a ClusterError
    if Ray is missing or the cluster cannot be reached.
    """
    if find_spec("ray") is None:
        raise ClusterError(f"a cluster needs Ray: {extra('cluster')}")
    # Otherwise uv makes a new environment for each worker.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    # Ray's future default, which avoids a warning.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        current = ray.get_runtime_context().gcs_address
        if ":" in address and address != current:
            raise ClusterError(f"this process uses the Ray cluster at '{current}', not '{address}'")
        yield ray
        return
    connect(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def connect(ray: Any, address: str) -> None:
    """Connect to a cluster; raises a ClusterError if that fails."""
    handler = signal.getsignal(signal.SIGTERM)
    options = {"include_dashboard": False, "object_store_memory": SMALL_STORE} if address == "local" else {}
    try:
        if ":" in address:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
    except Exception as error:
        raise ClusterError(f"there is no Ray cluster at '{address}' ({first_line(error)})") from error
    if current_thread() is main_thread():  # Ray has replaced the handler
        signal.signal(signal.SIGTERM, handler)


def nodes() -> list[dict[str, Any]]:
    """The nodes that are alive and have CPUs for tasks."""
    import ray

    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


def on_node(identity: str) -> dict[str, Any]:
    """The option of Ray that binds a task or actor to a node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(identity, soft=False)}


def check_nodes(ray: Any, folder: Path) -> None:
    """Raise a ClusterError unless every node sees the folder and has the same versions as this process."""
    token = folder.resolve() / f".token-{secrets.token_hex(8)}"
    describe, alive = node_describer(), nodes()
    token.touch()
    task = ray.remote(num_cpus=0, max_retries=0)(describe)
    try:
        here = describe(str(token))
        tasks = [task.options(**on_node(node["NodeID"])).remote(str(token)) for node in alive]
        answers = ray.get(tasks, timeout=CHECK_SECONDS)
    except ray.exceptions.RayError as error:
        raise ClusterError(f"a node of the cluster does not answer ({first_line(error)})") from error
    finally:
        token.unlink()
    for node, there in zip(alive, answers, strict=True):
        compare(node["NodeManagerHostname"], here, there, folder)


def compare(node: str, here: Mapping[str, str], there: Mapping[str, str], folder: Path) -> None:
    """Raise a ClusterError for the first difference between a node and this process."""
    for name, ours in here.items():
        problem = f"has {name} {there[name]}, and this process has {ours}: they must be the same"
        if name == "folder":
            problem = f"does not see {folder}: results need a folder that all nodes share"
        if there[name] != ours:
            raise ClusterError(f"node {node} {problem}")


def node_describer() -> Callable[[str], dict[str, str]]:
    """A function that returns versions on a node, and whether it sees a file.

    Ray sends the code of this inner function, so that it also runs on a node without Polyphony.
    """

    def describe(token: str) -> dict[str, str]:
        import hashlib
        import importlib.util
        import pathlib
        import platform

        import ray

        version, spec = "missing", importlib.util.find_spec("polyphony")
        for folder in (spec and spec.submodule_search_locations) or ():
            sources = [path.read_bytes() for path in sorted(pathlib.Path(folder).rglob("*.py"))]
            digest = hashlib.sha256(b"".join(sources)).hexdigest()
            version = f"{importlib.import_module('polyphony').__version__} ({digest[:8]})"
        return {
            "folder": str(pathlib.Path(token).exists()),
            "Polyphony": version,
            "Python": platform.python_version(),
            "Ray": ray.__version__,
        }

    return describe
