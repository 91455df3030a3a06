"""The mean of several predictions, shared by losses and metrics."""

import math

from torch import Tensor


def mean_log_probs(log_probs: Tensor) -> Tensor:
    """Log of the mean probability over the leading dimension. [m … k] → [… k]"""
    return log_probs.logsumexp(0) - math.log(len(log_probs))
