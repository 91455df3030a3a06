"""The commands ("verbs") in groups, each with an example, and the options that every one takes."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from cyclopts import App, Group, Parameter

from polyphony import __version__
from polyphony.cli import data, inspect, start, study, sweep, terminal, use
from polyphony.cli.options import flag


class Verb(NamedTuple):
    """A verb, an example, and its usage line if it has optional arguments (cyclopts would print ARGS)."""

    call: Callable[..., Any] | App
    example: str
    usage: str | None = None


VERBS = {
    "Start": (
        Verb(start.recipes, "recipes"),
        Verb(start.init, "init photos a.pt b.pt c.pt d.pt --network mynets:make"),
        Verb(data.app, "data check cifar10"),
        Verb(start.check, "check --device cuda"),
    ),
    "Run": (
        Verb(study.study, "study digits --set student.epochs=20"),
        Verb(study.teach, "teach digits"),
        Verb(study.distill, "distill digits"),
        Verb(study.evaluate, "evaluate runs/students-cifar10 --ood svhn --corrupted cifar10-c"),
        Verb(sweep.sweep, "sweep digits --method kd-ods --temperature 1,4"),
    ),
    "Use": (
        Verb(use.predict, "predict runs/own photo.jpg more-photos --sort"),
        Verb(use.export, "export runs/own --out student.onnx", "RUN [METHOD] --out FILE [OPTIONS]"),
        Verb(use.pack, "pack runs/own --out my-student", "RUN [METHOD] --out FOLDER [OPTIONS]"),
    ),
    "Inspect": (
        Verb(study.show, "show digits"),
        Verb(inspect.status, "status runs/digits"),
        Verb(inspect.clean, "clean runs/digits"),
        Verb(inspect.report, "report runs/digits"),
        Verb(inspect.analyse, "analyse runs/digits jacobians latency", "RUN [WHAT...] [OPTIONS]"),
    ),
}
EXAMPLES = """Examples:
  Start    polyphony init photos a.pt b.pt c.pt d.pt --network mynets:make
  Run      polyphony study digits
  Use      polyphony predict runs/digits photo.png
  Inspect  polyphony report runs/digits"""


def versions() -> str:
    """The versions of Polyphony, Python and torch; torch is not imported."""
    torch = importlib.metadata.version("torch")
    return f"polyphony {__version__} (Python {platform.python_version()}, torch {torch})"


app = App(
    name="polyphony",
    help="Distil a deep ensemble into one network that keeps part of the ensemble's diversity.",
    help_epilogue=EXAMPLES,
    help_format="plaintext",
    version=versions,
    group_commands=Group("Program", sort_key=len(VERBS)),
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
)
app.meta.suppress_keyboard_interrupt = False
app.meta.group_parameters = Group("All commands", sort_key=len(VERBS) + 1)


@app.meta.default
def launch(
    *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    quiet: Annotated[bool, flag("Show no progress: print results, warnings and errors only.")] = False,
    debug: Annotated[bool, flag("Print the traceback of an error, for developers.")] = False,
) -> None:
    """Run the verb. `main` handles --debug."""
    terminal.chatter.quiet = quiet
    app(words)


def add(verb: Verb, group: Group, order: int) -> None:
    """Register a verb."""
    name = verb.example.split()[0]
    command = verb.call if isinstance(verb.call, App) else App(name=name, default_command=verb.call)
    command.group, command.sort_key = group, order
    command.help_format = "markdown"  # joins the lines of a docstring
    command.help_epilogue = f"Example: polyphony {verb.example}"
    command.usage = verb.usage and f"Usage: polyphony {name} {verb.usage}"
    app.command(command)


for number, (title, verbs) in enumerate(VERBS.items()):
    group = Group(title, sort_key=number)
    for order, verb in enumerate(verbs):
        add(verb, group, order)
app.register_install_completion_command(help="Install completion for bash, zsh or fish.")
