"""Reads weights that were trained elsewhere: nothing is executed, and names are matched."""

from __future__ import annotations

import re
import sys
import warnings
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from polyphony._util.text import first_line
from polyphony.data import DataError
from polyphony.data.archives import open_zip
from polyphony.data.files import damaged, regular, there

NESTS = ("state_dict", "model", "model_state_dict", "network", "net")  # keys of a network's weights
DEEPEST = 3  # keys inside one another
FEW = 6  # keys that a message lists
COUNT = "n_averaged"  # how many weights AveragedModel of PyTorch has averaged, kept beside them


class WeightsError(DataError):
    """A file of weights that cannot be used; the message says why."""


def load_weights(network: nn.Module, path: Path) -> None:
    """Give a network the weights of a file, all of them, or raise a WeightsError and change nothing."""
    weights, wanted = read_weights(path), network.state_dict(keep_vars=True)
    named = completed(renamed(weights, wanted.keys()), wanted)
    if named.keys() != wanted.keys():
        named = named_by_transformers(network, weights) or named
    refuse_other_names(path, named.keys(), wanted.keys())
    for name, value in named.items():
        if value.shape != wanted[name].shape:
            raise WeightsError(
                f"{path}: '{name}' is {list(value.shape)}, but the network's is {list(wanted[name].shape)}:"
                " is it of another network, or of another number of classes?"
            )
        if not is_plain(value):
            raise WeightsError(f"{path}: '{name}' is no plain tensor of numbers: save it as one")
    network.load_state_dict(named)


def refuse_other_names(path: Path, found: Collection[str], wanted: Collection[str]) -> None:
    """A WeightsError unless the names in a file are those that a network needs."""
    lacks, has = (sorted(set(a) - set(b)) for a, b in ((wanted, found), (found, wanted)))
    words = [
        f"{verb} '{names[0]}'{f' and {len(names) - 1} more' if len(names) > 1 else ''}, {why}"
        for verb, names, why in (
            ("lacks", lacks, "which the network needs"),
            ("has", has, "which the network does not know"),
        )
        if names
    ]
    if words:
        raise WeightsError(f"{path} {', and '.join(words)}: is it of another network?")


def is_plain(value: Tensor) -> bool:
    """Whether a tensor holds real numbers, each in its place: what a network's weights are."""
    return value.layout == torch.strided and not (value.is_meta or value.is_complex() or value.is_quantized)


def file_and_key(path: Path) -> tuple[Path, str]:
    """ "a.pt#ema" → ("a.pt", "ema"), weights under a key of a file; a file of that very name is itself."""
    if "#" not in path.name or there(path):
        return path, ""
    name, _, key = path.name.rpartition("#")
    return path.with_name(name), key


def read_weights(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, or of a file of torch.save, by name. Nothing in it is executed."""
    file, key = file_and_key(path)
    with damaged(file, "file of weights", "save it again"):
        packed = zipfile.is_zipfile(regular(file))
    if packed:
        open_zip(file, "file of weights").close()  # one that would unpack out of proportion is refused
    try:
        if file.suffix == ".safetensors":
            return safetensors.torch.load_file(file)
        with warnings.catch_warnings(action="ignore"):  # of old formats
            found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise WeightsError(f"{file} cannot be read as weights: {fault(file, error)}") from error
    return state_dict(found, path, key)


def fault(file: Path, error: Exception) -> str:
    """Why a file cannot be read, and the line that converts it where there is one."""
    with file.open("rb") as stream:
        start = stream.read(2)
    if file.suffix == ".safetensors":
        return f"{first_line(error)}; save it again"
    if "unexpected EOF" in str(error) or (start == b"PK" and not zipfile.is_zipfile(file)):
        return f"it is truncated, its end is missing after {file.stat().st_size:,} bytes; copy it again"
    if "TorchScript" in str(error):
        return f"it is TorchScript; convert it: {conversion(file, 'torch.jit.load({})', '.state_dict()')}"
    if unknown := re.search(r"GLOBAL (\S+) was not", str(error)):
        line = conversion(file, "torch.load({}, weights_only=False)", pickled_weights(file))
        trust = f"to load it would run code; if you trust it, convert it: {line}"
        return f"it holds an object of class {unknown[1]}; {trust}"
    return "it is no file of torch.save or safetensors; save the network's state_dict"


def conversion(file: Path, load: str, taken: str) -> str:
    """A line of Python that saves the weights in a file alone."""
    return f"torch.save({load.format(repr(file.name))}{taken}, '{file.stem}-weights.pt')"


def pickled_weights(file: Path) -> str:
    """How Python takes the weights out of what a file of torch.save holds: ".state_dict()", "['model']"."""
    content = b""
    with suppress(Exception), zipfile.ZipFile(file) as archive:  # an old format, or a damaged file
        content = b"".join(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
    if content[2:3] == b"c":  # the first thing is a class
        return ".state_dict()"
    for key in NESTS:
        text = b"X" + len(key).to_bytes(4, "little") + key.encode()
        if found := re.search(re.escape(text) + rb"(?:q.|r....)(c(?!collections\n))?", content, re.DOTALL):
            return f"['{key}'].state_dict()" if found[1] else f"['{key}']"
    return "['state_dict']"


def state_dict(found: Any, path: Path, key: str) -> dict[str, Tensor]:
    """The weights in what a file holds: under a key, as trainers save them, or the only ones there are."""
    known = dict(state_dicts(found))
    if key and key not in known:
        raise WeightsError(f"{path}: there are no weights under '{key}', only {listed_keys(known)}")
    if not known:
        keys = f" (its keys are {listed_keys(found)})" if isinstance(found, Mapping) and found else ""
        raise WeightsError(f"{path} holds no weights by name{keys}: save the network's state_dict")
    usual = [name for name in known if all(part in NESTS for part in name.split("."))]
    usual.sort(key=lambda name: [NESTS.index(part) for part in name.split(".")])
    names = [key] if key in known else usual or list(known)
    if len(names) > 1 and not usual:
        raise WeightsError(
            f"{path} holds weights under {listed_keys(known)}: pick one, as {path.name}#{names[0]}"
        )
    return known[names[0]]


def state_dicts(found: Any, *keys: str) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Every dict of tensors by name in what a file holds, with the keys that lead to it, "model.ema"."""
    if (
        not isinstance(found, Mapping)
        or len(keys) > DEEPEST
        or not all(isinstance(key, str) for key in found)
    ):
        return
    if found and all(isinstance(value, Tensor) for value in found.values()):
        yield ".".join(keys), dict(found)
        return
    for key, value in found.items():
        yield from state_dicts(value, *keys, key)


def listed_keys(found: Iterable[object]) -> str:
    """ "'a', 'b'", at most a few"""
    return ", ".join(f"'{key}'" for key in islice(found, FEW))


def renamed(weights: Mapping[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
    """The weights without a common prefix of their names: the one whose removal matches most names."""
    names = [name for name in weights if name != COUNT or name in wanted]
    columns = zip(*(name.split(".")[:-1] for name in names), strict=False)  # as many as the shortest name has
    parts = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
    prefixes = ["".join(f"{part}." for part in parts[:count]) for count in range(len(parts) + 1)]
    best = max(prefixes, key=lambda prefix: sum(name.removeprefix(prefix) in wanted for name in names))
    return {name.removeprefix(best): weights[name] for name in names}


def completed(named: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with what a file may omit: other names of tied weights, and BatchNorm's counts."""
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
    """Hide the log and the progress bars of transformers for a while."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
