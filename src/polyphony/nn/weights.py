"""Reads files of pretrained weights without executing code, and matches their names to a network's."""

from __future__ import annotations

import re
import sys
import warnings
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor, nn

from polyphony._util.text import first_line
from polyphony.data import DataError
from polyphony.data.archives import open_zip
from polyphony.data.files import as_data_error, path_exists, regular

USUAL_KEYS = ("state_dict", "model", "model_state_dict", "network", "net")  # of weights, preferred first
MAX_DEPTH = 3  # of nested dicts
LISTED_KEYS = 6  # in a message
AVERAGE_COUNT = "n_averaged"  # a tensor that PyTorch's AveragedModel saves beside the weights


class WeightsError(DataError):
    """A file of weights that cannot be used; the message says why."""


class StoredWeights(NamedTuple):
    """A set of weights from a file, its key (may be empty), and the keys of the file's other sets."""

    tensors: dict[str, Tensor]
    key: str = ""
    other_keys: tuple[str, ...] = ()


def load_weights(network: nn.Module, path: Path) -> None:
    """Load all weights of a file into a network; if they do not fit, raise a WeightsError instead."""
    weights, expected = read_weights(path), network.state_dict(keep_vars=True)
    matched = with_omitted(without_prefix(weights, expected.keys()), expected)
    if matched.keys() != expected.keys():
        matched = converted_by_transformers(network, weights) or matched
    check_names(path, matched.keys(), expected.keys())
    for name, value in matched.items():
        if value.shape != expected[name].shape:
            raise WeightsError(
                f"{path}: '{name}' is {list(value.shape)}, but the network's is {list(expected[name].shape)}:"
                " is it from another network, or for another number of classes?"
            )
        if not is_plain(value):
            raise WeightsError(f"{path}: '{name}' is not a plain tensor of real numbers: save it as one")
    network.load_state_dict(matched)


def check_names(path: Path, names: Collection[str], expected: Collection[str]) -> None:
    """Raise a WeightsError unless a file has the names that a network needs, and no others."""
    missing, unexpected = sorted(set(expected) - set(names)), sorted(set(names) - set(expected))
    faults = []
    if missing:
        faults.append(f"lacks {first_of(missing)}, which the network needs")
    if unexpected:
        faults.append(f"has {first_of(unexpected)}, which the network does not have")
    if faults:
        raise WeightsError(f"{path} {', and '.join(faults)}: is it from another network?")


def first_of(names: Sequence[str]) -> str:
    """ "'a'", or "'a' and 2 more" """
    return f"'{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def is_plain(value: Tensor) -> bool:
    """Whether a tensor is dense and real, as a network's weights are: not sparse, quantised or on meta."""
    return value.layout == torch.strided and not (value.is_meta or value.is_complex() or value.is_quantized)


