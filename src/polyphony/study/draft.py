"""Writes a first recipe for pretrained networks."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median_low

from PIL import Image
from pydantic import TypeAdapter, ValidationError
from torch import nn

from polyphony._util.text import counted, duration, printable
from polyphony.compute.devices import choose_device
from polyphony.data import Splits
from polyphony.data.images import SUFFIXES
from polyphony.data.own import read_unlabelled
from polyphony.execute.processes import default_workers
from polyphony.recipe import RecipeError, foreign_table
from polyphony.recipe.points import toml
from polyphony.recipe.read import check
from polyphony.recipe.table import Name
from polyphony.study.cost import costs
from polyphony.study.pretrained import (
    LOOKED_AT,
    Networks,
    Preprocessing,
    Say,
    networks_and_images,
    refuse_copies,
)
from polyphony.study.study import Study

DEFAULT_SIDE = 224  # of large pictures, in pixels
LINE_LENGTH = 100
LARGEST_BATCH, FEWEST_STEPS = 64, 8  # of an epoch
STEPS, EPOCHS = 600, (10, 60)  # for a student that starts from a teacher
SHARED, NEAR = 0.5, 0.1  # the share of multiply-adds that members share, and the spread of their factors
BRANCHED = f"Members share the first layers ({SHARED:.0%} of the multiply-adds), which run once"
EVERYWHERE = "Every layer has members"
LONGER = 3  # times as many epochs from random weights
MINUTES = 10.0  # to train all students on this machine
TEMPLATE = """\
# {members} trained networks, distilled into one student with {members} members.
#
{findings}
#
# polyphony show {file}    says what it will do and cost
# polyphony study {file}   does it
members = {members}
seeds = {seeds}

[data]
name = {data}{read}
augment = {{ pad = {pad}, flip = {flip} }}

[teachers]
network = {network}
weights = {weights}

[student]  # has the teachers' network
start = "teacher"  # from the first teacher's weights
# {members_are}. They start close together (factor_std).
form = {form}
passes = "one"
epochs = {epochs}
batch = {batch}
{rates}
temperature = 1

