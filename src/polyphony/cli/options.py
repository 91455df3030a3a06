"""The arguments and options that verbs have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from polyphony.cli.where import Where


def flag(help: str, name: str | None = None) -> Parameter:  # noqa: A002 (cyclopts' own word)
    """An option without a value."""
    return Parameter(name=name, negative="", show_default=False, help=help)


def repeatable(what: str) -> Parameter:
    """An option that takes one name and can be repeated."""
    return Parameter(negative="", show_default=False, metavar="NAME", help=f"{what} Repeatable.")


def output(help: str) -> Parameter:  # noqa: A002 (cyclopts' own word)
    """The option that names the file or folder to write."""
    return Parameter(name=("--out", "--to"), help=help)


RecipeName = Annotated[
    str, Parameter(help="A TOML file, or the name of a shipped recipe (see polyphony recipes).")
]
RunFolder = Annotated[Path, Parameter(name="RUN", help="Folder of a run, for example runs/digits.")]
DataRoot = Annotated[
    Path | None,
    Parameter(
        name="--data",
        help="Folder of the data sets (default: $POLYPHONY_DATA, or the user's data folder).",
    ),
]
Method = Annotated[str | None, Parameter(help="Method of the student (default: best on validation images).")]
Seed = Annotated[int | None, Parameter(help="Seed of the student (default: best on validation images).")]
Overrides = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        negative="",
        metavar="KEY=VALUE",
        show_default=False,
        help="Change one key of the recipe, for example student.alpha=0.5. Repeatable.",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Running:
    """Options of the verbs that run a recipe."""

    out: Path | None = None
    """Output folder (default: runs/RECIPE)."""
    overrides: Overrides = ()
    data: DataRoot = None
    where: Where = Where()
    redo: Annotated[bool, flag("Replace results that were made with another recipe.")] = False
    dry_run: Annotated[bool, flag("Show what would be done, and write nothing.")] = False
    tensorboard: Annotated[bool, flag("Also write the training logs for TensorBoard.")] = False
