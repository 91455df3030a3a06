"""What to type if data or files of a run are missing or damaged; the library only names them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyphony.data import MissingDataError

_EVALUATED = (
    "scores",
    "dee",
    "temperatures",
    "selective",
    "sets",
    "thresholds",
    "groups",
    "unlabelled",
)
_COMMANDS = {  # by the name of the file that they write
    "recipe": "study RECIPE",
    **dict.fromkeys(_EVALUATED, "evaluate {run}"),
    "ood": "evaluate {run} --ood NAME",
    "corrupted": "evaluate {run} --corrupted NAME",
    "sweep": "sweep RECIPE",
    "teachers": "sweep RECIPE",
}
_ADVICE = {  # for files that no command writes alone
    "log": "delete it to report without it, or {run} to train again",
    "done": "delete {run} to train again",
    "members": "delete it, and 'polyphony analyse {run} members' makes it again",
}


def advice(path: Path) -> str:
    """How to make a missing or damaged file of a run, or the folder of a training, again."""
    if path.name == "recipe.json" and not path.exists():
        return f"{path.parent} is not a run folder; 'polyphony study RECIPE' makes one"
    is_analysis = path.parent.name == "analysis"
    run = path.parents[1] if is_analysis else path.parent
    if path.name == "groups.csv" and not is_analysis:
        return f"delete it, and 'polyphony evaluate {run} --groups FILE.csv:COLUMN' makes it again"
    command = _COMMANDS.get(path.stem, "analyse {run} {name}" if is_analysis else "")
    text = f"'polyphony {command}' makes it again" if command else "delete it to make it again"
    if path.name.isdecimal():  # the folder of a training
        text = "'polyphony study RECIPE' trains it"
    return _ADVICE.get(path.stem, text).format(run=run, name=path.stem)


def missing_data(error: MissingDataError) -> str:
    """Which data is missing, and how to get it."""
    from polyphony.data import MissingCorruptedError

    verb = "corrupt" if isinstance(error, MissingCorruptedError) else "get"
    return f"{error}, or run 'polyphony data {verb} {error.name}'"
