"""Files of predictions in a run folder: their paths, atomic writes, and checked reads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import safetensors.torch
import torch
from torch import Tensor

from polyphony.data.splits import describe
from polyphony.metrics import DirichletPredictions, Predictions
from polyphony.runs.scores import TEACHERS
from polyphony.runs.store import damaged, opened, read_tensors, write_whole

KIND = "logits"  # name of the kind in the file's metadata; missing for plain members
KINDS = {each.kind: each for each in (Predictions, DirichletPredictions)}
UNKNOWN, CORRUPTED = "ood-", "corrupted-"  # prefixes of the splits of unknown classes and corrupted images
UNLABELLED: Final = "unlabelled"  # the split of images without labels


def prediction_path(run: Path, model: str, seed: int | None, split: str) -> Path:
    """The file of a model's predictions on a split; the teachers are one model and have no seed."""
    who = [model] if seed is None else [model, str(seed)]
    return run.joinpath("predictions", *who, f"{split}.safetensors")


def save_predictions(path: Path, predictions: Predictions, key: str) -> None:
    """Write logits, their kind and labels to one file, with the key of their inputs."""
    tensors = {"logits": predictions.logits.contiguous(), "labels": predictions.labels}
    # Metadata with several names has no fixed order. Without the usual kind, equal files are equal bytes.
    kind = {} if type(predictions) is Predictions else {KIND: predictions.kind}
    write_whole(path, safetensors.torch.save(tensors, metadata={"key": key} | kind))


def saved_key(path: Path) -> str | None:
    """The key that predictions or samples were saved with; None if there is no file."""
    if not path.exists():
        return None
    with opened(path) as file:
        key: str | None = (file.metadata() or {}).get("key")
        return key


def read_predictions(path: Path) -> Predictions:
    """Saved predictions with any key."""
    with opened(path) as file:
        logits, labels = file.get_tensor("logits"), file.get_tensor("labels")
        kind = (file.metadata() or {}).get(KIND, Predictions.kind)
    if logits.dim() != 3 or not logits.numel() or not logits.is_floating_point():
        raise damaged(path, f"its logits are {describe(logits)}, not members, images and classes")
    if not bool(logits.isfinite().all()):
        raise damaged(path, "its logits are not all numbers")
    if labels.shape != logits.shape[1:2] or labels.is_floating_point():
        raise damaged(path, f"its labels are {describe(labels)}, not those of {logits.shape[1]} images")
    known = not path.stem.startswith((UNKNOWN, UNLABELLED))  # another data set has other classes
    if known and not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[2]:
        raise damaged(path, f"its labels are not all among {logits.shape[2]} classes")
    if kind not in KINDS:
        raise damaged(path, f"'{kind}' is an unknown kind of predictions")
    return KINDS[kind](logits, labels)


def count_images(path: Path) -> int:
    """The number of images in a file of predictions, from its header alone."""
    with opened(path) as file:
        shape = file.get_slice("logits").get_shape()
    if len(shape) != 3:
        raise damaged(path, f"its logits are {shape}, not members, images and classes")
    return int(shape[1])


def read_views(path: Path) -> dict[str, Tensor]:
    """members.safetensors: images and perturbed [e c h w], the teachers and students [2 m e k]."""
    tensors = read_tensors(path)
    images = tensors.get("images", torch.empty(0))
    models = [each for name, each in tensors.items() if name not in ("images", "perturbed")]
    pictures = images.dim() == 4 and len(images) and images.shape[1] in (1, 3)
    alike = "perturbed" in tensors and tensors["perturbed"].shape == images.shape
    asked = all(each.dim() == 4 and (each.shape[0], each.shape[2]) == (2, len(images)) for each in models)
    if not (pictures and alike and asked and TEACHERS in tensors):
        raise damaged(path, "it does not hold images and what members say of them")
    return tensors
