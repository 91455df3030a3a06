"""The preprocessing that pretrained networks expect: measured on validation images, or set by the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyphony import metrics
from polyphony.data import Options, Split, Splits, load
from polyphony.ensembles import Single
from polyphony.metrics import Predictions
from polyphony.nn.adapter import Order
from polyphony.nn.weights import WeightsError, load_weights
from polyphony.recipe import ForeignTable, RecipeError
from polyphony.recipe.foreign import PythonNetwork
from polyphony.study.pretrained import refuse_unfit
from polyphony.training.predict import predict

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

    def answers(self, path: Path, images: Split | None = None) -> Predictions:
        """The predictions of the network of a file; raises if the file or the network does not fit."""
        shape = tuple(self.splits.train.images.shape[1:])
        network = self.table.fitted(len(self.splits.classes), shape)
        load_weights(network.network, path)
        seen = predict(Single(network), self.images if images is None else images)
        if not bool(seen.logits.isfinite().all()):
            raise WeightsError(f"{path} gives outputs that are not finite numbers: is it damaged?")
        return seen

    def accuracy(self, path: Path, images: Split | None = None) -> float:
        """The accuracy of the network of a file."""
        seen = self.answers(path, images)
        return metrics.accuracy(seen.log_probs(), seen.labels)

    def normalised(self, say: Say) -> Networks:
        """The networks with the user's normalisation, or the one with which the first is most accurate."""
        if self.table.mean is not None:
            return self
        tried: dict[str, tuple[float, float]] = {}
        for name, keys in normalisations(self.table, self.splits).items():
            try:
                seen = self.updated(keys).answers(self.weights[0])
            except RecipeError:  # the network's own may have another number of channels
                continue
            log_probs = seen.log_probs()
            tried[name] = metrics.accuracy(log_probs, seen.labels), -metrics.nll(log_probs, seen.labels)
        if not tried:
            self.answers(self.weights[0])  # raises the reason why it takes no images
        best = max(tried, key=lambda name: tried[name])
        say(f"Accuracy of {self.names[0]} on {len(self.images)} validation images, by normalisation:")
        for name, (right, _) in tried.items():
            say(f"  {name:<16} {right:6.1%}{'  (taken)' if name == best else ''}")
        say(
            f"If your own evaluation gave more than {tried[best][0]:.1%}, preprocessing differs:"
            " give --mean, --std, --size or --order."
        )
        return self.updated(normalisations(self.table, self.splits)[best])

    def updated(self, keys: dict[str, Any]) -> Networks:
        """The networks with some keys of their table changed."""
        return replace(self, table=self.table.model_copy(update=keys))

    def checked(self, say: Say) -> Networks:
        """The networks; a WeightsError if one is at chance or has its classes in another order."""
        shares = []
        for name, path in zip(self.names, self.weights, strict=True):
            seen = self.answers(path)
            refuse_unfit(seen.logits[0].argmax(-1), seen.labels, self.splits.classes, path)
            shares.append(f"{name} {metrics.accuracy(seen.log_probs(), seen.labels):.1%}")
        say(f"Accuracy of all networks: {', '.join(shares)}.")
        return self

    def know_mirrored(self, say: Say) -> bool:
        """Whether the first network recognises images that are flipped horizontally."""
        flipped = replace(self.images, images=self.images.images.flip(-1))
        plain, mirrored = (self.accuracy(self.weights[0], images) for images in (self.images, flipped))
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
    own = read.train.images.shape[1]
    grey = is_grey(read.train)
    faults: dict[int, Exception] = {}
    for channels in (1, 3) if grey else (3, 1):
        splits = read if channels == own else load(source, Options(resolution=side, channels=channels))
        networks = Networks(table, weights, splits)
        try:
            networks.answers(weights[0], splits.valid[:1])
        except (RecipeError, WeightsError) as fault:
            faults[channels] = fault
        else:
            return networks, None if channels == own else channels
    raise faults[own]


def is_grey(split: Split) -> bool:
    """Whether all of the first images are grey."""
    images = split.some(LOOKED_AT).images
    return bool((images == images[:, :1]).all())
