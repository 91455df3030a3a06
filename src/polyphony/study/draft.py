"""A first recipe for networks that are trained already: what can be found out is found out, and said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median_low
from typing import Any

from PIL import Image
from pydantic import TypeAdapter, ValidationError
from torch import nn

from polyphony import metrics
from polyphony._util.text import counted, printable
from polyphony.data import Options, Splits, load
from polyphony.data.images import SUFFIXES
from polyphony.ensembles import Single
from polyphony.nn.weights import WeightsError, load_weights
from polyphony.recipe import ForeignTable, RecipeError, foreign_table
from polyphony.recipe.points import toml
from polyphony.recipe.table import Name
from polyphony.study.given import refuse_copies
from polyphony.training.predict import predict

LOOKED_AT = 500  # pictures whose sizes, and validation images whose classes, are looked at
LARGEST_SIDE = 224
MIRRORED = 0.9  # share of what a network knows that it must know of mirrored images, for students to see them
LONG = 100  # letters of a line
LARGEST_BATCH, FEWEST_STEPS = 128, 8  # an epoch
NORMALISATIONS: dict[str, dict[str, tuple[float, ...]]] = {
    "none but its own": {},
    "ImageNet's": {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    "MNIST's": {"mean": (0.1307,), "std": (0.3081,)},
    "0.5 and 0.5": {"mean": (0.5,), "std": (0.5,)},
    "pixels in [0, 255]": {"mean": (0.0,), "std": (1 / 255,)},
}
TEMPLATE = """\
# {members} networks that are trained already, distilled into one with {members} members.
#
{findings}
#
# polyphony show {file} says what it will do and cost; polyphony study {file} does it.
members = {members}

[data]
name = {data}{resolution}
augment = {{ pad = {pad}, flip = {flip} }}  # flip = false where left and right mean something

[teachers]
network = {network}
weights = {weights}

[student]  # of the teachers' network; "network = …" names a smaller one, which starts fresh
start = "teacher"  # from the first teacher's weights
epochs = 30
batch = {batch}
{rates}
temperature = 4
step_size = "match"  # where the teachers disagree on training images as they do on held-out ones

[methods]
kd = {{ perturb = "clean" }}
kd-ods = {{ perturb = "ods", temperature = 1 }}
"""
FOR_CONVOLUTIONS = "learning_rate = 0.02\nweight_decay = 5e-4\nwarm_up = 2"
FOR_TRANSFORMERS = """optimizer = "adamw"
schedule = "cosine"
clip = 1.0
learning_rate = 5e-4
weight_decay = 0.05
warm_up = 5"""


@dataclass(frozen=True)
class Draft:
    """A recipe's text, and what was found out on the way, a sentence each."""

    text: str
    findings: tuple[str, ...]


def draft(images: Path, weights: Sequence[Path], network: str, file: Path, size: int | None = None) -> Draft:
    """The recipe that distils these networks, which know the classes of these images, into one.

    `network` is "module:function", "timm:NAME" or "transformers:FOLDER"; `file` is where the recipe will be,
    beside which modules are looked for. Pictures are brought to `size`, or to what most of them have room
    for. Of the usual normalisations it takes the one with which the first network is right most often; the
    other networks are tried with it, too. Students see mirrored images if that network knows them.
    """
    if len(weights) < 2:
        raise RecipeError(
            f"an ensemble has two networks or more, not {counted(len(weights), 'file')} of weights"
        )
    check_name(file)
    for path in (images, *weights):
        check_text(path)
    refuse_copies(weights)
    side = common_side(images) if size is None else size
    source = str(images.absolute()) if images.exists() else str(images)  # or the name of a data set
    splits = load(source, Options(resolution=side))
    table = foreign_table(network, file.absolute().parent)
    scores = {name: tried(table, keys, weights[0], splits) for name, keys in NORMALISATIONS.items()}
    best = max(scores, key=lambda name: scores[name])
    table = table.model_copy(update=NORMALISATIONS[best])
    fitting = {name: right for name, (right, nll) in scores.items() if nll > -math.inf}
    shares = ", ".join(f"{right:.1%} with {name}" for name, right in fitting.items())
    first, *others = called(weights)
    right = [tried(table, {}, path, splits)[0] for path in weights[1:]]
    each = ", ".join(f"{name} {share:.1%}" for name, share in zip(others, right, strict=True))
    mirrored = tried(table, {}, weights[0], with_mirrored(splits))[0]
    flip = mirrored >= MIRRORED * scores[best][0]
    height, width = splits.train.images.shape[-2:]
    findings = (
        f"{len(splits.train):,} training images of {len(splits.classes)} classes, {width}×{height} pixels.",
        f"{first} is right on so many of {min(LOOKED_AT, len(splits.valid))} validation images,"
        f" by normalisation: {shares}.",
        f"The other networks, with {best}: {each}.",
        f"{first} on mirrored images: {mirrored:.1%}; students are {'' if flip else 'not '}shown such.",
    )
    return Draft(written(source, weights, table, file, side, flip, splits, findings), findings)


