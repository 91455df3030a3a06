"""Networks of other people: from the user's own module, timm or transformers, and what they expect."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, ValidationError, model_validator
from torch import nn

from polyphony.nn import adapt
from polyphony.recipe.python import PythonTable, said, seeded
from polyphony.recipe.table import RecipeError, Table

Numbers = Annotated[tuple[float, ...], Field(min_length=1)]
PositiveNumbers = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]

PLAIN = {"mean": 0.0, "std": 1.0}  # of a network that takes pixels as they are


class NetworkTable(Table):
    """A network by its kind. It takes pixels in [0, 1], and normalises them itself."""

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> nn.Module:
        """The network with fresh weights."""
        raise NotImplementedError

    def normalize(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        """Let a network that was built normalise by these statistics of the data."""
        network.normalize.set(mean, std)  # type: ignore[operator, union-attr]


class ForeignTable(NetworkTable):
    """A network that knows nothing of Polyphony. What it expects of pixels is its own, or said here."""

    mean: Numbers | None = None
    std: PositiveNumbers | None = None
    size: Annotated[int, Field(gt=0, le=10**4)] | None = (
        None  # of the images it is shown, whatever the data's is
    )

    @model_validator(mode="after")
    def _has_mean_and_std_together(self) -> ForeignTable:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std go together: give both or neither")
        return self

    def make_network(self, classes: int, channels: int) -> nn.Module:
        """The network itself, with fresh weights from PyTorch's global generator."""
        raise NotImplementedError

    def expects(self, network: nn.Module) -> dict[str, Any]:
        """`mean`, `std` and `size` as far as the network says them of itself."""
        return {}

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> nn.Module:
        with seeded(rng):
            network = self.make_network(classes, channels)
        given = {"mean": self.mean, "std": self.std, "size": self.size}
        known = self.expects(network) | {key: value for key, value in given.items() if value is not None}
        mean, std = (repeated(known.get(key, (default,)), channels) for key, default in PLAIN.items())
        return adapt(network, mean, std, known.get("size"))

    def normalize(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        """It was told at once what to normalise by: the data's statistics do not concern it."""


def foreign_table(text: str, folder: Path) -> ForeignTable:
    """ "module:function", "timm:NAME" or "transformers:FOLDER" as a table; a module lies in `folder`."""
    kind, _, name = text.partition(":")
    kinds: dict[str, type[ForeignTable]] = {"timm": TimmNetwork, "transformers": TransformersNetwork}
    try:
        if kind in kinds:
            return kinds[kind].model_validate({"kind": kind, "name": name})
        return PythonNetwork.model_validate({"kind": "python", "name": text}, context={"folder": str(folder)})
    except ValidationError:
        raise RecipeError(
            f"'{text}' names no network: give module:function, timm:NAME or transformers:FOLDER"
        ) from None


def repeated(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """The statistics of an image's channels for a network that takes several images at once."""
    if channels % len(values):
        raise RecipeError(f"mean and std are given for {len(values)} channels, but images have {channels}")
    return tuple(values) * (channels // len(values))


class PythonNetwork(PythonTable, ForeignTable):
    """One of the user's own: what is named is called with `classes`, `channels` and its `args`."""

    kind: Literal["python"]

    def make_network(self, classes: int, channels: int) -> nn.Module:
        network = self.make(classes=classes, channels=channels)
        if not isinstance(network, nn.Module):
            raise RecipeError(f"'{self.name}' makes a {type(network).__name__}, not a torch.nn.Module")
        return network


class TimmNetwork(ForeignTable):
    """A network of timm by its name; `args` go to timm.create_model. Weights are never downloaded."""

    kind: Literal["timm"]
    name: str
    args: Annotated[dict[str, Any], Field(default_factory=dict)]

    @property
    def label(self) -> str:
        return self.name

    def make_network(self, classes: int, channels: int) -> nn.Module:
        timm = needed("timm", "timm")
        try:
            network: nn.Module = timm.create_model(
                self.name, num_classes=classes, in_chans=channels, pretrained=False, **self.args
            )
        except Exception as error:
            raise RecipeError(f"timm cannot make '{self.name}' ({said(error)})") from error
        return network

    def expects(self, network: nn.Module) -> dict[str, Any]:
        own: dict[str, Any] = getattr(network, "pretrained_cfg", {})
        size = {"size": own["input_size"][-1]} if own.get("fixed_input_size") else {}
        return {key: own[key] for key in ("mean", "std") if own.get(key)} | size


class TransformersNetwork(ForeignTable):
    """An image classifier of transformers: the folder or id of a model, or the `config` of a fresh one."""

    kind: Literal["transformers"]
    name: str | None = None
    config: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_a_name_or_a_config(self) -> TransformersNetwork:
        if (self.name is None) == (self.config is None):
            raise ValueError("give name, a model's folder or id, or config with its model_type, and not both")
        return self

    @property
    def label(self) -> str:
        return self.name or str((self.config or {}).get("model_type"))

    def make_network(self, classes: int, channels: int) -> nn.Module:
        transformers = needed("transformers", "transformers")
        sizes = {"num_labels": classes, "num_channels": channels}
        try:
            if self.name is not None:
                config = transformers.AutoConfig.from_pretrained(self.name, **sizes)
            else:
                table = dict(self.config or {})
                config = transformers.AutoConfig.for_model(table.pop("model_type"), **table | sizes)
            network: nn.Module = transformers.AutoModelForImageClassification.from_config(config)
        except Exception as error:
            raise RecipeError(f"transformers cannot make '{self.label}' ({said(error)})") from error
        return network

    def expects(self, network: nn.Module) -> dict[str, Any]:
        size = getattr(getattr(network, "config", None), "image_size", None)
        return {"size": size if isinstance(size, int) else tuple(size)} if size else {}


def needed(module: str, extra: str) -> Any:
    """A module that comes with an extra, or one sentence."""
    try:
        return import_module(module)
    except Exception as error:  # a library beside the wrong versions of others can raise anything
        raise RecipeError(
            f"kind = '{module}' needs the package {module}, which cannot be imported ({said(error)}):"
            f" pip install 'polyphony[{extra}]'"
        ) from error
