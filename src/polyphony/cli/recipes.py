"""The verb that lists the shipped recipes: recipes."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from polyphony._util.shipped import headline, shipped
from polyphony.cli import terminal


def recipes() -> None:
    """List the recipes that come with Polyphony, one line each.

    A recipe is a TOML file that describes a study. Copy one to begin a recipe of your own.
    """
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, path in shipped().items():
        table.add_row(Text(name, style="bold", no_wrap=True), Text(headline(path)))
    terminal.console.print(table)
    terminal.say(f"\nFiles: {next(iter(shipped().values())).parent}")
    terminal.say("Next: polyphony show NAME prints a recipe and what it costs, polyphony study NAME runs it.")
