"""Pretrained teachers: read from their files, and checked on validation images."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from polyphony._util.text import listed
from polyphony.data import Split
from polyphony.ensembles import Single
from polyphony.nn import Adapted
from polyphony.nn.weights import WeightsError, is_plain, load_weights, read_weights
from polyphony.recipe import RecipeError
from polyphony.study.fingerprints import weights_hash
from polyphony.training.predict import predict

SURE = 3.0  # standard deviations that a teacher must be above chance
FEWEST = 5  # images that a class must have to be called swapped
RENAMED = 0.5  # accuracy with renamed classes at which their order must be wrong


def refuse_copies(weights: Sequence[Path]) -> None:
    """Raise a RecipeError if two files are the same, or hold the same numbers in another format."""
    found: dict[str, Path] = {}
    for path in weights:
        if weights.count(path) > 1:
            raise RecipeError(f"{path} is listed twice; the networks of an ensemble must differ")
        known = found.setdefault(numbers_hash(path, weights_hash(path)), path)
        if known != path:
            raise RecipeError(
                f"{path} holds the same weights as {known}; the networks of an ensemble must differ"
            )


@lru_cache
def numbers_hash(path: Path, file_hash: str) -> str:
    """The hash of the tensors in a file in the order of their names, whatever the prefix."""
    digest = hashlib.sha256()
    for _, value in sorted(read_weights(path).items()):
        digest.update(f"{value.dtype} {list(value.shape)} ".encode())
        if is_plain(value):  # no network accepts others, and says so when it loads them
            digest.update(value.detach().flatten().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def take_in(network: nn.Module, path: Path, valid: Split, classes: Sequence[str], device: str) -> None:
    """Load the weights of a file into a network; a WeightsError unless it knows the classes of the data."""
    load_weights(network.network if isinstance(network, Adapted) else network, path)
    logits = predict(Single(network).to(device), valid).logits[0]
    if not bool(logits.isfinite().all()):
        raise WeightsError(f"{path} gives outputs that are not finite numbers")
    refuse_unfit(logits.argmax(-1), valid.labels, classes, path)


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
            f"{path} has classes in another order (on most of their images it answers {moves});"
            " order its outputs as the data's classes"
        )


def best_names(answers: Tensor, labels: Tensor, k: int) -> Tensor:
    """The answer that stands for each class, so that most are right; every answer once. [n], [n] → [k]"""
    from scipy.optimize import linear_sum_assignment  # slow to import

    return torch.from_numpy(linear_sum_assignment(confusion(answers, labels, k), maximize=True)[1])


def swapped(answers: Tensor, labels: Tensor, k: int) -> list[int]:
    """Classes that form a cycle: most images of each are called by the next one's name.

    Empty if there are none, if one has too few images, or if chance explains it because nobody can tell the
    classes apart. [n], [n] → [2 or more]
    """
    table = confusion(answers, labels, k)
    count, (most, called) = table.sum(1), table.max(1)
    clear = (count >= FEWEST) & (2 * most > count) & (called != torch.arange(k))
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
