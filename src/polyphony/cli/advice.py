"""What to do about missing or damaged data or files of a run; the library only names them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyphony.data import MissingDataError

_MAKERS = {
    "recipe": "study RECIPE",
    "scores": "evaluate {run}",
    "dee": "evaluate {run}",
    "temperatures": "evaluate {run}",
    "ood": "evaluate {run} --ood NAME",
    "corrupted": "evaluate {run} --corrupted NAME",
    "sweep": "sweep RECIPE",
    "teachers": "sweep RECIPE",
}
_OTHERS = {
    "log": "delete it to report without it, or {run} to train again",
    "done": "delete {run} to train again",
    "members": "delete it, and 'polyphony analyse {run} members' makes it again",
}


def advice(path: Path) -> str:
    """How to make a file of a run, or the folder of a training, again."""
    if path.name == "recipe.json" and not path.exists():
        return f"{path.parent} is not a run folder; 'polyphony study RECIPE' makes one"
    analysed = path.parent.name == "analysis"
    run = path.parents[1] if analysed else path.parent
    maker = _MAKERS.get(path.stem, "analyse {run} {name}" if analysed else "")
    words = f"'polyphony {maker}' makes it again" if maker else "delete it to make it again"
    if path.name.isdecimal():
        words = "'polyphony study RECIPE' trains it"
    return _OTHERS.get(path.stem, words).format(run=run, name=path.stem)


def missing_data(error: MissingDataError) -> str:
    """Which data is missing, and how to get it."""
    from polyphony.data import MissingCorruptedError

    verb = "corrupt" if isinstance(error, MissingCorruptedError) else "get"
    return f"{error}, or run 'polyphony data {verb} {error.name}'"
