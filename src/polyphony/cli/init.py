"""The verb that writes a first recipe: init."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from polyphony.cli import terminal
from polyphony.cli.where import UsageError


def init(
    images: Path,
    /,
    *weights: Annotated[Path, Parameter(required=True)],
    network: str,
    to: Path = Path("own.toml"),
    size: Annotated[int | None, Parameter(help="Side of the images in pixels.")] = None,
    mean: Annotated[
        str | None, Parameter(help="Mean of the pixels in [0, 1]: 0.5, or one a channel.")
    ] = None,
    std: Annotated[str | None, Parameter(help="Standard deviation: 0.25, or 0.2,0.2,0.2.")] = None,
    order: Annotated[Literal["rgb", "bgr"] | None, Parameter(help="Order of the channels.")] = None,
) -> None:
    """Write a recipe that distils trained networks, and say what was found out about them.

    Preprocessing that is not given is tried: the one with which the first network has most validation images
    right is taken.

    Parameters
    ----------
    images
        A folder of class folders of pictures, or an .npz of images and labels.
    weights
        The networks' files of weights, two or more: .safetensors, or a state_dict of torch.save.
    network
        What makes the network: module:function or module:Class of your own, timm:NAME, transformers:FOLDER.
    to
        The recipe to write.
    """
    if to.exists():
        raise UsageError(f"{to} is there already: give --to another file, or remove it")
    from polyphony.runs.store import write_whole
    from polyphony.study.draft import draft
    from polyphony.study.preprocessing import Given

    given = Given(size, numbers("--mean", mean), numbers("--std", std), order)
    text = draft(images, weights, network, to, given, terminal.line)
    write_whole(to, text.encode())
    terminal.line(f"Recipe: {to}. Next: polyphony show {to}")


def numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """ "0.5,0.4,0.3" → (0.5, 0.4, 0.3); a UsageError for anything else."""
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} is numbers with commas between them, not '{text}'") from None
