"""Checks pretrained networks on validation images, and detects the preprocessing that they expect."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
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
from polyphony.nn.adapter import ChannelOrder
from polyphony.nn.weights import (
    WeightsError,
    file_and_key,
    is_plain,
    listed_keys,
    load_weights,
    read_stored,
    read_weights,
)
from polyphony.recipe import ForeignTable, RecipeError
from polyphony.recipe.foreign import PythonNetwork
from polyphony.study.fingerprints import weights_hash
from polyphony.training.predict import predict

SURE = 3.0  # a teacher's accuracy must be this many standard deviations above chance
FEWEST = 5  # images that a class needs before it can be called swapped
RENAMED = 0.5  # with this accuracy under renamed classes, their order must be wrong
LOOKED_AT = 500  # images that a network is tested on
MIRRORED = 0.9  # students see mirrored images if accuracy on them is at least this share of the usual one
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
    """Raise a RecipeError if a file is listed twice, or if two files hold the same weights in any format."""
    first_paths: dict[str, Path] = {}
    for path in weights:
        if weights.count(path) > 1:
            raise RecipeError(f"{path} is listed twice; the networks must differ")
        first = first_paths.setdefault(tensors_hash(path, weights_hash(path)), path)
        if first != path:
            raise RecipeError(f"{path} holds the same weights as {first}; the networks must differ")


@lru_cache
def tensors_hash(path: Path, file_hash: str) -> str:
    """The hash of a file's tensors in the order of their names; names and format do not count.

    `file_hash` is only part of the cache's key: a changed file is read again.
    """
    digest = hashlib.sha256()
    for _, value in sorted(read_weights(path).items()):
        digest.update(f"{value.dtype} {list(value.shape)} ".encode())
        if is_plain(value):  # `load_weights` rejects other tensors
            digest.update(value.detach().flatten().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def answers(network: nn.Module, path: Path, images: Split, device: str = "cpu") -> Predictions:
    """Load a file's weights into a network and predict; raise a WeightsError if a logit is not finite."""
    load_weights(network.network if isinstance(network, Adapted) else network, path)
    predictions = predict(Single(network).to(device), images)
    if not bool(predictions.logits.isfinite().all()):
        raise WeightsError(f"{path} gives outputs that are not finite numbers: is it damaged?")
    return predictions


def accuracy(predictions: Predictions) -> float:
    return metrics.accuracy(predictions.log_probs(), predictions.labels)


def refuse_unfit(answers: Tensor, labels: Tensor, classes: Sequence[str], path: Path) -> None:
    """Raise a WeightsError if classes are in another order, or if answers are no better than chance.

    `answers` and `labels` are class indices. [n], [n]
    """
    k, n = len(classes), len(labels)
    chance = float(labels.bincount(minlength=k).max()) / n
    right = float((answers == labels).double().mean())
    scores = f"{path} is right on {right:.1%} of {n} validation images, and chance is {chance:.1%}"
    names = best_names(answers[::2], labels[::2], k)
    renamed = float((answers[1::2] == names[labels[1::2]]).double().mean())  # on the other half of the images
    if renamed >= max(RENAMED, 2 * right):
        true, answer = next(pair for pair in enumerate(names.tolist()) if pair[0] != pair[1])
        raise WeightsError(
            f"{scores}: it has the classes in another order (it answers '{classes[answer]}' for"
            f" '{classes[true]}'); order its outputs as the data's classes"
        )
    sure = SURE * math.sqrt(chance * (1 - chance) / n)
    margin = min(sure, (1 - chance) / 2)  # with few images, half of the way from chance to 100 %
    if right <= chance + margin:
        raise WeightsError(
            f"{scores}: was it trained on these classes, and with this preprocessing (mean, std, size)?"
        )
    if cycle := swapped(answers, labels, k):
        pairs = zip(cycle, cycle[1:] + cycle[:1], strict=True)
        moves = listed([f"'{classes[answer]}' for '{classes[true]}'" for true, answer in pairs])
        raise WeightsError(
            f"{path} has classes in another order (most often it answers {moves});"
            " order its outputs as the data's classes"
        )


def best_names(answers: Tensor, labels: Tensor, k: int) -> Tensor:
    """The one-to-one renaming of classes with the most right answers: class i → answer. [n], [n] → [k]"""
    from scipy.optimize import linear_sum_assignment  # slow to import

    return torch.from_numpy(linear_sum_assignment(confusion(answers, labels, k), maximize=True)[1])


def swapped(answers: Tensor, labels: Tensor, k: int) -> list[int]:
    """Classes in a cycle: for images of each class, the most frequent answer is the next class.

    That answer must be at least twice as frequent as the right one. Returns an empty list if there is no such
    cycle, if a class has too few images, or if chance may explain it. [n], [n] → [2 or more]
    """
    table = confusion(answers, labels, k)
    count, (most, answer) = table.sum(1), table.max(1)
    clear = (count >= FEWEST) & (most >= 2 * table.diagonal()) & (answer != torch.arange(k))
    moves = dict(zip(clear.nonzero().flatten().tolist(), answer[clear].tolist(), strict=True))
    for first in moves:
        cycle = [first]
        while (following := moves.get(cycle[-1])) is not None and following not in cycle:
            cycle.append(following)
        swaps, right = int(most[cycle].sum()), int(table[cycle, cycle].sum())
        if following == first and swaps - right > SURE * math.sqrt(swaps + right):
            return cycle
    return []


def confusion(answers: Tensor, labels: Tensor, k: int) -> Tensor:
    """How many images of class i have the answer j. [n], [n] → [k k]"""
    return torch.bincount(labels * k + answers, minlength=k * k).view(k, k)


