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
    """An option that takes one name and may be given several times."""
    return Parameter(negative="", show_default=False, metavar="NAME", help=f"{what} Repeatable.")


RecipeName = Annotated[
    str, Parameter(help="A TOML file, or the name of a shipped recipe, for example digits.")
]
RunFolder = Annotated[Path, Parameter(help="A run folder, for example runs/digits.")]
DataRoot = Annotated[
    Path | None,
    Parameter(
        name="--data",
        help="Folder that holds the data sets; $POLYPHONY_DATA, else the user's data folder, unless given.",
    ),
]
Seed = Annotated[int | None, Parameter(help="Which of the method's students; the best unless given.")]
Overrides = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        negative="",
        metavar="KEY=VALUE",
        show_default=False,
        help="Change one key of the recipe, for example student.alpha=0.5; give --set again for another.",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Running:
    """How a study is run."""

    out: Path | None = None
    """Folder for the results; one in runs/ named after the recipe unless given."""
    overrides: Overrides = ()
    data: DataRoot = None
    where: Where = Where()
    redo: Annotated[bool, flag("Replace results that were made with another recipe.")] = False
    tensorboard: Annotated[bool, flag("Write what is logged for TensorBoard, too.")] = False