def check_name(file: Path) -> None:
    """A RecipeError unless a recipe in this file has a name, which is the file's."""
    try:
        TypeAdapter(Name).validate_python(file.stem)
    except ValidationError:
        raise RecipeError(
            f"{file} would name a recipe '{file.stem}': names are of letters, digits and + _ . -"
        ) from None


def check_text(path: Path) -> None:
    """A RecipeError where a path cannot be written in a recipe."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise RecipeError(f"{path} is no UTF-8, in which recipes are written: rename it") from None


def called(weights: Sequence[Path]) -> list[str]:
    """The files' names, or their paths where some have the same name."""
    names = [path.name for path in weights]
    return names if len(set(names)) == len(names) else [str(path) for path in weights]


def written(
    source: str,
    weights: Sequence[Path],
    table: ForeignTable,
    file: Path,
    side: int | None,
    flip: bool,
    splits: Splits,
    findings: Sequence[str],
) -> str:
    """The recipe's text."""
    shape = splits.train.images.shape
    network = table.fitted(len(splits.classes), tuple(shape[1:]))
    convolutions = any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    batch = 2 ** int(math.log2(max(2, min(LARGEST_BATCH, shape[0] / FEWEST_STEPS))))
    return TEMPLATE.format(
        members=len(weights),
        findings="\n".join(f"# {printable(finding)}" for finding in findings),
        file=printable(str(file)),
        data=toml(source),
        resolution="" if side is None else f"\nresolution = {side}",
        pad=min(4, shape[-1] // 8),
        flip=toml(flip),
        network=toml(table.model_dump(mode="json", exclude_defaults=True, exclude={"folder"})),
        weights=toml_paths([str(path.absolute()) for path in weights]),
        batch=batch,
        rates=FOR_CONVOLUTIONS if convolutions else FOR_TRANSFORMERS,
    )


def toml_paths(paths: Sequence[str]) -> str:
    """Paths as TOML: in one line, or one a line where that would be long."""
    line = toml(paths)
    return line if len(line) <= LONG else "[\n" + "".join(f"    {toml(path)},\n" for path in paths) + "]"


def common_side(images: Path) -> int | None:
    """The side to bring pictures to: nothing where all that are looked at have one size and are square."""
    if not images.is_dir():
        return None
    files = (path for path in sorted(images.rglob("*")) if path.suffix.lower() in SUFFIXES)
    sizes = [picture_size(path) for path in islice(files, LOOKED_AT)]
    if len(set(sizes)) <= 1 and all(width == height for width, height in sizes):
        return None
    return min(LARGEST_SIDE, median_low(min(size) for size in sizes))


def picture_size(path: Path) -> tuple[int, int]:
    """(width, height), from a picture's first bytes; the reader says what is wrong with one that is none."""
    try:
        with Image.open(path) as picture:
            return picture.size
    except Exception:
        return (LARGEST_SIDE, LARGEST_SIDE)


def with_mirrored(splits: Splits) -> Splits:
    """The splits with validation images, as many as are looked at, whose left is right."""
    valid = splits.valid.some(LOOKED_AT)
    return replace(splits, valid=replace(valid, images=valid.images.flip(-1)))


def tried(table: ForeignTable, keys: Mapping[str, Any], path: Path, splits: Splits) -> tuple[float, float]:
    """(accuracy, −NLL) of a network with a normalisation in front; the worst where it does not fit images."""
    shape = tuple(splits.train.images.shape[1:])
    try:
        network = table.model_copy(update=dict(keys)).fitted(len(splits.classes), shape)
    except RecipeError:
        return 0.0, -math.inf
    load_weights(network.network, path)
    seen = predict(Single(network), splits.valid.some(LOOKED_AT))
    if not bool(seen.logits.isfinite().all()):
        raise WeightsError(f"{path} makes a network whose answers are no numbers: is it damaged?")
    log_probs = seen.log_probs()
    return metrics.accuracy(log_probs, seen.labels), -metrics.nll(log_probs, seen.labels)
