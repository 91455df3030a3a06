"""Weights that were trained elsewhere: read safely, named as the network names them, or one sentence."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from polyphony._util.text import first_line
from polyphony.data import DataError
from polyphony.data.archives import open_zip
from polyphony.data.files import damaged, regular

NESTS = ("state_dict", "model", "model_state_dict", "network", "net")  # under which trainers keep the weights
PREFIXES = ("module.", "_orig_mod.", "model.", "network.", "net.")  # that wrappers put before every name


class WeightsError(DataError):
    """A file of weights that cannot be used; the message says why."""


def load_weights(network: nn.Module, path: Path) -> None:
    """Give a network the weights of a file, all of them, or raise a WeightsError and change nothing."""
    weights, wanted = read_weights(path), network.state_dict(keep_vars=True)
    named = completed(renamed(weights, wanted.keys()), wanted)
    if named.keys() != wanted.keys():
        named = named_by_transformers(network, weights) or named
    for problem, names in (("lacks", wanted.keys() - named.keys()), ("has", named.keys() - wanted.keys())):
        if names:
            first = min(names)
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            why = "which the network needs" if problem == "lacks" else "which the network does not know"
            raise WeightsError(f"{path} {problem} '{first}'{more}, {why}: is it of another network?")
    for name, value in named.items():
        if value.shape != wanted[name].shape:
            raise WeightsError(
                f"{path}: '{name}' is {list(value.shape)}, but the network's is {list(wanted[name].shape)}:"
                " is it of another network, or of another number of classes?"
            )
        if not is_plain(value):
            raise WeightsError(f"{path}: '{name}' is no plain tensor of numbers: save it as one")
    network.load_state_dict(named)


def is_plain(value: Tensor) -> bool:
    """Whether a tensor holds real numbers, each in its place: what a network's weights are."""
    return value.layout == torch.strided and not (value.is_meta or value.is_complex() or value.is_quantized)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, or of a file of torch.save, by name. Nothing in it is executed."""
    with damaged(path, "file of weights", "save it again"):
        packed = zipfile.is_zipfile(regular(path))
    if packed:
        open_zip(path, "file of weights").close()  # one that would unpack out of proportion is refused
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        more = "it is damaged, or holds more than tensors, which nothing here executes"
        fault = first_line(error) if path.suffix == ".safetensors" else more
        raise WeightsError(
            f"{path} cannot be read as weights ({fault}): save the network's state_dict,"
            " with torch.save or safetensors"
        ) from error
    return tensors_in(found, path)


def tensors_in(found: Any, path: Path) -> dict[str, Tensor]:
    """The state dict in what a file holds, maybe nested as trainers save it."""
    while isinstance(found, Mapping):
        if found and all(isinstance(value, Tensor) for value in found.values()):
            return {str(name): value for name, value in found.items()}
        nest = next((name for name in NESTS if isinstance(found.get(name), Mapping)), None)
        if nest is None:
            break
        found = found[nest]
    raise WeightsError(f"{path} holds no weights by name: save the network's state_dict")


def renamed(weights: Mapping[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
    """The weights without prefixes that all their names have and the network's names have not.

    How many were averaged, which AveragedModel of PyTorch counts beside them, is no weight.
    """
    names = {name: name for name in weights if name != "n_averaged" or name in wanted}
    for prefix in [p for _ in PREFIXES for p in PREFIXES]:
        strip = all(name.startswith(prefix) for name in names.values())
        if strip and not any(name.startswith(prefix) for name in wanted):
            names = {old: name.removeprefix(prefix) for old, name in names.items()}
    return {name: weights[old] for old, name in names.items()}


def completed(named: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with what a file may lack: other names of a tensor that has several, BatchNorm's counts."""
    known = {id(wanted[name]): value for name, value in named.items() if name in wanted}
    others = {name: known[id(tensor)] for name, tensor in wanted.items() if id(tensor) in known}
    counts = {name: tensor for name, tensor in wanted.items() if name.endswith(".num_batches_tracked")}
    return counts | others | named


def named_by_transformers(network: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The weights of a file of transformers, whose models have other names in memory, or nothing.

    Those of another shape than the network's are without numbers.
    """
    library = sys.modules.get("transformers")  # imported by whoever made one of its models
    if library is None or not isinstance(network, library.PreTrainedModel):
        return None
    try:
        with quiet(library.utils.logging):
            made, faults = type(network).from_pretrained(
                None,
                config=network.config,
                state_dict=dict(weights),
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception:  # then it is said which names the file lacks
        return None
    unlike = {name: torch.empty(found, device="meta") for name, found, _ in faults.pop("mismatched_keys")}
    return None if any(faults.values()) else made.state_dict() | unlike


@contextmanager
def quiet(logging: Any) -> Iterator[None]:
    """Meanwhile transformers neither reports what it loads nor shows how far it is."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
