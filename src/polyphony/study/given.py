"""Teachers that were trained elsewhere: read from their files, and judged on validation images."""

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

SURE = 3.0  # standard deviations above chance that a teacher must be
FEWEST = 5  # images of a class from which on it may be found to be swapped
RENAMED = 0.5  # share of images right once classes are renamed, from which on their order is at fault


def refuse_copies(weights: Sequence[Path]) -> None:
    """A RecipeError where two files are the same, or hold the same numbers, however they are saved."""
    found: dict[str, Path] = {}
    for path in weights:
        if weights.count(path) > 1:
            raise RecipeError(f"{path} is given twice: an ensemble's networks differ")
        known = found.setdefault(numbers_hash(path, weights_hash(path)), path)
        if known != path:
            raise RecipeError(f"{path} holds the same as {known}: an ensemble's networks differ")


@lru_cache
def numbers_hash(path: Path, file_hash: str) -> str:
    """The hash of the tensors in a file, in the order of their names, which prefixes do not change."""
    digest = hashlib.sha256()
    for _, value in sorted(read_weights(path).items()):
        digest.update(f"{value.dtype} {list(value.shape)} ".encode())
        if is_plain(value):  # others no network takes, which is said when it is given them
            digest.update(value.detach().flatten().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def take_in(network: nn.Module, path: Path, valid: Split, classes: Sequence[str], device: str) -> None:
    """Give a network the weights of a file; a WeightsError unless it then knows the classes of the data."""
    load_weights(network.network if isinstance(network, Adapted) else network, path)
    logits = predict(Single(network).to(device), valid).logits[0]
    if not bool(logits.isfinite().all()):
        raise WeightsError(f"{path} gives answers that are not numbers")
    refuse_unfit(logits.argmax(-1), valid.labels, classes, path)


def refuse_unfit(answers: Tensor, labels: Tensor, classes: Sequence[str], path: Path) -> None:
    """A WeightsError where answers name all classes or a few in another order, or are no better than the
    commonest class for all would be. [n], [n]"""
    k, n = len(classes), len(labels)
    chance = float(labels.bincount(minlength=k).max()) / n
    right = float((answers == labels).double().mean())
    scores = f"{path} is right on {right:.1%} of {n} validation images, and chance is {chance:.1%}"
    names = best_names(answers[::2], labels[::2], k)
    renamed = float((answers[1::2] == names[labels[1::2]]).double().mean())  # on images they do not stem from
    if renamed >= max(RENAMED, 2 * right):
        moved, called = next(pair for pair in enumerate(names.tolist()) if pair[0] != pair[1])
        raise WeightsError(
            f"{scores}: it has the classes in another order (it answers '{classes[called]}' for"
            f" '{classes[moved]}'); order its outputs as the data's classes"
        )
    sure = SURE * math.sqrt(chance * (1 - chance) / n)
    margin = min(sure, (1 - chance) / 2)  # of few images half of what is left above chance
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
    """For each class the answer to take for it, every answer once, so that most are right. [n], [n] → [k]"""
    from scipy.optimize import linear_sum_assignment  # slow to import

    return torch.from_numpy(linear_sum_assignment(confusion(answers, labels, k), maximize=True)[1])


def swapped(answers: Tensor, labels: Tensor, k: int) -> list[int]:
    """Classes of which most images of each are called by the next one's name, and of the last by the first's.

    Nothing where there are none, where one has too few images, or where chance might call images of classes
    that nobody can tell apart so. [n], [n] → [2 or more]
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
