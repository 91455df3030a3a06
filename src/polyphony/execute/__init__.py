"""Where jobs run: here, in several processes, on a cluster."""

from polyphony.execute.board import Board
from polyphony.execute.cluster import Cluster, Share
from polyphony.execute.job import Graph, Job
from polyphony.execute.nodes import ClusterError
from polyphony.execute.processes import Processes, default_workers, visible_gpus
from polyphony.execute.runner import Here, JobError, Runner
from polyphony.execute.together import Together, run_together

__all__ = [
    "Board",
    "Cluster",
    "ClusterError",
    "Graph",
    "Here",
    "Job",
    "JobError",
    "Processes",
    "Runner",
    "Share",
    "Together",
    "default_workers",
    "run_together",
    "visible_gpus",
]