# Candidates: predict and export take the one with the lowest calibrated NLL on validation images.
[methods]
mean = {{ form = "single", perturb = "clean", temperature = 4 }}  # one plain network: the cheapest student
mean-ods = {{ form = "single", perturb = "ods", temperature = 2, step_size = "8/255" }}
kd = {{ perturb = "clean", temperature = 4 }}
ods-3 = {{ perturb = "ods", step_size = "3/255" }}
"""
MORE = """\
ods-12 = {{ perturb = "ods", step_size = "12/255" }}
# Members start far apart (factor_std = 0.5, as in the paper): more diverse, but needs longer training.
ods-wide = {{ perturb = "ods", step_size = "3/255", form = {wide} }}
"""
LABELLED = """\
# Without the images that have no labels, for comparison.
ods-labelled = {{ perturb = "ods", step_size = "3/255", share = 0 }}
"""
FRESH = """\
# From fresh weights: may be better where the teachers have memorised their training images.
kd-fresh = {{ perturb = "clean", temperature = 4, start = "fresh", form = {wide}, epochs = {long} }}
ods-fresh = {{ perturb = "ods", step_size = "3/255", start = "fresh", form = {wide}, epochs = {long} }}
"""
# Candidates beside the first four, and seeds; the first set that fits the time is used.
CANDIDATE_SETS = [((MORE, FRESH), 3), ((MORE,), 3), ((), 3), ((MORE, FRESH), 1), ((MORE,), 1), ((), 1)]
FOR_BATCH_NORM = "learning_rate = 0.05\nweight_decay = 5e-4\nwarm_up = 2"
FOR_OTHERS = """optimizer = "adamw"
schedule = "cosine"
clip = 1.0
learning_rate = 5e-4
weight_decay = 0.05
warm_up = 2"""


@dataclass(frozen=True)
class DraftInputs:
    """What a recipe is written from."""

    networks: Networks
    source: str
    side: int | None
    channels: int | None
    flip: bool
    file: Path
    unlabelled: Path | None = None
    shares_front: bool = True  # do members share the first half of the network?

    @property
    def has_batch_norm(self) -> bool:
        """Whether the network has BatchNorm: then SGD suits it, and it soon learns from random weights."""
        return any(isinstance(module, nn.BatchNorm2d) for module in self.networks.fitted().modules())


def draft(
    images: Path,
    weights: Sequence[Path],
    network: str,
    file: Path,
    given: Preprocessing,
    say: Say,
    unlabelled: Path | None = None,
    minutes: float = MINUTES,
) -> str:
    """A recipe that distils these networks, which know the classes of these images, into one student.

    `network` is "module:function", "module:Class", "timm:NAME" or "transformers:FOLDER"; `file` is the path
    of the recipe, and modules are looked for beside it; `unlabelled` are images without labels. The recipe
    has as many candidates as this machine can train in `minutes`. Each finding goes to `say` as a line, and
    into the recipe. Raises a RecipeError, WeightsError or DataError if the networks cannot be distilled.
    """
    if len(weights) < 2:
        raise RecipeError(f"an ensemble needs two networks or more, not {counted(len(weights), 'file')}")
    check_name(file)
    for path in (images, *weights, *([unlabelled] if unlabelled else [])):
        check_text(path)
    refuse_copies(weights)
    findings: list[str] = []

    def tell(finding: str) -> None:
        findings.append(finding)
        say(finding)

    side = common_side(images) if given.size is None else given.size
    source = str(images.absolute()) if images.exists() else str(images)  # or the name of a data set
    table = given.network(foreign_table(network, file.absolute().parent))
    networks, channels = networks_and_images(table, weights, source, side)
    tell_images(networks.splits, tell)
    networks = networks.normalised(tell)
    networks.check(tell)
    flip = networks.know_mirrored(tell)
    if unlabelled:
        count = len(read_unlabelled(unlabelled, tuple(networks.splits.train.images.shape[1:])))
        tell(f"{count:,} images without labels in {unlabelled}: half of each batch.")
    inputs = DraftInputs(networks, source, side, channels, flip, file, unlabelled)
    return recipe_within(inputs, findings, minutes, tell)


def tell_images(splits: Splits, say: Say) -> None:
    """Say how many images there are, and whether the networks may have been trained on the held-out ones."""
    sizes = f"{len(splits.train):,} training, {len(splits.valid):,} validation and {len(splits.test):,} test"
    channels, height, width = splits.train.images.shape[1:]
    kind = "grey" if channels == 1 else "colour"
    say(f"{sizes} images of {len(splits.classes)} classes, {width}×{height} pixels, {kind}.")
    if splits.set_aside:
        names = " and ".join("validation" if part == "valid" else part for part in splits.set_aside)
        say(f"No {names} images were given, so some training images were set aside instead.")
        say("If your networks were trained on those, all scores look too good and temperatures are too low:")
        say("put images that they have not seen in folders 'valid' and 'test' beside 'train'.")


@dataclass(frozen=True)
class Offer:
    """Candidates beside the first four, seeds, and the seconds that all these students take to train."""

    candidates: Sequence[str]
    seeds: int
    methods: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.methods} candidates with {counted(self.seeds, 'seed')}"


def recipe_within(inputs: DraftInputs, findings: list[str], minutes: float, say: Say) -> str:
    """The text of the recipe with as many candidates and seeds as this machine can train in the time."""
    plans = [(more, seeds) for more, seeds in CANDIDATE_SETS if inputs.has_batch_norm or FRESH not in more]
    try:
        seconds = estimated(inputs, recipe_text(inputs, (), *plans[0]))
    except RecipeError as fault:
        if inputs.shares_front:
            say(f"Members share no layers, since they cannot branch off in the middle: {fault}.")
            return recipe_within(replace(inputs, shares_front=False), findings, minutes, say)
        say(f"The time to train students cannot be estimated: {fault}.")  # the user will correct the recipe
        return recipe_text(inputs, findings, *plans[-1])
    offers = []
    for more, seeds in plans:
        methods = tomllib.loads(recipe_text(inputs, (), more, seeds))["methods"]
        offers.append(Offer(more, seeds, len(methods), seeds * sum(seconds[name] for name in methods)))
    chosen = next((each for each in offers if each.seconds <= 60 * minutes), offers[-1])
    say(f"{chosen}: about {duration(chosen.seconds)} on this machine.")
    if chosen is not offers[0]:
        needed = offers[0].seconds
        say(f"{offers[0]} take {duration(needed)}: --minutes {math.ceil(needed / 60)}.")
    return recipe_text(inputs, findings, chosen.candidates, chosen.seeds)


def estimated(inputs: DraftInputs, text: str) -> dict[str, float]:
    """Seconds for a student of each method on this machine, with others in parallel."""
    folder = inputs.file.absolute().parent
    recipe = check({"name": inputs.file.stem, **tomllib.loads(text)}, inputs.file.name, folder)
    study = Study(recipe, folder, device=choose_device(), splits_override=inputs.networks.splits)
    at_once = default_workers(study.device, study.threads())
    return {cost.name: cost.seconds / at_once for cost in costs(study)}


def recipe_text(inputs: DraftInputs, findings: Sequence[str], candidates: Sequence[str], seeds: int) -> str:
    """The text of the recipe, with these candidates beside the first four."""
    networks = inputs.networks
    shape = networks.splits.train.images.shape
    batch = 2 ** int(math.log2(max(2, min(LARGEST_BATCH, shape[0] / FEWEST_STEPS))))
    fewest, most = EPOCHS
    epochs = min(most, max(fewest, round(STEPS * batch / shape[0])))
    form = {"kind": "batch_ensemble", **({"branch": SHARED} if inputs.shares_front else {})}
    labelled = [LABELLED] if inputs.unlabelled else []
    return "".join([TEMPLATE, *labelled, *candidates]).format(
        members=len(networks.weights),
        findings="\n".join(f"# {printable(finding)}" for finding in findings),
        file=printable(str(inputs.file)),
        seeds=toml(list(range(seeds))),
        data=toml(inputs.source),
        read="".join(f"\n{key} = {value}" for key, value in data_options(inputs).items()),
        pad=min(4, shape[-1] // 8),
        flip=toml(inputs.flip),
        network=network_text(networks),
        weights=toml_paths([str(path.absolute()) for path in networks.weights]),
        members_are=BRANCHED if inputs.shares_front else EVERYWHERE,
        form=toml(form | {"factor_std": NEAR}),
        wide=toml(form),
        epochs=epochs,
        long=LONGER * epochs,
        batch=batch,
        rates=FOR_BATCH_NORM if inputs.has_batch_norm else FOR_OTHERS,
    )


def data_options(inputs: DraftInputs) -> dict[str, object]:
    """Keys of the recipe's [data] that are not at their defaults, as TOML."""
    unlabelled = inputs.unlabelled and toml(str(inputs.unlabelled.absolute()))
    options = {"resolution": inputs.side, "channels": inputs.channels, "unlabelled": unlabelled}
    return {key: value for key, value in options.items() if value is not None}


