"""The page that compares several runs: their scores side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from polyphony._util.text import cut, listed
from polyphony.metrics import MeanSd
from polyphony.report.chart import BESIDE, MEDIUM, SMALL, Chart, Panel, spread
from polyphony.report.differences import difference_chart, difference_table, differences
from polyphony.report.page import Report, render
from polyphony.report.provenance import one_line, provenance
from polyphony.report.study_runs import StudyRuns, studies
from polyphony.report.style import Looks, assign
from polyphony.report.tables import DASH, Cell, Numbers, PageTable
from polyphony.report.verdict import percent
from polyphony.runs.run import Run
from polyphony.runs.scores import HEADINGS

_PANELS = {"nll": "calibrated NLL ↓", "dee": "DEE ↑", "kld": "mean-KLD (diversity)"}
Scores = dict[tuple[str, str], MeanSd]  # by study and model


def comparison(runs: Sequence[Run]) -> Report:
    """The page that compares runs, and its figures and tables; runs of one study are read together."""
    groups = studies(runs)
    methods = {name: study.first.perturbation(name) for study in groups for name in study.methods}
    look = assign(list(methods.items()))
    tables, charts = [comparison_table(groups)], [comparison_chart(groups, look)]
    if pairs := [difference for study in groups for difference in differences(study)]:
        tables.append(difference_table(pairs))
        charts.append(difference_chart(pairs, look))
    html = render(
        "comparison.html",
        title=", ".join(study.name for study in groups),
        tables=tables,
        charts=charts,
        warnings=_warnings(groups),
        runs=[
            (_run_title(study, run), one_line(run), provenance(run)) for study in groups for run in study.runs
        ],
    )
    return Report(html, [*tables, *charts])


def _run_title(study: StudyRuns, run: Run) -> str:
    return f"{study.name}: {run.folder}" if len(study.runs) > 1 else study.name


def _warnings(groups: Sequence[StudyRuns]) -> list[str]:
    """Why the studies' numbers are hard to compare; empty if they are not."""
    warnings = []
    if len({frozenset(str(run.facts.data.get("test")) for run in study.runs) for study in groups}) > 1:
        warnings.append("They were tested on different images: their scores cannot be compared directly.")
    if len({study.first.teacher_count for study in groups}) > 1:
        warnings.append(
            "Their DEE curves have different numbers of teachers, so “>N” has different meanings."
        )
    for study in groups:
        if methods := study.left_out:
            which = f"Some runs of {study.name} lack these methods or define them differently"
            warnings.append(f"{which}: {listed(methods)}. They are left out.")
    return warnings


def comparison_table(groups: Sequence[StudyRuns]) -> PageTable:
    """All models of all studies in one table, calibrated."""
    caption = (
        "Test scores, mean ± s.d. over n seeds; a study with several sets of teachers has the seeds of all"
        " sets. Scores are at the temperature fitted on validation images; “NLL, as predicted” is without it."
        " DEE is computed from the mean NLL (lower median over sets); its range is over seeds. Follows own"
        " teacher: 0 % means no teacher in particular, 100 % exact copies of the teachers. Mean-KLD kept:"
        " mean-KLD as a share of the teachers’; not shown for a student worse than one teacher."
    )
    rows = [_row(study, model) for study in groups for model in study.models]
    return PageTable.from_rows("comparison", caption, rows)


def _row(study: StudyRuns, model: str) -> dict[str, Cell | str]:
    scores, dee = study.scored(model), study.dee(model)
    row: dict[str, Cell | str] = {"Run: model": f"{study.name}: {model}"}
    row["Parameters"] = f"{next(iter(scores.values())).params:,}"
    for column, heading in HEADINGS.items():
        row[heading] = study.text(model, column)
    if dee:
        row[HEADINGS["dee"]] = Cell(dee.text, range=dee.seeds)
    row["NLL, as predicted ↓"] = study.text(model, "nll", "standard")
    for heading, read in (("Follows own teacher ↑", Run.follows), ("Mean-KLD kept", Run.diversity_share)):
        share = study.share(model, read) if model in study.methods else None
        row[heading] = DASH if share is None else percent(share)
    return {**row, "n": str(len(scores))}


def comparison_chart(groups: Sequence[StudyRuns], look: Looks) -> Chart:
    """NLL, DEE and mean-KLD: a column for each study, a mark for each model."""
    panels, rows = [], []
    for column, words in _PANELS.items():
        scores = {(study.name, m): study.mean(m, column) for study in groups for m in study.models}
        panels.append(Panel(words, partial(_marks, scores=scores, look=look), 1.15))
        rows += [(column, *key, score.mean, score.sd, score.n) for key, score in scores.items()]
    reading = (
        "Marks are means over seeds, bars one standard deviation. The marks of a run stand in one column. A"
        " DEE past the end of the teachers’ curve has no mark."
    )
    numbers = Numbers(["score", "run", "model", "mean", "sd", "n"], rows)
    width = SMALL if len(look) <= BESIDE else MEDIUM  # a legend above the panels leaves them more width
    return Chart("comparison", "Side by side", reading, panels, numbers, list(look.values()), width)


def _marks(axes: Axes, *, scores: Scores, look: Looks) -> None:
    order, names = list(look), list(dict.fromkeys(study for study, _ in scores))
    for (study, model), score in scores.items():
        if math.isfinite(score.mean):
            offset = (order.index(model) - (len(order) - 1) / 2) * 0.7 / len(order)
            x, style = names.index(study) + offset, {**look[model].mark, "markersize": 6.5}
            axes.errorbar(x, score.mean, spread(score), **style, linestyle="", elinewidth=1.4)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xticks(range(len(names)), [cut(name, 18) for name in names], rotation=20, ha="right")
    axes.grid(visible=False, axis="x")
