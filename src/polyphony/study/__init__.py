"""recipe → graph of runs → run it here → scores."""

from polyphony.study.cluster import Cluster, Share
from polyphony.study.cost import Cost, TooLargeError, check_memory, costs
from polyphony.study.evaluation import check_trained, evaluate_corrupted, evaluate_unknown
from polyphony.study.nodes import ClusterError
from polyphony.study.plan import Upto
from polyphony.study.processes import Processes, default_workers, visible_gpus
from polyphony.study.run import Outcome, open_study, run_study
from polyphony.study.runner import Board, Graph, Here, JobError, Runner
from polyphony.study.score_table import verdict
from polyphony.study.sketch import sketched
from polyphony.study.study import Study
from polyphony.study.sweep import Sweep, SweepOutcome, run_sweep
from polyphony.study.together import Together, run_together

__all__ = [
    "Board",
    "Cluster",
    "ClusterError",
    "Cost",
    "Graph",
    "Here",
    "JobError",
    "Outcome",
    "Processes",
    "Runner",
    "Share",
    "Study",
    "Sweep",
    "SweepOutcome",
    "Together",
    "TooLargeError",
    "Upto",
    "check_memory",
    "check_trained",
    "costs",
    "default_workers",
    "evaluate_corrupted",
    "evaluate_unknown",
    "open_study",
    "run_study",
    "run_sweep",
    "run_together",
    "sketched",
    "verdict",
    "visible_gpus",
]
