"""Every model side by side: what it is, how good, how diverse, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from polyphony import metrics
from polyphony.report.run import Run
from polyphony.report.summary import median_dee
from polyphony.report.tables import Cell, Table
from polyphony.rows import Latency
from polyphony.scores import HEADINGS, TEACHERS, score_text
from polyphony.words import count, duration

_SCORES = ("acc", "nll", "ece")
_DIVERSITY = (HEADINGS["kld"], "Disagree", "Mutual inf.", "Where", "Voice")
_COST = ("Training", "× teachers")


def student_table(run: Run) -> Table:
    """Means over seeds on test; costs of training, and of a batch where latency was measured."""
    rows = run.table(Latency)
    times = {row.model: row.milliseconds for row in rows}
    latency = ("Latency, ms",) if times else ()
    header = (
        "Model", "Form", "Members", "Parameters",
        *(HEADINGS[column] for column in (*_SCORES, "dee")), *_DIVERSITY, *_COST, *latency,
    )  # fmt: skip
    body = []
    for model in run.models:
        cells = (*_what(run, model), *_quality(run, model), *_diversity(run, model), *_training(run, model))
        last = (f"{times[model]:.3g}" if model in times else "–",) if times else ()
        body.append(tuple(Cell(text) for text in (*cells, *last)))
    batch = f", latency of a batch of {rows[0].batch} on {rows[0].threads} thread(s)" if rows else ""
    caption = (
        "Side by side: means over seeds on test images (calibrated; DEE of the median seed), how often and"
        " how much members differ; whether they do on the images on which the teachers do (Where, a rank"
        " correlation), and how much nearer member j is to teacher j than to the others (Voice, nats); the"
        " time of one training without its teachers', also in times of what all teachers of the ensemble"
        f" took{batch}. A dash is what a model does not have or was not measured."
    )
    return Table("students", caption, header, tuple(body))


def _what(run: Run, model: str) -> tuple[str, ...]:
    table = None if model == TEACHERS else run.recipe.form_table(model)
    form = table.words or table.label if table else "deep ensemble"
    return model, form, str(run.members_of(model)), count(run.scored(model)[0].params)


def _quality(run: Run, model: str) -> tuple[str, ...]:
    means = {column: run.mean(model, column).mean for column in _SCORES}
    shown = {**means, "dee": median_dee(run, model)}
    return tuple(score_text(column, [value], run.teacher_count) for column, value in shown.items())


def _diversity(run: Run, model: str) -> tuple[str, ...]:
    """Dashes for one network, unless it predicts a distribution of predictions, as a Dirichlet does."""
    tested = list(run.ensemble(model, "test").values())
    several = run.members_of(model) > 1
    divergence = run.mean(model, "kld").mean
    kld = f"{divergence:.3f}" if several or divergence > 0 else "–"
    apart = [metrics.disagreement(each.logits) for each in tested] if several else []
    told = [float(each.information().mean()) for each in tested if each.varies]
    return (
        kld,
        _or_dash(fmean(apart) if apart else None, lambda value: f"{value:.1%}"),
        _or_dash(fmean(told) if told else None, lambda value: f"{value:.3f}"),
        _or_dash(_mean_of(run, model, "rank_correlation"), lambda value: f"{value:.2f}"),
        _or_dash(_mean_of(run, model, "voice"), lambda value: f"{value:+.3f}"),
    )


def _mean_of(run: Run, model: str, column: str) -> float | None:
    """The mean over seeds of a column that may be missing."""
    known = [value for row in run.scored(model) if (value := getattr(row, column)) is not None]
    return fmean(known) if known else None


def _training(run: Run, model: str) -> tuple[str, ...]:
    taught = run.seconds(TEACHERS)[: run.members]
    mine = run.seconds(model)
    seconds = (sum(taught) if model == TEACHERS else fmean(mine)) if mine else None
    share = None if seconds is None or not taught else seconds / sum(taught)
    return _or_dash(seconds, duration), _or_dash(share, lambda value: f"{value:.2f}")


def _or_dash(value: float | None, words: Callable[[float], str]) -> str:
    return "–" if value is None else words(value)
