"""The networks a recipe can name: ours, those of timm and transformers, and the user's."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from torch import nn

from polyphony._util.settings import as_spec
from polyphony._util.text import SettingError, extra
from polyphony.nn import ResNet, WideResNet, resnet, wide_resnet
from polyphony.recipe.foreign import ForeignTable, NetworkTable, PythonNetwork
from polyphony.recipe.python import as_recipe_error
from polyphony.recipe.table import RecipeError, beside

MAX_DEPTH = 2_000
# Settings whose name contains one of these make a library read a file, ask a server or run code from there.
FETCHING = ("pretrained", "checkpoint_path", "cache_dir", "auto_map", "remote", "url")
NUMBERS = ("pretrained_window_size", "pretrained_window_sizes")  # exceptions: numbers, of Swin V2


def depths(smallest: int, rule: str) -> AfterValidator:
    """A validator that accepts the depths smallest, smallest + 6, smallest + 12, …"""

    def check_depth(depth: int) -> int:
        if depth not in range(smallest, MAX_DEPTH + 1, 6):
            raise ValueError(f"must be {rule}")
        return depth

    return AfterValidator(check_depth)


class ResNetTable(NetworkTable):
    """ResNet of depth 6n + 2."""

    width_key: ClassVar[str] = "width"
    kind: Literal["resnet"]
    depth: Annotated[int, depths(8, "6n + 2 (8, 14, 20, 32, …) for a ResNet")]
    """Number of layers, 6n + 2."""
    width: Annotated[int, Field(gt=0, le=4096)] = 16
    """Channels of the first stage."""
    stride: Annotated[int, Field(gt=0, le=4)] = 1
    """Stride of the first convolution; 2 halves the resolution of all stages."""

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> ResNet:
        return resnet(self.depth, classes, channels, self.width, rng, self.stride)


class WideResNetTable(NetworkTable):
    """WideResNet of depth 6n + 4."""

    width_key: ClassVar[str] = "widen"
    kind: Literal["wide_resnet"]
    depth: Annotated[int, depths(10, "6n + 4 (10, 16, 22, 28, …) for a WideResNet")]
    """Number of layers, 6n + 4."""
    widen: Annotated[int, Field(gt=0, le=256)]
    """Widening factor."""

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> WideResNet:
        return wide_resnet(self.depth, self.widen, classes, channels, rng)


def harmless(value: Any, name: str = "name") -> Any:
    """Returns the value; raises a ValueError if it could make a library read files or run other code."""
    if isinstance(value, dict):
        for key, inner in value.items():
            fetches = key not in NUMBERS and any(part in key.lower() for part in FETCHING)
            if inner and (key.startswith("_") or fetches):
                raise ValueError(f"{key} would make the library read other files: leave it out")
            harmless(inner, key)
    for inner in value if isinstance(value, list) else ():
        harmless(inner, name)
    if isinstance(value, str) and not re.fullmatch(r"[\w.+-]*", value):
        raise ValueError(f"{name} = {value!r} is not a plain word: paths, addresses and sources are rejected")
    return value


class TimmNetwork(ForeignTable):
    """A network of timm by name; `args` go to timm.create_model. No file is read or downloaded."""

    kind: Literal["timm"]
    name: Annotated[str, AfterValidator(harmless)]
    """Name of the network in timm."""
    args: Annotated[dict[str, Any], AfterValidator(harmless), Field(default_factory=dict)]
    """Arguments of `timm.create_model`."""

    @property
    def label(self) -> str:
        return self.name

    def make_network(self, classes: int, channels: int) -> nn.Module:
        timm = import_extra("timm")
        with as_recipe_error(f"timm cannot make '{self.name}'"):
            config = timm.get_pretrained_cfg(self.name) if self.size else None
            sizes = {"img_size": self.size} if config and config.fixed_input_size else {}
            sizes |= {"num_classes": classes, "in_chans": channels}
            network: nn.Module = timm.create_model(self.name, pretrained=False, **sizes | self.args)
        return network

    def expects(self, network: nn.Module) -> dict[str, Any]:
        config: dict[str, Any] = getattr(network, "pretrained_cfg", {})
        size = {"size": config["input_size"][-1]} if config.get("fixed_input_size") else {}
        return {key: config[key] for key in ("mean", "std") if config.get(key)} | size


class TransformersNetwork(ForeignTable):
    """An image classifier of transformers: the folder or id of a model, or the `config` of a new one."""

    kind: Literal["transformers"]
    name: str | None = None
    """Folder or id of a model; a folder may be relative to the recipe's folder."""
    config: Annotated[dict[str, Any], AfterValidator(harmless)] | None = None
    """Configuration of a network with fresh weights, instead of `name`."""

    @field_validator("name")
    @classmethod
    def _is_beside_the_recipe(cls, name: str | None, info: ValidationInfo) -> str | None:
        return beside(name, info) if name and Path(beside(name, info)).is_dir() else name

    @model_validator(mode="after")
    def _has_a_name_or_a_config(self) -> TransformersNetwork:
        if (self.name is None) == (self.config is None):
            raise ValueError("give name, a model's folder or id, or config with its model_type, and not both")
        return self

    @property
    def label(self) -> str:
        return Path(self.name).name if self.name else str((self.config or {}).get("model_type"))

    def make_network(self, classes: int, channels: int) -> nn.Module:
        config = self.configuration({"num_labels": classes, "num_channels": channels})
        with as_recipe_error(f"transformers cannot make '{self.label}'"):
            if self.size and hasattr(config, "image_size"):
                config.image_size = self.size
            config.architectures = config.architectures or []  # the class, if a type has several
            classifiers = import_extra("transformers").AutoModelForImageClassification
            network: nn.Module = classifiers.from_config(config)
        return network

    def configuration(self, sizes: dict[str, int]) -> Any:
        """The model's configuration, from `name` or `config`; code that comes with a model is not run."""
        auto = import_extra("transformers").AutoConfig
        with as_recipe_error(f"transformers cannot make '{self.label}'"):
            if self.name is not None:
                reject_missing_folder(self.name)
                return auto.from_pretrained(self.name, trust_remote_code=False, **sizes)
            table = dict(self.config or {})
            return auto.for_model(table.pop("model_type"), **table | sizes)

    def spec(self, only: Collection[str] | None = None) -> dict[str, Any]:
        """The settings; of a named model, the content of its files instead of their folder."""
        if self.name is None:
            return super().spec(only)
        return {key: as_spec(value) for key, value in self.description.items()}

    @cached_property
    def description(self) -> dict[str, Any]:
        """The table that describes a named model without its files, which are read once."""
        configuration = self.configuration({})
        values = json.loads(configuration.to_json_string())
        preprocessing = saved_preprocessing(str(self.name))
        if image_size(configuration):
            preprocessing.pop("size", None)  # the configuration's size comes first, as in `expects`
        keys = sorted(values.keys() - {"id2label", "label2id", "transformers_version", "dtype"})
        config = {key: values[key] for key in keys if values[key] is not None and not key.startswith("_")}
        return {"kind": self.kind, "config": config, **preprocessing | self.preprocessing()}

    def portable(self) -> TransformersNetwork:
        if self.name is None:
            return self
        try:
            return TransformersNetwork(**self.description)
        except SettingError as error:
            raise RecipeError(f"'{self.label}' cannot be described without its folder ({error})") from None

    def expects(self, network: nn.Module) -> dict[str, Any]:
        preprocessing = saved_preprocessing(self.name) if self.name else {}
        size = image_size(getattr(network, "config", None))
        return preprocessing | ({"size": size} if size else {})


