"""What a changed recipe leaves behind in a run folder: results that have other keys than the plan's."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from polyphony._util.text import counted
from polyphony.execute.board import Board
from polyphony.execute.job import Job
from polyphony.runs.predictions import saved_key
from polyphony.runs.store import DONE, STARTED, ChangedError, Stage, run_of
from polyphony.study.saved import SavedPredictions

MEASURED = ("analysis", "figures", "scores.csv", "report.html")  # has no key: it is of all models together


def clear_the_way(jobs: Sequence[Job], board: Board, redo: bool) -> None:
    """Refuse trainings of other keys in the folders of these jobs; with `redo` say how much, and remove them.

    What was measured on a model goes before the model, so that a call after a kill sees the change.
    """
    stages = [job.result for job in jobs if isinstance(job.result, Stage)]
    others = [stage for stage in stages if stage.difference()]
    if not others:
        return
    words, run = f"made with another {others[0].difference()}", run_of(others[0].folder)
    if not redo:
        raise ChangedError(f"{others[0].folder} was {words}")
    measured = [predictions_of(stage.folder) for stage in others]
    what = amount([*measured, *(stage.folder for stage in others)])
    board.warn(str(run), f"removes {counted(len(others), 'training')} ({what}) that {were(others)} {words}")
    forget(run, measured)
    for stage in others:
        stage.remove()


def were(things: Sequence[object]) -> str:
    """The verb for one thing or several."""
    return "was" if len(things) == 1 else "were"


def forget(run: Path, predictions: Iterable[Path]) -> None:
    """Remove what was measured on models or images that are no longer those of the run."""
    for path in (*predictions, *(run / name for name in MEASURED)):
        delete(path)


def leftovers(run: Path, jobs: Sequence[Job]) -> list[Path]:
    """The trainings and predictions in a run folder that no job of its plan has made, or makes."""
    stages = {job.result.folder: job.key for job in jobs if isinstance(job.result, Stage)}
    files = {job.result.path: job.key for job in jobs if isinstance(job.result, SavedPredictions)}
    trained = {path.parent for name in (DONE, STARTED) for path in run.glob(f"*/**/{name}")}
    trainings = [path for path in sorted(trained) if stages.get(path) != key_of(path)]
    saved = sorted(run.glob("predictions/**/*.safetensors"))
    models = {path.parent for path in files}
    return [*trainings, *(path for path in saved if path.parent not in models or is_other(path, files))]


def key_of(folder: Path) -> str:
    """The key of a training, from its folder."""
    return str((Stage(folder, {}).found() or {}).get("key"))


def is_other(path: Path, files: dict[Path, str]) -> bool:
    """Whether predictions that a plan names have another key; what analyses have predicted is not named."""
    return path in files and saved_key(path) != files[path]


def predictions_of(folder: Path) -> Path:
    """The folder of what the model of a training predicts."""
    run = run_of(folder)
    kind, *model = folder.relative_to(run).parts
    return run.joinpath("predictions", *(model if kind == "students" else [kind]))


def amount(paths: Iterable[Path]) -> str:
    """How much disk space files and folders take."""
    files = {file for path in paths for file in (path, *path.rglob("*")) if file.is_file()}
    return f"{sum(file.stat().st_size for file in files) / 1e6:,.1f} MB"


def delete(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