def file_and_key(path: Path) -> tuple[Path, str]:
    """Split "a.pt#ema" into the file "a.pt" and the key "ema"; the key is "" if a file "a.pt#ema" exists."""
    if "#" not in path.name or path_exists(path):
        return path, ""
    name, _, key = path.name.rpartition("#")
    return path.with_name(name), key


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, as `read_stored` reads them."""
    return read_stored(path).tensors


def read_stored(path: Path) -> StoredWeights:
    """Read a file of safetensors or torch.save without executing anything in it.

    If a file has several sets of weights, the path may name a key ("a.pt#ema"); by default the set under a
    usual key is returned. Raises a WeightsError or a DataError if the file is damaged or the choice unclear.
    """
    file, key = file_and_key(path)
    with as_data_error(file, "file of weights", "save it again"):
        packed = zipfile.is_zipfile(regular(file))
    if packed:
        open_zip(file, "file of weights").close()  # rejects zip bombs
    if key and file.suffix == ".safetensors":
        raise WeightsError(f"{file} has one set of weights, which has no key: leave out '#{key}'")
    try:
        if file.suffix == ".safetensors":
            return StoredWeights(safetensors.torch.load_file(file))
        with warnings.catch_warnings(action="ignore"):  # of old formats
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise WeightsError(f"{file} cannot be read as weights: {reason(file, error)}") from error
    return select_weights(content, path, key)


def reason(file: Path, error: Exception) -> str:
    """Why a file cannot be read, with a line of Python that converts it if there is one."""
    with file.open("rb") as stream:
        start = stream.read(2)
    if file.suffix == ".safetensors":
        return f"{first_line(error)}; save it again"
    if "unexpected EOF" in str(error) or (start == b"PK" and not zipfile.is_zipfile(file)):
        return f"it is truncated: its end is missing after {file.stat().st_size:,} bytes; copy it again"
    if "TorchScript" in str(error):
        return f"it is TorchScript; convert it: {conversion(file, 'torch.jit.load({})', '.state_dict()')}"
    if match := re.search(r"GLOBAL (\S+) was not", str(error)):
        line = conversion(file, "torch.load({}, weights_only=False)", pickled_weights(file))
        advice = f"to load it would run code; if you trust it, convert it: {line}"
        return f"it holds an object of class {match[1]}; {advice}"
    return "it is not a file of torch.save or safetensors; save the network's state_dict"


def conversion(file: Path, load: str, access: str) -> str:
    """A line of Python that saves only the weights of a file, as "a-weights.pt"."""
    return f"torch.save({load.format(repr(file.name))}{access}, '{file.stem}-weights.pt')"


def pickled_weights(file: Path) -> str:
    """The Python expression that gets the weights from the object in a file: ".state_dict()", "['model']"."""
    content = b""
    with suppress(Exception), zipfile.ZipFile(file) as archive:  # an old format, or a damaged file
        content = b"".join(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
    if content[2:3] == b"c":  # the pickle starts with a class: a module
        return ".state_dict()"
    for key in USUAL_KEYS:
        text = b"X" + len(key).to_bytes(4, "little") + key.encode()
        if match := re.search(re.escape(text) + rb"(?:q.|r....)(c(?!collections\n))?", content, re.DOTALL):
            return f"['{key}'].state_dict()" if match[1] else f"['{key}']"
    return "['state_dict']"


def select_weights(content: Any, path: Path, key: str) -> StoredWeights:
    """The set of weights under a key, by default under a usual key, or the only one in a file's content."""
    sets = dict(state_dicts(content))
    if key and key not in sets:
        raise WeightsError(f"{path}: there are no weights under '{key}', only {listed_keys(sets)}")
    if not sets:
        keys = f" (its keys are {listed_keys(content)})" if isinstance(content, Mapping) and content else ""
        raise WeightsError(f"{path} holds no weights by name{keys}: save the network's state_dict")
    usual = [name for name in sets if all(part in USUAL_KEYS for part in name.split("."))]
    usual.sort(key=lambda name: [USUAL_KEYS.index(part) for part in name.split(".")])
    candidates = [key] if key in sets else usual or list(sets)
    if len(candidates) > 1 and not usual:
        raise WeightsError(
            f"{path} holds weights under {listed_keys(sets)}: pick one, as {path.name}#{candidates[0]}"
        )
    chosen = candidates[0]
    return StoredWeights(sets[chosen], chosen, tuple(name for name in sets if name != chosen))


def state_dicts(content: Any, *keys: str) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Every dict of named tensors in a file's content, with the keys that lead to it joined: "model.ema"."""
    if not isinstance(content, Mapping) or len(keys) > MAX_DEPTH:
        return
    if not all(isinstance(key, str) for key in content):
        return
    if content and all(isinstance(value, Tensor) for value in content.values()):
        yield ".".join(keys), dict(content)
        return
    for key, value in content.items():
        yield from state_dicts(value, *keys, key)


def listed_keys(keys: Iterable[object]) -> str:
    """The first few keys in quotes: "'a', 'b'"."""
    return ", ".join(f"'{key}'" for key in islice(keys, LISTED_KEYS))


def without_prefix(weights: Mapping[str, Tensor], expected: Collection[str]) -> dict[str, Tensor]:
    """The weights without the prefix that all names share, cut where most names match the expected ones."""
    names = [name for name in weights if name != AVERAGE_COUNT or name in expected]
    columns = zip(*(name.split(".")[:-1] for name in names), strict=False)  # as many as the shortest name has
    parts = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
    prefixes = ["".join(f"{part}." for part in parts[:count]) for count in range(len(parts) + 1)]
    best = max(prefixes, key=lambda prefix: sum(name.removeprefix(prefix) in expected for name in names))
    return {name.removeprefix(best): weights[name] for name in names}


def with_omitted(weights: dict[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with what a file may omit: other names of tied weights, and BatchNorm's counts."""
    by_tensor = {id(expected[name]): value for name, value in weights.items() if name in expected}
    tied = {name: by_tensor[id(tensor)] for name, tensor in expected.items() if id(tensor) in by_tensor}
    counts = {name: tensor for name, tensor in expected.items() if name.endswith(".num_batches_tracked")}
    return counts | tied | weights


def converted_by_transformers(network: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The weights under the names that a model of transformers has in memory; its files use others.

    Returns None for other networks, and if names are missing or unexpected. A weight of another shape than
    the network's is returned as a meta tensor of its shape, so that the caller reports the shape.
    """
    library = sys.modules.get("transformers")  # already imported if the network is one of its models
    if library is None or not isinstance(network, library.PreTrainedModel):
        return None
    try:
        with quiet(library.utils.logging):
            model, faults = type(network).from_pretrained(
                None,
                config=network.config,
                state_dict=dict(weights),
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception:  # the caller then reports which names are missing
        return None
    mismatched = {name: torch.empty(shape, device="meta") for name, shape, _ in faults.pop("mismatched_keys")}
    return None if any(faults.values()) else model.state_dict() | mismatched


@contextmanager
def quiet(logging: Any) -> Iterator[None]:
    """Hide the log and the progress bars of transformers inside the `with` block."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