Network = Annotated[
    ResNetTable | WideResNetTable | PythonNetwork | TimmNetwork | TransformersNetwork,
    Field(discriminator="kind"),
]


def foreign_table(text: str, folder: Path) -> ForeignTable:
    """The table of a network from "module:function", "timm:NAME" or "transformers:FOLDER".

    `folder` is searched for the module; a folder of transformers is relative to the working directory.
    Raises a RecipeError for another text.
    """
    kind, _, name = text.partition(":")
    libraries: dict[str, type[ForeignTable]] = {"timm": TimmNetwork, "transformers": TransformersNetwork}
    is_python = kind not in libraries
    table = {"kind": "python", "name": text} if is_python else {"kind": kind, "name": name}
    context = {"folder": str(folder if is_python else Path.cwd())}
    try:
        return libraries.get(kind, PythonNetwork).model_validate(table, context=context)
    except ValidationError:
        raise RecipeError(
            f"'{text}' names no network: give module:function, timm:NAME or transformers:FOLDER"
        ) from None


def reject_missing_folder(name: str) -> None:
    """Raise a RecipeError if a name can only be a folder and is missing, before a hub is asked for it."""
    is_path = name.startswith(("/", ".", "~")) or name.endswith("/") or name.count("/") > 1 or "\\" in name
    if is_path and not Path(name).is_dir():
        raise RecipeError(f"there is no folder '{name}' of a model of transformers")


def image_size(configuration: Any) -> int | tuple[int, ...] | None:
    """The image size in a configuration of transformers; None if it has none."""
    size = getattr(configuration, "image_size", None) or None
    return size if size is None or isinstance(size, int) else tuple(size)


def saved_preprocessing(name: str) -> dict[str, Any]:
    """`mean`, `std`, `size` and `order` from the image processor of a model; empty if it has none."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        processor, _ = ImageProcessingMixin.get_image_processor_dict(name)
    except OSError:
        return {}
    rescales = processor.get("do_rescale", True)
    levels = 255 * (processor.get("rescale_factor") or 1 / 255) if rescales else 255
    result: dict[str, Any] = {"mean": (0.0,), "std": (1 / levels,)}
    mean, std = processor.get("image_mean"), processor.get("image_std")  # for each channel, or one for all
    if processor.get("do_normalize", True) and mean is not None and std is not None:
        for key, values in (("mean", mean), ("std", std)):
            numbers = values if isinstance(values, list) else [values]
            result[key] = tuple(number / levels for number in numbers)
    if processor.get("do_flip_channel_order"):
        result["order"] = "bgr"
    size = processor.get("crop_size" if processor.get("do_center_crop") else "size")
    sides = size.values() if isinstance(size, dict) else [size]
    return result | ({"size": max(sides)} if all(isinstance(side, int) for side in sides) else {})


def import_extra(module: str) -> Any:
    """Import the package of an optional extra; raises a RecipeError if it is missing."""
    needs = f"kind = '{module}' needs the package"
    with as_recipe_error(f"{needs} {module}, which cannot be imported: {extra(module)}"):
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            missing = (error.name or module).partition(".")[0]
            how = extra(module) if missing == module else f"pip install {missing}"
            raise RecipeError(f"{needs} {missing}, which is not installed: {how}") from error
