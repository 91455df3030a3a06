"""Pretrained networks: whether they know the classes of the data, and the preprocessing that they expect."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyphony import metrics
from polyphony._util.text import listed
from polyphony.data import Options, Split, Splits, load
from polyphony.ensembles import Single
from polyphony.metrics import Predictions
from polyphony.nn import Adapted
from polyphony.nn.adapter import Order
from polyphony.nn.weights import WeightsError, is_plain, load_weights, read_weights
from polyphony.recipe import ForeignTable, RecipeError
from polyphony.recipe.foreign import PythonNetwork
from polyphony.study.fingerprints import weights_hash
from polyphony.training.predict import predict

SURE = 3.0  # standard deviations that a teacher must be above chance
FEWEST = 5  # images that a class must have to be called swapped
RENAMED = 0.5  # accuracy with renamed classes at which their order must be wrong
LOOKED_AT = 500  # images that a network is tried on
MIRRORED = 0.9  # least accuracy on mirrored images, relative to the others, for students to see them
NORMALISATIONS: dict[str, dict[str, tuple[float, ...]]] = {
    "ImageNet": {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    "CIFAR-10": {"mean": (0.4914, 0.4822, 0.4465), "std": (0.247, 0.2435, 0.2616)},
    "MNIST": {"mean": (0.1307,), "std": (0.3081,)},
    "0.5 / 0.5": {"mean": (0.5,), "std": (0.5,)},
    "0 to 255": {"mean": (0.0,), "std": (1 / 255,)},
}
FOR_GREY = {"MNIST"}
Say = Callable[[str], None]


def refuse_copies(weights: Sequence[Path]) -> None:
    """Raise a RecipeError if two files are the same, or hold the same numbers in another format."""
    found: dict[str, Path] = {}
    for path in weights:
        if weights.count(path) > 1:
            raise RecipeError(f"{path} is listed twice; the networks must differ")
        known = found.setdefault(numbers_hash(path, weights_hash(path)), path)
        if known != path:
            raise RecipeError(f"{path} holds the same weights as {known}; the networks must differ")


@lru_cache
def numbers_hash(path: Path, file_hash: str) -> str:
    """The hash of the tensors in a file in the order of their names, whatever the prefix."""
    digest = hashlib.sha256()
    for _, value in sorted(read_weights(path).items()):
        digest.update(f"{value.dtype} {list(value.shape)} ".encode())
        if is_plain(value):  # no network accepts others, and says so when it loads them
            digest.update(value.detach().flatten().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def answers(network: nn.Module, path: Path, images: Split, device: str = "cpu") -> Predictions:
    """The predictions of a network with the weights of a file; a WeightsError if they are not numbers."""
    load_weights(network.network if isinstance(network, Adapted) else network, path)
    found = predict(Single(network).to(device), images)
    if not bool(found.logits.isfinite().all()):
        raise WeightsError(f"{path} gives outputs that are not finite numbers: is it damaged?")
    return found


def accuracy(found: Predictions) -> float:
    return metrics.accuracy(found.log_probs(), found.labels)


def refuse_unfit(answers: Tensor, labels: Tensor, classes: Sequence[str], path: Path) -> None:
    """Raise a WeightsError if classes are in another order, or if answers are no better than chance.

    [n], [n]
    """
    k, n = len(classes), len(labels)
    chance = float(labels.bincount(minlength=k).max()) / n
    right = float((answers == labels).double().mean())
    scores = f"{path} is right on {right:.1%} of {n} validation images, and chance is {chance:.1%}"
    names = best_names(answers[::2], labels[::2], k)
    renamed = float((answers[1::2] == names[labels[1::2]]).double().mean())  # of images that gave no names
    if renamed >= max(RENAMED, 2 * right):
        moved, called = next(pair for pair in enumerate(names.tolist()) if pair[0] != pair[1])
        raise WeightsError(
            f"{scores}: it has the classes in another order (it answers '{classes[called]}' for"
            f" '{classes[moved]}'); order its outputs as the data's classes"
        )
    sure = SURE * math.sqrt(chance * (1 - chance) / n)
    margin = min(sure, (1 - chance) / 2)  # with few images, half of the distance to chance
    if right <= chance + margin:
        raise WeightsError(
            f"{scores}: is it of these classes, and does it expect these pixels (mean, std, size)?"
        )
    if cycle := swapped(answers, labels, k):
        pairs = zip(cycle, cycle[1:] + cycle[:1], strict=True)
        moves = listed([f"'{classes[called]}' for '{classes[moved]}'" for moved, called in pairs])
        raise WeightsError(
            f"{path} has classes in another order (most often it answers {moves});"
            " order its outputs as the data's classes"
        )


def best_names(answers: Tensor, labels: Tensor, k: int) -> Tensor:
    """The answer that stands for each class, so that most are right; every answer once. [n], [n] → [k]"""
    from scipy.optimize import linear_sum_assignment  # slow to import

    return torch.from_numpy(linear_sum_assignment(confusion(answers, labels, k), maximize=True)[1])


def swapped(answers: Tensor, labels: Tensor, k: int) -> list[int]:
    """Classes that form a cycle: images of each are most often called by the next one's name.

    At least twice as often as by their own. Empty if there are none, if one has too few images, or if chance
    explains it because nobody can tell the classes apart. [n], [n] → [2 or more]
    """
    table = confusion(answers, labels, k)
    count, (most, called) = table.sum(1), table.max(1)
    clear = (count >= FEWEST) & (most >= 2 * table.diagonal()) & (called != torch.arange(k))
    moves = dict(zip(clear.nonzero().flatten().tolist(), called[clear].tolist(), strict=True))
    for first in moves:
        cycle = [first]
        while (after := moves.get(cycle[-1])) is not None and after not in cycle:
            cycle.append(after)
        moved, right = int(most[cycle].sum()), int(table[cycle, cycle].sum())
        if after == first and moved - right > SURE * math.sqrt(moved + right):
            return cycle
    return []


def confusion(answers: Tensor, labels: Tensor, k: int) -> Tensor:
    """How many images of class i are called j. [n], [n] → [k k]"""
    return torch.bincount(labels * k + answers, minlength=k * k).view(k, k)


@dataclass(frozen=True)
class Preprocessing:
    """What the user says of the preprocessing; the rest is measured."""

    size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    order: Order | None = None

    def network(self, table: ForeignTable) -> ForeignTable:
        """The table with the user's settings; a RecipeError if mean comes without std."""
        if (self.mean is None) != (self.std is None):
            raise RecipeError("--mean and --std go together: give both or neither")
        told = {"mean": self.mean, "std": self.std, "order": self.order}
        return table.model_copy(update={key: value for key, value in told.items() if value is not None})


