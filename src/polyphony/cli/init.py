"""The verb that writes a first recipe: init."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from polyphony.cli import terminal
from polyphony.cli.where import UsageError


def init(
    images: Path,
    /,
    *weights: Annotated[Path, Parameter(required=True)],
    network: str,
    to: Path = Path("own.toml"),
    size: Annotated[int | None, Parameter(help="Side that pictures are brought to.")] = None,
) -> None:
    """Write a recipe that distils networks which are trained already, and say what was found out about them.

    Parameters
    ----------
    images
        A folder of class folders of pictures, or an .npz of images and labels.
    weights
        The networks' files of weights, two or more: .safetensors, or a state_dict of torch.save.
    network
        What they are the weights of: module:function of your own, timm:NAME or transformers:FOLDER.
    to
        The recipe to write.
    """
    if to.exists():
        raise UsageError(f"{to} is there already: give --to another file, or remove it")
    from polyphony.runs.store import write_whole
    from polyphony.study.draft import draft

    drafted = draft(images, weights, network, to, size)
    write_whole(to, drafted.text.encode())
    for finding in drafted.findings:
        terminal.line(finding)
    terminal.line(f"Recipe: {to}. Next: polyphony show {to}")
