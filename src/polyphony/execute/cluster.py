"""Run jobs on a Ray cluster, as tasks; what they report reaches one board in this process.

A task whose worker or node is lost is given to another, which goes on from the last whole epoch. What a job
itself raises is not tried again: it stops all others and is raised here.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Self

import torch

from polyphony._util.files import Terminated
from polyphony._util.text import extra, first_line
from polyphony.compute.devices import choose_device
from polyphony.compute.parallel import GoneError
from polyphony.execute.board import Board, Event, Finished, Relay, Started
from polyphony.execute.job import Graph
from polyphony.execute.nodes import ClusterError, check_nodes, nodes, on_node
from polyphony.execute.processes import LOOK_SECONDS, WorkerLostError, sendable
from polyphony.execute.ranks import run_in_ranks
from polyphony.execute.runner import JobError, run_job

RETRIES = 3  # of a job whose worker or node was lost
CONNECT_SECONDS = 5.0  # Ray itself would try for many minutes
GIB = 2**30
SMALL_STORE = 100 * 2**20  # bytes in which a cluster of one's own passes objects on: ours are small
CARRIED = ("POLYPHONY_DATA", "XDG_DATA_HOME", "XDG_CACHE_HOME")  # variables that say where data lies


class LostError(JobError):
    """A job's worker or node was lost too often."""


@dataclass(frozen=True)
class Share:
    """What a job takes of its node: CPUs, which are its threads, GPUs, and GiB of memory.

    A training divides it among so many processes; other jobs have one.
    """

    cpus: int
    gpus: float = 0.0
    memory: float = 1.0
    processes: int = 1

    def __str__(self) -> str:
        return f"{self.cpus} CPU, {self.gpus:g} GPU and {self.memory:g} GiB of memory"

    def room(self, resources: Mapping[str, float]) -> int:
        """How many such jobs a node has room for."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory * GIB}
        shares = [resources.get(name, 0.0) / amount for name, amount in wanted.items() if amount]
        return int(min(shares) + 1e-9)  # a fifth of a GPU is there five times, whatever it is in binary


@dataclass(frozen=True)
class Place:
    """What a job finds where this process runs, and is to find where Ray runs it."""

    folder: Path
    variables: Mapping[str, str]
    threads: int
    device: str
    processes: int = 1  # of a training

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

    Every node must see the folder of the results, and have the same Polyphony, Python and Ray. A process that
    is connected to Ray already stays so, and works with that cluster.
    """

    address: str
    folder: Path
    share: Share
    device: str = "cpu"
    _starts: Counter[str] = field(default_factory=Counter)  # name of a job → how often it was begun
    _is_checked: bool = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._ray = stack.enter_context(connected(self.address))
            self._mailbox = self._make_mailbox()
            self._connection = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _make_mailbox(self) -> Any:
        """Where jobs put what the board is to be told, on this machine; raises where no job has room."""
        from ray.util.queue import Queue

        if not self._room():
            raise ClusterError(f"no node of the cluster has room for a job: {self.share}")
        here = self._ray.get_runtime_context().get_node_id()
        return Queue(actor_options={"num_cpus": 0} | on_node(here))

    @property
    def at_once(self) -> int:
        """How many jobs the nodes have room for; one, while those that had room are lost."""
        return max(1, self._room())

    def _room(self) -> int:
        return sum(self.share.room(node["Resources"]) for node in nodes())

    def run(self, graph: Graph, board: Board) -> None:
        """Run a graph's jobs, each where there is room; the first failure stops them all and is raised."""
        if not self._is_checked:
            check_nodes(self._ray, self.folder)
            self._is_checked = True
        running: dict[Any, str] = {}  # task → name of its job
        self._starts.clear()
        self._mailbox.get_nowait_batch(self._mailbox.size())  # what jobs that were cancelled have left
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
        place = Place(Path.cwd(), variables, self.share.cpus, self.device, self.share.processes)
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
        """Tell the board what jobs have sent; one that begins again was lost with its worker.

        Raises for one that begins too often: Ray itself counts no job that was ended for want of memory.
        """
        for event in self._mailbox.get_nowait_batch(self._mailbox.size()):
            name, is_start = event.name, isinstance(event, Started)
            if name not in graph.running:  # done, by another than this one, which was taken for lost
                continue
            self._starts[name] += is_start
            if self._starts[name] > RETRIES + 1:
                raise LostError(f"{name} was lost {RETRIES + 1} times (is there too little memory for it?)")
            if is_start and self._starts[name] > 1:
                board.warn(name, "its worker or node was lost: another goes on from its last whole epoch")
            else:
                event.tell(board)

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
        if not isinstance(event, Finished):  # which the task's own end says
            sent[:] = [mailbox.actor.put_nowait.remote(event)]
        if isinstance(event, Started):  # must arrive, since a second one says that the first was lost
            ray.get(sent)

    try:
        place.take()  # before the job, which may hold what lies in the folder
        job = pickle.loads(packed)
        if job.is_done():
            Relay(send).started(job.name, job.epochs)
        elif place.processes > 1 and job.in_ranks:
            each = replace(place, threads=max(1, place.threads // place.processes))
            run_in_ranks(job, place.processes, each.take, Relay(send))
        else:
            run_job(job, Relay(send))
        ray.get(sent)  # all have arrived before the end
    except (WorkerLostError, GoneError, Terminated):  # the last where one of its processes was
        os._exit(1)  # with all of a training's processes: Ray runs it again
    except Exception as error:
        return sendable(error)
    return None


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, connected to a cluster until the end, unless this process is connected to it anyway."""
    ray = installed_ray()
    if ray.is_initialized():
        check_same_cluster(address, ray.get_runtime_context().gcs_address)
        yield ray
        return
    connect(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def check_same_cluster(address: str, connected_to: str) -> None:
    """Raise where an address is not that of the cluster which this process is connected to."""
    if ":" in address and address != connected_to:
        raise ClusterError(
            f"this process is connected to the Ray cluster at '{connected_to}', not '{address}'"
        )


def installed_ray() -> Any:
    """Ray, or one sentence where it is not installed."""
    if find_spec("ray") is None:
        raise ClusterError(f"a cluster needs Ray: {extra('cluster')}")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # else under uv every worker makes its own
    # As Ray will have it one day: no warning.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    return ray


def connect(ray: Any, address: str) -> None:
    """Connect Ray to a cluster; raises one sentence where that cannot be."""
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
