"""The data sets known by name."""

from __future__ import annotations

from polyphony.data.cifar import CIFAR10, CIFAR100
from polyphony.data.dataset import Dataset
from polyphony.data.digits import DIGITS

DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in (CIFAR10, CIFAR100, DIGITS)}
