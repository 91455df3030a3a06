"""recipe → graph of runs → run it here → scores."""

from polyphony.rows import Score
from polyphony.study.cost import Cost, costs
from polyphony.study.evaluation import check_trained, evaluate_corrupted, evaluate_unknown
from polyphony.study.jobs import Job, Predict, TrainStudent, TrainTeacher
from polyphony.study.pool import Board, JobError, run_jobs
from polyphony.study.run import Outcome, Upto, default_workers, open_study, run_study
from polyphony.study.score_table import mean, parameter_counts, score, select, verdict
from polyphony.study.study import OutlinedStudy, Study
from polyphony.study.sweep import Sweep, SweepOutcome, run_sweep

__all__ = [
    "Board",
    "Cost",
    "Job",
    "JobError",
    "Outcome",
    "OutlinedStudy",
    "Predict",
    "Score",
    "Study",
    "Sweep",
    "SweepOutcome",
    "TrainStudent",
    "TrainTeacher",
    "Upto",
    "check_trained",
    "costs",
    "default_workers",
    "evaluate_corrupted",
    "evaluate_unknown",
    "mean",
    "open_study",
    "parameter_counts",
    "run_jobs",
    "run_study",
    "run_sweep",
    "score",
    "select",
    "verdict",
]
