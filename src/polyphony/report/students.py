"""Every model side by side: what it is, how good, how diverse, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from polyphony import metrics
from polyphony.report.run import Run
from polyphony.report.summary import median_dee
from polyphony.report.tables import PageTable
from polyphony.rows import Latency
from polyphony.scores import HEADINGS, TEACHERS, score_text
from polyphony.words import count, duration

_SCORES = ("acc", "nll", "ece")
_DASH = "–"


def student_table(run: Run) -> PageTable:
    """Means over seeds on test; costs of training, and of a batch where latency was measured."""
    rows = run.table(Latency)
    batch = f", latency of a batch of {rows[0].batch} on {rows[0].threads} thread(s)" if rows else ""
    caption = (
        "Side by side: means over seeds on test images (calibrated; DEE of the median seed), how often and"
        " how much members differ; whether they do on the images on which the teachers do (Where, a rank"
        " correlation), and how much nearer member j is to teacher j than to the others (Voice, nats); the"
        " time of one training without its teachers', also in times of what all teachers of the ensemble"
        f" took{batch}. A dash is what a model does not have or was not measured."
    )
    body = [_row(run, model) for model in run.models]
    return PageTable.of("students", caption, list(body[0]), [cells.values() for cells in body])


def _row(run: Run, model: str) -> dict[str, str]:
    """A model's cells by heading."""
    table = None if model == TEACHERS else run.recipe.form_table(model)
    what = {
        "Model": model,
        "Form": table.words or table.label if table else "deep ensemble",
        "Members": str(run.members_of(model)),
        "Parameters": count(run.params(model)),
    }
    times = {row.model: f"{row.milliseconds:.3g}" for row in run.table(Latency)}
    latency = {"Latency, ms": times.get(model, _DASH)} if times else {}
    return {**what, **_quality(run, model), **_diversity(run, model), **_training(run, model), **latency}


def _quality(run: Run, model: str) -> dict[str, str]:
    values = {column: run.mean(model, column).mean for column in _SCORES}
    shown = {**values, "dee": median_dee(run, model)}
    return {HEADINGS[column]: score_text(column, [each], run.teacher_count) for column, each in shown.items()}


def _diversity(run: Run, model: str) -> dict[str, str]:
    """Dashes for one network, unless it predicts a distribution of predictions, as a Dirichlet does."""
    tested = run.ensemble(model, "test").values()
    several, kld = run.members_of(model) > 1, run.mean(model, "kld").mean
    return {
        HEADINGS["kld"]: f"{kld:.3f}" if several or kld > 0 else _DASH,
        "Disagree": _mean([metrics.disagreement(each.logits) for each in tested if several], ".1%"),
        "Mutual inf.": _mean([float(each.information().mean()) for each in tested if each.varies], ".3f"),
        "Where": _mean([row.rank_correlation for row in run.scored(model)], ".2f"),
        "Voice": _mean([row.voice for row in run.scored(model)], "+.3f"),
    }


def _mean(values: Sequence[float | None], style: str) -> str:
    """The mean of the values that are there."""
    known = [value for value in values if value is not None]
    return format(fmean(known), style) if known else _DASH


def _training(run: Run, model: str) -> dict[str, str]:
    taught, mine = run.seconds(TEACHERS)[: run.members], run.seconds(model)
    if not mine:
        return {"Training": _DASH, "× teachers": _DASH}
    seconds = sum(taught) if model == TEACHERS else fmean(mine)
    return {"Training": duration(seconds), "× teachers": f"{seconds / sum(taught):.2f}" if taught else _DASH}
