"""Files of predictions in a run folder: their paths, and functions to write and read them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import safetensors.torch
import torch
from torch import Tensor

from polyphony.data.splits import describe
from polyphony.metrics import DirichletPredictions, Predictions
from polyphony.runs.scores import TEACHERS
from polyphony.runs.store import damaged_file, open_tensors, read_tensors, write_atomically

KIND = "logits"  # key of the kind in the file's metadata; missing for `Predictions`
KINDS = {cls.kind: cls for cls in (Predictions, DirichletPredictions)}
UNKNOWN, CORRUPTED = "ood-", "corrupted-"  # prefixes of the splits of unknown classes and corrupted images
UNLABELLED: Final = "unlabelled"  # the split of images without labels


def prediction_path(run: Path, model: str, seed: int | None, split: str) -> Path:
    """The file of a model's predictions on a split; the teachers are one model and have no seed."""
    folders = [model] if seed is None else [model, str(seed)]
    return run.joinpath("predictions", *folders, f"{split}.safetensors")


def save_predictions(path: Path, predictions: Predictions, key: str) -> None:
    """Write logits, their kind and labels to one file, with the key of their inputs."""
    tensors = {"logits": predictions.logits.contiguous(), "labels": predictions.labels}
    # Metadata with several keys has no fixed order. The usual kind is left out, so that equal predictions are
    # equal bytes.
    kind = {} if type(predictions) is Predictions else {KIND: predictions.kind}
    write_atomically(path, safetensors.torch.save(tensors, metadata={"key": key} | kind))


def saved_key(path: Path) -> str | None:
    """The key that predictions or samples were saved with; None if there is no file."""
    if not path.exists():
        return None
    with open_tensors(path) as file:
        key: str | None = (file.metadata() or {}).get("key")
        return key


def read_predictions(path: Path) -> Predictions:
    """Saved predictions, whatever their key; raises a FileError if the file is damaged."""
    with open_tensors(path) as file:
        logits, labels = file.get_tensor("logits"), file.get_tensor("labels")
        kind = (file.metadata() or {}).get(KIND, Predictions.kind)
    if logits.dim() != 3 or not logits.numel() or not logits.is_floating_point():
        raise damaged_file(path, f"its logits are {describe(logits)}, not members, images and classes")
    if not bool(logits.isfinite().all()):
        raise damaged_file(path, "its logits are not all numbers")
    if labels.shape != logits.shape[1:2] or labels.is_floating_point():
        raise damaged_file(path, f"its labels are {describe(labels)}, not those of {logits.shape[1]} images")
    has_classes = not path.stem.startswith((UNKNOWN, UNLABELLED))  # other data sets have other classes
    if has_classes and not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[2]:
        raise damaged_file(path, f"its labels are not all among {logits.shape[2]} classes")
    if kind not in KINDS:
        raise damaged_file(path, f"'{kind}' is an unknown kind of predictions")
    return KINDS[kind](logits, labels)


def count_images(path: Path) -> int:
    """The number of images in a file of predictions, from its header alone."""
    with open_tensors(path) as file:
        shape = file.get_slice("logits").get_shape()
    if len(shape) != 3:
        raise damaged_file(path, f"its logits are {shape}, not members, images and classes")
    return int(shape[1])


def read_views(path: Path) -> dict[str, Tensor]:
    """members.safetensors: `images` and `perturbed` [e c h w]; of each model, the members'
    probabilities before and after the perturbation [2 m e k].

    Raises a FileError if the file is damaged.
    """
    tensors = read_tensors(path)
    images = tensors.get("images", torch.empty(0))
    models = [tensor for name, tensor in tensors.items() if name not in ("images", "perturbed")]
    are_images = images.dim() == 4 and len(images) and images.shape[1] in (1, 3)
    same_shape = "perturbed" in tensors and tensors["perturbed"].shape == images.shape
    predicted = all(
        model.dim() == 4 and (model.shape[0], model.shape[2]) == (2, len(images)) for model in models
    )
    if not (are_images and same_shape and predicted and TEACHERS in tensors):
        raise damaged_file(path, "it does not hold images and the members' predictions on them")
    return tensors
