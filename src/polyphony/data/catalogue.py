"""The data sets that have a name."""

from __future__ import annotations

from polyphony.data.bundled import DIGITS, FASHION_SMALL
from polyphony.data.cifar import CIFAR10, CIFAR100
from polyphony.data.cifar_c import CIFAR10_C, CIFAR100_C
from polyphony.data.dataset import Dataset
from polyphony.data.idx import FASHION_MNIST, MNIST
from polyphony.data.svhn import SVHN
from polyphony.data.tinyimagenet import TINYIMAGENET

_ALL = (
    CIFAR10,
    CIFAR100,
    TINYIMAGENET,
    SVHN,
    CIFAR10_C,
    CIFAR100_C,
    FASHION_MNIST,
    FASHION_SMALL,
    MNIST,
    DIGITS,
)
DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in _ALL}
