"""The verb that searches settings of a method: sweep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table

from polyphony._util.text import counted
from polyphony.cli import progress, terminal
from polyphony.cli.inspect import report, show_plan
from polyphony.cli.options import AtLeastOne, RecipeName, RunOptions, UsageError, device_for_jobs, runner
from polyphony.cli.study import expected_costs, weights

if TYPE_CHECKING:
    from polyphony.execute.runner import Runner
    from polyphony.report.sweep_run import ScoredPoint, SweepRun
    from polyphony.sweep.run import Sweep, SweepOutcome

MOST_ROWS = 20  # of the table on the terminal

Values = Annotated[str | None, Parameter(allow_leading_hyphen=True)]  # numbers with commas between them


@Parameter(name="*")
@dataclass(frozen=True)
class Tries:
    """The method, and the values to try."""

    method: str | None = None
    """Method of the recipe (default: the first with a step size)."""
    alpha: Values = None
    """Values of α, the weight of distillation, for example 0.5,0.9."""
    temperature: Values = None
    """Values of the temperature, for example 1,4."""
    step_size: Values = None
    """Values of the perturbation's step size, for example 1/255,2/255."""
    seeds: Values = None
    """Seeds of every point, for example 0,1,2 (default: the recipe's)."""
    trials: Annotated[int | None, Parameter(validator=AtLeastOne)] = None
    """Let optuna choose this many points between the smallest and largest values (default: a grid)."""


def sweep(recipe: RecipeName, /, *, tries: Tries = Tries(), options: RunOptions = RunOptions()) -> None:
    """Search for the α, temperature and step size of a method, on validation images alone.

    Without values, the sweep takes those of the paper's tables. If you give values for one setting, the
    others stay as in the recipe. A second call trains only what is missing. The output folder is
    runs/RECIPE-sweep unless you give --out.
    """
    from polyphony.recipe import read_recipe
    from polyphony.recipe.points import PARAMETERS, plan_sweep
    from polyphony.report.sweep_run import SweepRun
    from polyphony.sweep.run import Sweep, run_sweep

    overrides = (*options.overrides, *([] if tries.seeds is None else [f"seeds=[{tries.seeds}]"]))
    texts = {name: getattr(tries, name) for name in PARAMETERS}
    plan = plan_sweep(read_recipe(recipe, overrides), tries.method, texts)
    folder = options.out or Path("runs", f"{plan.recipe.name}-sweep")
    planned = Sweep(plan, folder, options.data, device_for_jobs(options.where))
    planned.check(tries.trials)
    if options.dry_run:
        preview(planned, tries.trials)
        return
    with runner(planned.study([plan.own]), options.where) as place:
        total = None if folder.exists() else announce(planned, tries.trials, place)
        with progress.board(total, folder if options.tensorboard else None) as board:
            outcome = run_sweep(planned, place, board, trials=tries.trials, redo=options.redo)
    show(SweepRun.open(folder), outcome)
    report((folder,))


def preview(sweep: Sweep, trials: int | None) -> None:
    """Show what a grid would do. Raises a UsageError for a search, whose points are not known yet."""
    from polyphony.study.fingerprints import fingerprints

    if trials is not None:
        raise UsageError("the points of a search are not known in advance: leave out --trials or --dry-run")
    prints = fingerprints(sweep.study([sweep.plan.own]))
    show_plan(sweep.jobs(sweep.plan.grid(), prints), sweep.folder)


def announce(sweep: Sweep, trials: int | None, place: Runner) -> progress.TotalProgress | None:
    """Print what will happen and how long it will take. Returns progress weighted by expected seconds.

    Returns None if nothing was measured, or if optuna chooses the points.
    """
    grid = sweep.plan.grid()
    points = trials or len(grid)
    study = sweep.study(grid[:1])  # all points of a grid cost about the same
    trainings = expected_costs(study, place)
    if not trainings:
        return None
    teacher = [cost for cost in trainings if cost.name == "teacher"]
    point = trainings[len(teacher) :]  # the search for its step size, if there is one, and its students
    teachers, seeds = counted(study.teacher_count, "teacher"), counted(len(study.recipe.seeds), "seed")
    points_of = f"{counted(points, 'point')} of {sweep.plan.method}"
    terminal.say(f"{study.recipe.name}: {teachers}, then {points_of}, {seeds} each.")
    all_points = [replace(cost, runs=cost.runs * points) for cost in point]
    terminal.say(terminal.estimate([*teacher, *all_points], place.at_once))
    seconds = {cost.name: cost.seconds for cost in teacher}
    for each in grid:
        seconds |= {cost.name.replace(grid[0].name, each.name, 1): cost.seconds for cost in point}
    return None if trials else progress.TotalProgress(weights(sweep.study(grid), "DISTILL", seconds))


def show(run: SweepRun, outcome: SweepOutcome) -> None:
    """Print how many jobs ran, the best points, the best one as a line of a recipe, and the page's notes."""
    from polyphony.report.sweep_page import notes

    terminal.show_work(run.folder, outcome, nothing_lost=not outcome.diverged)
    terminal.console.print(table(run))
    if len(run.ranked) > MOST_ROWS:
        terminal.line(f"… and {len(run.ranked) - MOST_ROWS} more in {run.folder / 'sweep.csv'}")
    terminal.line(f"The best point as a line of [methods]:\n{run.line(run.best)}")
    for note in notes(run):
        terminal.line(note)
    terminal.line(f"Scores: {run.folder / 'sweep.csv'}")


def table(run: SweepRun) -> Table:
    """The table of points, sorted by calibrated validation NLL."""
    about = f"{run.recipe.name}, {run.method}: validation, mean ± s.d., n = {run.best.nll.n}"
    rows = [cells(point) for point in run.ranked[:MOST_ROWS]]
    points = terminal.frameless(f"{about}; calibrated NLL decides", rows, ("mean-KLD", "standard"))
    points.rows[0].style = "bold"
    return points


def cells(point: ScoredPoint) -> dict[str, str]:
    """A point's settings and scores as text, by heading."""
    from polyphony.recipe.points import text_of
    from polyphony.report.sweep_run import OTHER, SYMBOLS
    from polyphony.runs.scores import JUDGE, mean_text

    def text(calibration: str, column: str) -> str:
        return terminal.narrow(mean_text(column, point.scores[calibration][column]))

    settings = {SYMBOLS[name]: text_of(value, name) or "–" for name, value in point.settings.items()}
    return settings | {
        "NLL ↓": text(JUDGE, "nll"),
        "standard": text(OTHER, "nll"),
        "ACC ↑": text(JUDGE, "acc"),
        "mean-KLD": text(JUDGE, "kld"),
    }
