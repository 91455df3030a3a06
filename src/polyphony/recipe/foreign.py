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
from polyphony.nn.adapter import ChannelOrder
from polyphony.recipe.python import PythonTable, as_recipe_error, seeded
from polyphony.recipe.table import RecipeError

Numbers = Annotated[tuple[float, ...], Field(min_length=1)]
PositiveNumbers = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]
Side = Annotated[int, Field(gt=0, le=10**4)]

TEST_IMAGES = 2
SIZES = {  # names that a network's arguments usually have
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
PLAIN = {"mean": 0.0, "std": 1.0}  # no normalisation


class NetworkTable(Settings):
    """A network by its kind. The network takes pixels in [0, 1] and normalises them itself."""

    width_key: ClassVar[str] = ""  # the key of its width; empty if it has none

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
    """A network of another library. The recipe can change its preprocessing."""

    mean: Numbers | None = None
    """Mean of the pixels in [0, 1], one number or one for each channel."""
    std: PositiveNumbers | None = None
    """Standard deviation of the pixels."""
    size: Side | None = None
    """Side in pixels: images are resized to it before the network."""
    order: ChannelOrder | None = None
    """Order of the colour channels that the network expects."""

    @model_validator(mode="after")
    def _has_mean_and_std_together(self) -> ForeignTable:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std go together: give both or neither")
        return self

    def make_network(self, classes: int, channels: int) -> nn.Module:
        """The library's network, with random weights from PyTorch's global generator."""
        raise NotImplementedError

    def preprocessing(self) -> dict[str, Any]:
        """`mean`, `std`, `size` and `order`, if the recipe sets them."""
        return self.model_dump(include={"mean", "std", "size", "order"}, exclude_none=True)

    def expects(self, network: nn.Module) -> dict[str, Any]:
        """`mean`, `std`, `size` and `order`, if the network describes them itself."""
        return {}

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> Adapted:
        with seeded(rng):
            network = self.make_network(classes, channels)
        settings = self.expects(network) | self.preprocessing()
        mean, std = (repeated(settings.get(key, (default,)), channels) for key, default in PLAIN.items())
        order: ChannelOrder = "rgb" if channels % 3 else settings.get("order", "rgb")  # grey images have none
        return adapt(network, mean, std, settings.get("size"), order)

    def fitted(
        self, classes: int, shape: Size, rng: torch.Generator | None = None, copies: int = 1
    ) -> Adapted:
        """The same; raises a RecipeError if the network rejects such images or has other outputs."""
        network = self.build(copies * classes, copies * shape[0], rng)
        network.shape = (copies * shape[0], *shape[1:])
        images = torch.zeros(TEST_IMAGES, *network.shape)
        if images.is_meta:  # only the cost is counted
            return network
        sides = " × ".join(map(str, network.shape))
        rejected = as_recipe_error(f"'{self.label}' cannot take images of {sides}")
        with rejected, torch.no_grad(), evaluating(network):
            output = tuple(network(images).shape)
        if output != (TEST_IMAGES, copies * classes):
            raise RecipeError(
                f"'{self.label}' answers {TEST_IMAGES} images with {list(output)},"
                f" not with [{TEST_IMAGES}, {copies * classes}]"
            )
        return network

    def normalize(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        """Does nothing: `build` sets the normalisation."""


def repeated(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """One value per channel; values are repeated for grey statistics and for several images at once."""
    if channels % len(values):
        raise RecipeError(f"mean and std are given for {len(values)} channels, but images have {channels}")
    return tuple(values) * (channels // len(values))


class PythonNetwork(PythonTable, ForeignTable):
    """The user's network: a function or class, called with `args` and with the sizes that it takes."""

    kind: Literal["python"]

    def make_network(self, classes: int, channels: int) -> nn.Module:
        sizes = {"classes": classes, "channels": channels}
        with self.as_recipe_error():
            arguments = self.size_arguments(sizes)
        try:
            network = self.make(**sizes if arguments is None else arguments)
        except RecipeError as error:
            if arguments is not None or "unexpected keyword argument" not in str(error):
                raise
            network = self.make(num_classes=classes)  # as in torchvision's functions
        if not isinstance(network, nn.Module):
            raise RecipeError(f"'{self.name}' makes a {type(network).__name__}, not a torch.nn.Module")
        return network

    def size_arguments(self, sizes: Mapping[str, int]) -> dict[str, int] | None:
        """The sizes under the names that the function or class has for them; None if its names are unknown.

        Raises a RecipeError if it requires another argument that `args` does not set.
        """
        try:
            parameters = inspect.signature(self.load()).parameters.values()
        except (TypeError, ValueError):
            return None
        names = [one.name for one in parameters if one.kind is not one.POSITIONAL_ONLY]
        arguments = {name: size for key, size in sizes.items() for name in names if name in SIZES[key]}
        if not arguments and any(one.kind is one.VAR_KEYWORD for one in parameters):
            return None
        for one in parameters:
            optional = one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
            if not optional and one.name not in {*arguments, *self.args}:
                raise RecipeError(
                    f"'{self.name}' needs a value for '{one.name}': give it in args, or name a function"
                    f" 'def make(classes, channels): return {self.label}(…)'"
                )
        return {name: size for name, size in arguments.items() if name not in self.args}
