"""Results in a run folder that the current recipe does not name, or that have other keys than its plan."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from polyphony._util.text import counted
from polyphony.execute.board import Board
from polyphony.execute.job import Job
from polyphony.runs.predictions import saved_key
from polyphony.runs.stage import DONE, STARTED, Stage, run_of
from polyphony.runs.store import ChangedError
from polyphony.study.saved import SavedPredictions

MEASURED = ("analysis", "figures", "scores.csv", "report.html")  # of all models together, without a key


def clear_the_way(jobs: Sequence[Job], board: Board, redo: bool) -> None:
    """Refuse trainings with other keys in the folders of these jobs; with `redo`, remove them.

    What was measured on a model is removed before the model, so that the next call after a kill sees the
    change.
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
    board.warn(str(run), f"removes {counted(len(others), 'training')} ({what}) {words}")
    forget(run, measured)
    for stage in others:
        stage.remove()


def forget(run: Path, predictions: Iterable[Path]) -> None:
    """Remove what was measured on models or images that the run no longer has."""
    for path in (*predictions, *(run / name for name in MEASURED)):
        delete(path)


def leftovers(run: Path, jobs: Sequence[Job]) -> list[Path]:
    """The trainings and predictions in a run folder that do not belong to its plan."""
    stages = {job.result.folder: job.key for job in jobs if isinstance(job.result, Stage)}
    files = {job.result.path: job.key for job in jobs if isinstance(job.result, SavedPredictions)}
    trained = {path.parent for name in (DONE, STARTED) for path in run.glob(f"*/**/{name}")}
    keys = {path: (Stage(path, {}).found() or {}).get("key") for path in sorted(trained)}
    found = [path for path, key in keys.items() if stages.get(path, "") != key]
    models = {path.parent for path in files}
    for path in sorted(run.glob("predictions/**/*.safetensors")):
        other_key = path in files and saved_key(path) != files[path]  # those of analyses are not in the plan
        if other_key or path.parent not in models:
            found.append(path)
    return found


def predictions_of(folder: Path) -> Path:
    """The folder of the predictions of a training's model."""
    run = run_of(folder)
    kind, *model = folder.relative_to(run).parts
    return run.joinpath("predictions", *(model if kind == "students" else [kind]))


def amount(paths: Iterable[Path]) -> str:
    """The size of files and folders as text."""
    files = {file for path in paths for file in (path, *path.rglob("*")) if file.is_file()}
    return f"{sum(file.stat().st_size for file in files) / 1e6:,.1f} MB"


def delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
