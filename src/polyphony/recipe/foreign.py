"""Networks of other libraries and of the user: their preprocessing, and a test on images of zeros."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from polyphony._util.settings import Settings
from polyphony.ensembles import evaluating
from polyphony.nn import Adapted, Size, adapt
from polyphony.nn.adapter import Order
from polyphony.recipe.python import PythonTable, explained, seeded
from polyphony.recipe.table import RecipeError

Numbers = Annotated[tuple[float, ...], Field(min_length=1)]
PositiveNumbers = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]
Side = Annotated[int, Field(gt=0, le=10**4)]

FEW = 2  # images that a network is tried on
SIZES = {  # names of a network's arguments
    "classes": (
        "classes",
        "num_classes",
        "n_classes",
        "nb_classes",
        "num_labels",
        "n_labels",
        "out_features",
    ),
    "channels": ("channels", "in_channels", "in_chans", "num_channels", "n_channels", "input_channels"),
}
PLAIN = {"mean": 0.0, "std": 1.0}  # of a network that takes pixels as they are


class NetworkTable(Settings):
    """A network by its kind. It takes pixels in [0, 1], and normalises them itself."""

    width_key: ClassVar[str] = ""  # the key that sets its width, if it has one

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> nn.Module:
        """The network with fresh weights."""
        raise NotImplementedError

    def fitted(
        self, classes: int, shape: Size, rng: torch.Generator | None = None, copies: int = 1
    ) -> nn.Module:
        """A network for images of a shape [c h w], which takes `copies` images at once."""
        return self.build(copies * classes, copies * shape[0], rng)

    def portable(self) -> NetworkTable:
        """The same table without references to other files."""
        return self

    def normalize(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        """Set the normalisation of a network to these statistics of the data."""
        network.normalize.set(mean, std)  # type: ignore[operator, union-attr]


class ForeignTable(NetworkTable):
    """A network of another library. Its preprocessing is its own, or set here."""

    mean: Numbers | None = None
    """Mean of the pixels in [0, 1], one number or one for each channel."""
    std: PositiveNumbers | None = None
    """Standard deviation of the pixels."""
    size: Side | None = None
    """Side to which images are resized in front of the network, in pixels."""
    order: Order | None = None
    """Order of the channels that the network expects."""

    @model_validator(mode="after")
    def _has_mean_and_std_together(self) -> ForeignTable:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std go together: give both or neither")
        return self

    def make_network(self, classes: int, channels: int) -> nn.Module:
        """The network itself, with random weights from PyTorch's global generator."""
        raise NotImplementedError

    def given(self) -> dict[str, Any]:
        """`mean`, `std`, `size` and `order`, if the recipe sets them."""
        return self.model_dump(include={"mean", "std", "size", "order"}, exclude_none=True)

    def expects(self, network: nn.Module) -> dict[str, Any]:
        """`mean`, `std`, `size` and `order`, if the network describes them itself."""
        return {}

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> Adapted:
        with seeded(rng):
            network = self.make_network(classes, channels)
        known = self.expects(network) | self.given()
        mean, std = (repeated(known.get(key, (default,)), channels) for key, default in PLAIN.items())
        order: Order = "rgb" if channels % 3 else known.get("order", "rgb")  # grey images have none
        return adapt(network, mean, std, known.get("size"), order)

    def fitted(
        self, classes: int, shape: Size, rng: torch.Generator | None = None, copies: int = 1
    ) -> Adapted:
        """The same. A RecipeError if it rejects such images, or returns another number of logits."""
        network = self.build(copies * classes, copies * shape[0], rng)
        network.shape = (copies * shape[0], *shape[1:])
        images = torch.zeros(FEW, *network.shape)
        if images.is_meta:  # a device on which models are counted
            return network
        sides = " × ".join(map(str, network.shape))
        refused = explained(f"'{self.label}' cannot take images of {sides}")
        with refused, torch.no_grad(), evaluating(network):
            found = tuple(network(images).shape)
        if found != (FEW, copies * classes):
            raise RecipeError(
                f"'{self.label}' answers {FEW} images with {list(found)},"
                f" not with [{FEW}, {copies * classes}]"
            )
        return network

    def normalize(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        """Does nothing: its normalisation was set when it was built."""


def repeated(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """Statistics of an image's channels, repeated for a network that takes several images at once."""
    if channels % len(values):
        raise RecipeError(f"mean and std are given for {len(values)} channels, but images have {channels}")
    return tuple(values) * (channels // len(values))


class PythonNetwork(PythonTable, ForeignTable):
    """The user's network: a function or class, called with `args` and the sizes that it has arguments for."""

    kind: Literal["python"]

    def make_network(self, classes: int, channels: int) -> nn.Module:
        sizes = {"classes": classes, "channels": channels}
        with self.explained():
            named = self.named(sizes)
        try:
            network = self.make(**sizes if named is None else named)
        except RecipeError as fault:
            if named is not None or "unexpected keyword argument" not in str(fault):
                raise
            network = self.make(num_classes=classes)  # as in torchvision's functions
        if not isinstance(network, nn.Module):
            raise RecipeError(f"'{self.name}' makes a {type(network).__name__}, not a torch.nn.Module")
        return network

    def named(self, sizes: Mapping[str, int]) -> dict[str, int] | None:
        """The sizes by the names of the maker's arguments; None if it does not name them.

        A RecipeError if it needs another argument.
        """
        try:
            parameters = inspect.signature(self.load()).parameters.values()
        except (TypeError, ValueError):
            return None
        names = [each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY]
        found = {name: size for key, size in sizes.items() for name in names if name in SIZES[key]}
        if not found and any(each.kind is each.VAR_KEYWORD for each in parameters):
            return None
        for each in parameters:
            optional = each.default is not each.empty or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
            if not optional and each.name not in {*found, *self.args}:
                raise RecipeError(
                    f"'{self.name}' needs a value for '{each.name}': give it in args, or name a function"
                    f" 'def make(classes, channels): return {self.label}(…)'"
                )
        return {name: size for name, size in found.items() if name not in self.args}