def network_text(networks: Networks) -> str:
    """The networks' table as TOML, kind and name first."""
    keys = networks.table.model_dump(mode="json", exclude_defaults=True, exclude={"folder"})
    return toml({"kind": keys.pop("kind"), "name": keys.pop("name"), **keys})


def check_name(file: Path) -> None:
    """Raise a RecipeError unless the file's name can be the name of a recipe."""
    try:
        TypeAdapter(Name).validate_python(file.stem)
    except ValidationError:
        raise RecipeError(f"{file} would name a recipe '{file.stem}': use letters, digits, + _ . -") from None


def check_text(path: Path) -> None:
    """Raise a RecipeError if a path cannot be written in a recipe."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise RecipeError(f"{path} is not UTF-8, and a recipe must be: rename it") from None


def toml_paths(paths: Sequence[str]) -> str:
    """Paths as TOML, in one line, or in several if that is too long."""
    line = toml(paths)
    return (
        line if len(line) <= LINE_LENGTH else "[\n" + "".join(f"    {toml(path)},\n" for path in paths) + "]"
    )


def common_side(images: Path) -> int | None:
    """The side to resize pictures to; None if all pictures that are checked are square and of one size."""
    if not images.is_dir():
        return None
    files = (path for path in sorted(images.rglob("*")) if path.suffix.lower() in SUFFIXES)
    sizes = [picture_size(path) for path in islice(files, LOOKED_AT)]
    if len(set(sizes)) <= 1 and all(width == height for width, height in sizes):
        return None
    return min(DEFAULT_SIDE, median_low(min(size) for size in sizes))


def picture_size(path: Path) -> tuple[int, int]:
    """(width, height) from a picture's first bytes; the largest size if it is damaged."""
    try:
        with Image.open(path) as picture:
            return picture.size
    except Exception:
        return (DEFAULT_SIDE, DEFAULT_SIDE)
