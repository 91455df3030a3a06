"""What verbs have in common on the command line: their arguments and options, and the device these mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

AT_LEAST_ONE = validators.Number(gte=1)


class UsageError(ValueError):
    """An argument that cannot be used."""


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
Device = Annotated[str, Parameter(help="cuda, mps, cpu, or auto: the best there is.")]
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
class Where:
    """Where the jobs of a command run. What is said of an option is its help."""

    device: Device = "auto"
    workers: Annotated[int | None, Parameter(validator=AT_LEAST_ONE)] = None
    """Processes at a time; as many as cores or GPUs have room for unless given."""
    cluster: Annotated[str | None, Parameter(metavar="ADDRESS")] = None
    """Run jobs on a Ray cluster: auto, local or HOST:PORT (one of its nodes)."""
    gpus_per_job: Annotated[float | None, Parameter(validator=validators.Number(gt=0, lte=1))] = None
    """GPUs a job takes: with 0.5 two share one; 1 on cuda unless given."""
    memory_per_job: Annotated[float, Parameter(validator=validators.Number(gt=0))] = 2.0
    """GiB of memory a job takes on a cluster."""

    def chosen(self) -> str:
        """The device that is meant; one that is named need not be here, if jobs run on a cluster."""
        return self.device if self.cluster and self.device != "auto" else chosen(self.device)


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


def chosen(device: str) -> str:
    """The device a person means."""
    from polyphony.devices import choose_device

    try:
        return choose_device(device)
    except ValueError as error:
        raise UsageError(f"{error}; leave --device out to take the best there is") from error