@dataclass(frozen=True)
class Networks:
    """Files of weights, the table of their network, and images whose classes they know."""

    table: ForeignTable
    weights: Sequence[Path]
    splits: Splits

    @property
    def images(self) -> Split:
        """The validation images that they are tried on."""
        return self.splits.valid.some(LOOKED_AT)

    @property
    def names(self) -> list[str]:
        """The files' names, or their paths if names repeat."""
        names = [path.name for path in self.weights]
        return names if len(set(names)) == len(names) else [str(path) for path in self.weights]

    def fitted(self) -> nn.Module:
        """A network for these images, without the weights of a file."""
        return self.table.fitted(len(self.splits.classes), tuple(self.splits.train.images.shape[1:]))

    def normalised(self, say: Say) -> Networks:
        """The networks with the user's normalisation, or the one with which the first is most accurate."""
        if self.table.mean is not None:
            return self
        tried: dict[str, tuple[float, float]] = {}
        choices = normalisations(self.table, self.splits)
        for name, keys in choices.items():
            try:
                found = answers(self.updated(keys).fitted(), self.weights[0], self.images)
            except RecipeError:  # the network's own may have another number of channels
                continue
            tried[name] = accuracy(found), -metrics.nll(found.log_probs(), found.labels)
        if not tried:
            answers(self.fitted(), self.weights[0], self.images)  # raises the reason why it takes no images
        best = max(tried, key=lambda name: tried[name])
        say(f"Accuracy of {self.names[0]} on {len(self.images)} validation images, by normalisation:")
        for name, (right, _) in tried.items():
            say(f"  {name:<16} {right:6.1%}{'  (taken)' if name == best else ''}")
        say(
            f"If your own evaluation gave more than {tried[best][0]:.1%}, preprocessing differs:"
            " give --mean, --std, --size or --order."
        )
        return self.updated(choices[best])

    def updated(self, keys: dict[str, Any]) -> Networks:
        """The networks with some keys of their table changed."""
        return replace(self, table=self.table.model_copy(update=keys))

    def check(self, say: Say) -> None:
        """Raise a WeightsError if one of the networks is at chance or has its classes in another order."""
        shares = []
        for name, path in zip(self.names, self.weights, strict=True):
            found = answers(self.fitted(), path, self.images)
            refuse_unfit(found.logits[0].argmax(-1), found.labels, self.splits.classes, path)
            shares.append(f"{name} {accuracy(found):.1%}")
        say(f"Accuracy of all networks: {', '.join(shares)}.")

    def know_mirrored(self, say: Say) -> bool:
        """Whether the first network recognises images that are flipped horizontally."""
        flipped = replace(self.images, images=self.images.images.flip(-1))
        network, path = self.fitted(), self.weights[0]
        plain, mirrored = (accuracy(answers(network, path, images)) for images in (self.images, flipped))
        known = mirrored >= MIRRORED * plain
        say(
            f"Accuracy of {self.names[0]} on mirrored images: {mirrored:.1%},"
            f" so students {'see' if known else 'do not see'} mirrored images."
        )
        return known


def normalisations(table: ForeignTable, splits: Splits) -> dict[str, dict[str, tuple[float, ...]]]:
    """What is tried, by name: the network's own or none, the usual ones, that of the training images."""
    channels = splits.train.images.shape[1]
    usual = {
        name: keys
        for name, keys in NORMALISATIONS.items()
        if len(keys["mean"]) in (1, channels) and (channels == 1 or name not in FOR_GREY)
    }
    own = "none" if isinstance(table, PythonNetwork) else "the network's own"
    mean, std = (tuple(round(value, 4) for value in values) for values in splits.train.statistics)
    return {own: {}, **usual, "training images": {"mean": mean, "std": std}}


def networks_and_images(
    table: ForeignTable, weights: Sequence[Path], source: str, side: int | None
) -> tuple[Networks, int | None]:
    """The networks with images of as many channels as they take, and that number if it is another one.

    Grey images stay grey; if the first network does not take them, they become colour images.
    """
    read = load(source, Options(resolution=side))
    own, first = read.train.images.shape[1], read.train.some(LOOKED_AT).images
    is_grey = bool((first == first[:, :1]).all())
    faults: dict[int, Exception] = {}
    for channels in (1, 3) if is_grey else (3, 1):
        splits = read if channels == own else load(source, Options(resolution=side, channels=channels))
        networks = Networks(table, weights, splits)
        try:
            answers(networks.fitted(), weights[0], splits.valid[:1])
        except (RecipeError, WeightsError) as fault:
            faults[channels] = fault
        else:
            return networks, None if channels == own else channels
    raise faults[own]
