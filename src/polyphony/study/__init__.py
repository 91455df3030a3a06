"""What is to be done: recipe → plan → results → scores."""

from polyphony.study.cost import Answer, Cost, TooLargeError, answers, check_memory, costs
from polyphony.study.evaluation import check_trained, evaluate_corrupted, evaluate_unknown
from polyphony.study.plan import Upto
from polyphony.study.provenance import open_study
from polyphony.study.run import Outcome, run_study
from polyphony.study.sketch import sketched
from polyphony.study.study import Study

__all__ = [
    "Answer",
    "Cost",
    "Outcome",
    "Study",
    "TooLargeError",
    "Upto",
    "answers",
    "check_memory",
    "check_trained",
    "costs",
    "evaluate_corrupted",
    "evaluate_unknown",
    "open_study",
    "run_study",
    "sketched",
]
