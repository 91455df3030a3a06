"""Several sweeps → one page: what a perturbation gains over plain distillation, by temperature and step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyphony.metrics import MeanSd, mean_sd
from polyphony.recipe.points import PARAMETERS, Point, text_of
from polyphony.report.chart import Chart
from polyphony.report.figures.sweep_cells import Cells, Corner, Shade
from polyphony.report.figures.sweep_map import swept_ink
from polyphony.report.page import Report, render
from polyphony.report.provenance import provenance
from polyphony.report.sweep_page import subtitle
from polyphony.report.sweep_run import SYMBOLS, SweepRun
from polyphony.report.tables import Numbers, PageTable
from polyphony.scores import mean_text
from polyphony.store import StoreError

Gains = Mapping[SweepRun, Mapping[Point, MeanSd]]


def gains(runs: Sequence[SweepRun]) -> Report:
    """The page that compares sweeps with that of plain distillation among them."""
    plain = [run for run in runs if run.perturbation(run.best.name) == "clean"]
    if len(plain) != 1:
        raise StoreError('sweeps are compared with one of plain distillation (perturb = "clean") among them')
    found = {run: gained(run, plain[0]) for run in runs if run is not plain[0]}
    for run, gain in found.items():
        if not gain:
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
    return Report(html, [table, chart])


def gained(run: SweepRun, plain: SweepRun) -> dict[Point, MeanSd]:
    """Each point's calibrated validation NLL less plain distillation's at its τ and α, over shared seeds."""
    theirs = {(row.alpha, row.temperature, row.seed): row.nll for row in plain.judged}
    apart: dict[Point, list[float]] = {}
    for row in run.judged:
        nll = theirs.get((row.alpha, row.temperature, row.seed))
        if nll is not None:
            point = Point(row.alpha, row.temperature, row.step_size)
            apart.setdefault(point, []).append(row.nll - nll)
    return {point: mean_sd(values) for point, values in apart.items()}


def gain_table(found: Gains) -> PageTable:
    """A row for each point."""
    rows = []
    for run, gain in found.items():
        for point, value in gain.items():
            settings = [text_of(getattr(point, name), name) for name in PARAMETERS]
            rows.append([run.method, *settings, mean_text("nll", value).replace("-", "−"), str(value.n)])
    caption = (
        "Calibrated NLL on validation images less that of plain distillation at the same temperature, α and"
        " seed: mean ± s.d. over n seeds; below zero the perturbation is better."
    )
    return PageTable.of("gains", caption, ["Sweep", *SYMBOLS.values(), "NLL less plain's", "n"], rows)


def gain_chart(found: Gains) -> Chart:
    """A panel for each sweep and α: step sizes across, temperatures down."""
    panels, rows = [], []
    for run, gain in found.items():
        shade = Shade.of(swept_ink(run), [value.mean for value in gain.values()])
        for alpha in sorted({point.alpha for point in gain}):
            here: dict[Corner, MeanSd] = {}
            here |= {(p.step_size, p.temperature): value for p, value in gain.items() if p.alpha == alpha}
            steps, temperatures = run.values["step_size"], run.values["temperature"]
            cells = Cells("step_size", "temperature", steps, temperatures, here)
            panels.append(cells.panel(f"{run.method}, α = {alpha:g}", shade))
        for point, value in gain.items():
            settings = [getattr(point, name) for name in PARAMETERS]
            rows.append([run.method, *settings, value.mean, value.sd, value.n])
    numbers = Numbers(["sweep", *PARAMETERS, "gain", "sd", "n"], rows)
    reading = (
        "Calibrated NLL on validation images less that of plain distillation at the same temperature and"
        " seed, mean ± s.d.: below zero, and the stronger the shade, the more the perturbation gains."
    )
    return Chart("gains", "What a perturbation gains", reading, panels, numbers)
