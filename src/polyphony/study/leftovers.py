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

WITHOUT_KEY = ("analysis", "figures", "scores.csv", "report.html")  # made from all models of a run


def resolve_conflicts(jobs: Sequence[Job], board: Board, redo: bool) -> None:
    """Raise a ChangedError if a folder of these jobs holds a training with another key.

    With `redo`, remove such trainings and everything computed from them. The results of a model are removed
    before the model: if the process is killed in between, the next call still sees the conflict.
    """
    stages = [job.result for job in jobs if isinstance(job.result, Stage)]
    conflicts = [stage for stage in stages if stage.difference()]
    if not conflicts:
        return
    first = conflicts[0]
    reason, run = f"made with another {first.difference()}", run_of(first.folder)
    if not redo:
        raise ChangedError(f"{first.folder} was {reason}")
    predictions = [predictions_of(stage.folder) for stage in conflicts]
    size = total_size([*predictions, *(stage.folder for stage in conflicts)])
    board.warn(str(run), f"removes {counted(len(conflicts), 'training')} ({size}) {reason}")
    remove_computed(run, predictions)
    for stage in conflicts:
        stage.remove()


def remove_computed(run: Path, predictions: Iterable[Path]) -> None:
    """Remove these predictions, and all scores, analyses and figures of a run."""
    for path in (*predictions, *(run / name for name in WITHOUT_KEY)):
        delete(path)


def leftovers(run: Path, jobs: Sequence[Job]) -> list[Path]:
    """The trainings and predictions in a run folder that do not belong to its plan."""
    stages = {job.result.folder: job.key for job in jobs if isinstance(job.result, Stage)}
    files = {job.result.path: job.key for job in jobs if isinstance(job.result, SavedPredictions)}
    trained = {path.parent for name in (DONE, STARTED) for path in run.glob(f"*/**/{name}")}
    keys = {path: (Stage(path, {}).record() or {}).get("key") for path in sorted(trained)}
    paths = [path for path, key in keys.items() if stages.get(path, "") != key]
    models = {path.parent for path in files}
    for path in sorted(run.glob("predictions/**/*.safetensors")):
        # files of analyses are not in the plan, and stay as long as the plan has their model
        other_key = path in files and saved_key(path) != files[path]
        if other_key or path.parent not in models:
            paths.append(path)
    return paths


def predictions_of(folder: Path) -> Path:
    """The folder of the predictions of the model that a folder holds."""
    run = run_of(folder)
    kind, *model = folder.relative_to(run).parts
    return run.joinpath("predictions", *(model if kind == "students" else [kind]))


def total_size(paths: Iterable[Path]) -> str:
    """The size of files and folders as text, in MB."""
    files = {file for path in paths for file in (path, *path.rglob("*")) if file.is_file()}
    return f"{sum(file.stat().st_size for file in files) / 1e6:,.1f} MB"


def delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
