"""The verbs for the first steps: recipes, init, check."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators
from rich.table import Table
from rich.text import Text

from polyphony._util.shipped import headline, shipped
from polyphony._util.text import duration
from polyphony.cli import terminal
from polyphony.cli.options import Device, UsageError, find_device, output


def recipes() -> None:
    """List the recipes that come with Polyphony, one line each.

    A recipe is a TOML file that describes a study. Copy one to begin a recipe of your own.
    """
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, path in sorted(shipped().items(), key=lambda item: item[0] not in ("demo", "digits")):
        table.add_row(Text(name, style="bold", no_wrap=True), Text(headline(path)))
    terminal.console.print(table)
    terminal.say(f"\nFiles: {next(iter(shipped().values())).parent}")
    terminal.say("Next: polyphony show NAME prints a recipe and what it costs, polyphony study NAME runs it.")


def init(
    images: Path,
    /,
    *weights: Annotated[Path, Parameter(required=True)],
    network: str,
    out: Annotated[Path, output("Recipe to write.")] = Path("own.toml"),
    size: Annotated[int | None, Parameter(help="Side of the images in pixels.")] = None,
    mean: Annotated[
        str | None, Parameter(help="Mean of the pixels in [0, 1]: 0.5, or one for each channel.")
    ] = None,
    std: Annotated[str | None, Parameter(help="Standard deviation: 0.25, or 0.2,0.2,0.2.")] = None,
    order: Annotated[Literal["rgb", "bgr"] | None, Parameter(help="Order of the channels.")] = None,
    unlabelled: Annotated[
        Path | None, Parameter(help="More training images, without labels: a folder, or an .npz.")
    ] = None,
    minutes: Annotated[
        float,
        Parameter(
            validator=validators.Number(gt=0),
            help="Time to train all students on this machine. More time: more candidates and seeds.",
        ),
    ] = 10.0,
) -> None:
    """Write a recipe that distils trained networks, after checking them on validation images.

    If you do not give the preprocessing, init tries the usual ones and takes the one with which the first
    network is most accurate.

    Parameters
    ----------
    images
        A folder of class folders of pictures, or an .npz of images and labels.
    weights
        Two or more files of weights: .safetensors, or a state_dict of torch.save.
    network
        What builds the network: module:function or module:Class of your own, timm:NAME, transformers:FOLDER.
    """
    if out.exists():
        raise UsageError(f"{out} exists: give --out another file, or remove it")
    from polyphony.runs.store import write_atomically
    from polyphony.study.draft import draft
    from polyphony.study.pretrained import Preprocessing

    preprocessing = Preprocessing(size, numbers("--mean", mean), numbers("--std", std), order)
    text = draft(images, weights, network, out, preprocessing, terminal.line, unlabelled, minutes)
    write_atomically(out, text.encode())
    terminal.line(f"Recipe: {out}. Next: polyphony show {out}")


def numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """ "0.5,0.4,0.3" → (0.5, 0.4, 0.3); raises a UsageError for other text."""
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} must be numbers with commas between them, not '{text}'") from None


def check(*, device: Device = "auto") -> None:
    """Test a device: numbers against float64 on the CPU, exact resume, a small study, speed.

    Prints one table and one verdict in less than two minutes. The exit code is 1 if a test fails.
    """
    from polyphony.study.check import run_checks

    name, start = find_device(device), time.monotonic()
    rows = []
    for each in run_checks(name):
        terminal.note(f"{each.check}: {each.measured}")
        rows.append((each.check, each.measured, each.allowed, "passed" if each.passed else "FAILED"))
    terminal.show_table(("check", "found", "allowed", "verdict"), rows, f"Polyphony on {name}")
    took = duration(time.monotonic() - start)
    if failed := [check for check, *_, verdict in rows if verdict == "FAILED"]:
        terminal.complain(f"{name} did not pass: {', '.join(failed)} ({took})")
        sys.exit(1)
    terminal.line(f"{name} computes what it should ({took}).")