@dataclass(frozen=True)
class Preprocessing:
    """The user's preprocessing options; what is None is detected."""

    size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    order: ChannelOrder | None = None

    def network(self, table: ForeignTable) -> ForeignTable:
        """The table with the user's options; raises a RecipeError if only one of mean and std is set."""
        if (self.mean is None) != (self.std is None):
            raise RecipeError("mean and std go together: give both or neither")
        options = {"mean": self.mean, "std": self.std, "order": self.order}
        return table.model_copy(update={key: value for key, value in options.items() if value is not None})


@dataclass(frozen=True)
class Networks:
    """Files of weights, the recipe table of their network, and the images that they classify."""

    table: ForeignTable
    weights: Sequence[Path]
    splits: Splits

    @property
    def images(self) -> Split:
        """The validation images that the networks are tested on."""
        return self.splits.valid.some(LOOKED_AT)

    @property
    def names(self) -> list[str]:
        """The files' names, or their paths if two names are equal."""
        names = [path.name for path in self.weights]
        return names if len(set(names)) == len(names) else [str(path) for path in self.weights]

    def fitted(self) -> nn.Module:
        """A new network for these images; no weights are loaded."""
        return self.table.fitted(len(self.splits.classes), tuple(self.splits.train.images.shape[1:]))

    def normalised(self, say: Say) -> Networks:
        """The networks with the user's normalisation; by default the best one for the first network.

        The best has the highest accuracy, then the lowest NLL. Tells `say` the accuracy with each.
        """
        if self.table.mean is not None:
            return self
        scores: dict[str, tuple[float, float]] = {}
        choices = normalisations(self.table, self.splits)
        for name, keys in choices.items():
            try:
                predictions = answers(self.updated(keys).fitted(), self.weights[0], self.images)
            except RecipeError:  # the network's own may have another number of channels
                continue
            nll = metrics.nll(predictions.log_probs(), predictions.labels)
            scores[name] = accuracy(predictions), -nll
        if not scores:
            answers(self.fitted(), self.weights[0], self.images)  # raises: the network rejects these images
        best = max(scores, key=lambda name: scores[name])
        say(f"Accuracy of {self.names[0]} on {len(self.images)} validation images, by normalisation:")
        for name, (right, _) in scores.items():
            say(f"  {name:<16} {right:6.1%}{'  (used)' if name == best else ''}")
        say(
            f"If your own evaluation gave more than {scores[best][0]:.1%}, preprocessing differs:"
            " give --mean, --std, --size or --order."
        )
        return self.updated(choices[best])

    def updated(self, keys: dict[str, Any]) -> Networks:
        """The networks with some keys of their table changed."""
        return replace(self, table=self.table.model_copy(update=keys))

    def check(self, say: Say) -> None:
        """Raise a WeightsError if one of the networks is at chance or has its classes in another order.

        Tells `say` the accuracy of all networks, and which weights are used if a file has several sets.
        """
        for line in choices_of_weights(dict(zip(self.weights, self.names, strict=True))):
            say(line)
        shares = []
        for name, path in zip(self.names, self.weights, strict=True):
            predictions = answers(self.fitted(), path, self.images)
            refuse_unfit(predictions.logits[0].argmax(-1), predictions.labels, self.splits.classes, path)
            shares.append(f"{name} {accuracy(predictions):.1%}")
        say(f"Accuracy of all networks: {', '.join(shares)}.")

    def know_mirrored(self, say: Say) -> bool:
        """Whether the first network recognises images that are flipped horizontally."""
        flipped = replace(self.images, images=self.images.images.flip(-1))
        network, path = self.fitted(), self.weights[0]
        plain, mirrored = (accuracy(answers(network, path, images)) for images in (self.images, flipped))
        recognised = mirrored >= MIRRORED * plain
        say(
            f"Accuracy of {self.names[0]} on mirrored images: {mirrored:.1%},"
            f" so students {'see' if recognised else 'do not see'} mirrored images."
        )
        return recognised


def choices_of_weights(names: Mapping[Path, str]) -> list[str]:
    """Lines that say which set of weights is used, for files that hold several and paths without a key.

    Files with the same sets share a line. `names` has the name of each file in the line.
    """
    files: dict[tuple[str, tuple[str, ...]], list[Path]] = {}
    for path in names:
        _, key, other_keys = read_stored(path)
        if other_keys and not file_and_key(path)[1]:
            files.setdefault((key, other_keys), []).append(path)
    return [
        f"{listed([names[path] for path in paths])}: using the weights under '{key}'; also in the file:"
        f" {listed_keys(other_keys)}. To use others, write {paths[0]}#{other_keys[0]}."
        for (key, other_keys), paths in files.items()
    ]


def normalisations(table: ForeignTable, splits: Splits) -> dict[str, dict[str, tuple[float, ...]]]:
    """The normalisations to try, by name: the network's own or none, usual ones, the training images'."""
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
    """The networks with images of a number of channels that the first network accepts.

    Also returns that number if the images were converted, otherwise None. Grey images are tried with one
    channel first, colour images with three. Raises the network's error if it accepts neither.
    """
    original = load(source, Options(resolution=side))
    own, sample = original.train.images.shape[1], original.train.some(LOOKED_AT).images
    is_grey = bool((sample == sample[:, :1]).all())
    faults: dict[int, Exception] = {}
    for channels in (1, 3) if is_grey else (3, 1):
        splits = original if channels == own else load(source, Options(resolution=side, channels=channels))
        networks = Networks(table, weights, splits)
        try:
            answers(networks.fitted(), weights[0], splits.valid[:1])
        except (RecipeError, WeightsError) as fault:
            faults[channels] = fault
        else:
            return networks, None if channels == own else channels
    raise faults[own]
