"""Several sweeps → one page: what a perturbation gains over plain distillation, by temperature and step."""

from __future__ import annotations

from collections.abc import Sequence

from polyphony.metrics import MeanSd, mean_sd
from polyphony.recipe.points import Value, text_of
from polyphony.report.chart import Chart
from polyphony.report.figures.sweep_cells import Cells, Corner, Shade
from polyphony.report.figures.sweep_map import swept_ink
from polyphony.report.files import read_table
from polyphony.report.page import Report, render
from polyphony.report.provenance import provenance
from polyphony.report.sweep_page import subtitle
from polyphony.report.sweep_run import SweepRun
from polyphony.report.tables import Cell, Numbers, Table
from polyphony.rows import SweepScore
from polyphony.scores import JUDGE, mean_text
from polyphony.store import StoreError

Point = tuple[float, float, Value]  # α, τ and η


def gains(runs: Sequence[SweepRun]) -> Report:
    """The page that compares sweeps with that of plain distillation among them."""
    plain = [run for run in runs if run.perturbation(run.best.name) == "clean"]
    if len(plain) != 1:
        raise StoreError('sweeps are compared with one of plain distillation (perturb = "clean") among them')
    found = {run: gained(run, plain[0]) for run in runs if run is not plain[0]}
    for run in (run for run, gain in found.items() if not gain):
        raise StoreError(f"{run.folder} and {plain[0].folder} have no temperature, α and seed in common")
    table, chart = gain_table(found), gain_chart(found)
    html = render(
        "comparison.html",
        title=f"{plain[0].asked.recipe}: what perturbations gain over {plain[0].method}",
        tables=[table],
        charts=[chart],
        warnings=[],
        runs=[(f"sweep of {run.method}", subtitle(run), provenance(run)) for run in runs],
    )
    return Report(html, (table, chart))


def gained(run: SweepRun, plain: SweepRun) -> dict[Point, MeanSd]:
    """Each point's calibrated validation NLL less plain distillation's at its τ and α, over shared seeds."""
    theirs = {(row.alpha, row.temperature, row.seed): row.nll for row in _rows(plain)}
    apart: dict[Point, list[float]] = {}
    for row in _rows(run):
        if (row.alpha, row.temperature, row.seed) in theirs:
            point = row.alpha, row.temperature, row.step_size
            apart.setdefault(point, []).append(row.nll - theirs[row.alpha, row.temperature, row.seed])
    return {point: mean_sd(values) for point, values in apart.items()}


def _rows(run: SweepRun) -> list[SweepScore]:
    return [row for row in read_table(run.folder, SweepScore) if row.calibration == JUDGE]


def gain_table(found: dict[SweepRun, dict[Point, MeanSd]]) -> Table:
    """A row for each point."""
    rows = [
        (
            Cell(run.method),
            *(Cell(text_of(v, n)) for v, n in zip(point, ("alpha", "temperature", "step_size"), strict=True)),
            Cell(mean_text("nll", gain).replace("-", "−")),
            Cell(str(gain.n)),
        )
        for run, gains in found.items()
        for point, gain in gains.items()
    ]
    caption = (
        "Calibrated NLL on validation images less that of plain distillation at the same temperature, α and"
        " seed: mean ± s.d. over n seeds; below zero the perturbation is better."
    )
    return Table("gains", caption, ("Sweep", "α", "τ", "η", "NLL less plain's", "n"), tuple(rows))


def gain_chart(found: dict[SweepRun, dict[Point, MeanSd]]) -> Chart:
    """A panel for each sweep and α: step sizes across, temperatures down."""
    panels = []
    for run, gains in found.items():
        shade = Shade.of(swept_ink(run), [gain.mean for gain in gains.values()])
        for alpha in sorted({point[0] for point in gains}):
            here: dict[Corner, MeanSd] = {
                (step, temperature): gain for (own, temperature, step), gain in gains.items() if own == alpha
            }
            steps, temperatures = (run.values[name] for name in ("step_size", "temperature"))
            cells = Cells("step_size", "temperature", steps, temperatures, here)
            panels.append(cells.panel(f"{run.method}, α = {alpha:g}", shade))
    rows = [
        (run.method, *point, gain.mean, gain.sd, gain.n)
        for run, gains in found.items()
        for point, gain in gains.items()
    ]
    header = ("sweep", "alpha", "temperature", "step_size", "gain", "sd", "n")
    reading = (
        "Calibrated NLL on validation images less that of plain distillation at the same temperature and"
        " seed, mean ± s.d.: below zero, and the stronger the shade, the more the perturbation gains."
    )
    title = "What a perturbation gains"
    return Chart("gains", title, reading, tuple(panels), Numbers(header, tuple(rows)))
