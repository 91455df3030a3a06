"""Tables of a run: scores on test images, price, members, unknown and corrupted images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from polyphony import metrics
from polyphony._util.text import count, counted, duration
from polyphony.report.paper import printed
from polyphony.report.paper_tables import paper_row
from polyphony.report.tables import DASH, Cell, PageTable, number, share, slug
from polyphony.report.verdict import megabytes, percent
from polyphony.runs.predictions import CORRUPTED
from polyphony.runs.rows import CorruptedScore, FactorDistance, Latency, UnknownScore, headings
from polyphony.runs.run import Run
from polyphony.runs.scores import (
    HEADINGS,
    TEACHERS,
    BySeed,
    by_shared_seeds,
    differ,
    mean_text,
)
from polyphony.runs.store import damaged

_LARGER_IS_BETTER = {name: "↑" in text for name, text in HEADINGS.items() if "↑" in text or "↓" in text}
_HOW = {
    "calibrated": "at the temperature fitted on validation images",
    "standard": "as predicted, without temperature scaling",
}
_UNKNOWN = {
    ("entropy", "auroc"): "AUROC, entropy ↑",
    ("mutual_information", "auroc"): "AUROC, mutual inf. ↑",
    ("doubt", "auroc"): "AUROC, confidence ↑",
    ("energy", "auroc"): "AUROC, energy ↑",
    ("max_logit", "auroc"): "AUROC, max logit ↑",
    ("entropy", "aupr"): "AUPR, entropy ↑",
    ("entropy", "fpr95"): "FPR95, entropy ↓",
}
_CORRUPTED = headings(CorruptedScore)
_PAPERS_IMAGES = 10_000  # of every kind and severity of CIFAR-10-C and CIFAR-100-C


def score_table(run: Run, calibration: str) -> PageTable:
    """Mean ± s.d. over seeds on test of the teachers and every student, the paper's numbers beside them."""
    n = " or ".join(map(str, sorted({len(run.scored(method)) for method in run.methods})))
    seeds = f"n = {n} {'seed' if n == '1' else 'seeds'} of the student"
    caption = (
        f"{run.recipe.name}: test scores, {_HOW[calibration]}; mean ± s.d. over {seeds}. DEE is that of the"
        " mean NLL, with the range over seeds."
    )
    winners = {}
    for column, larger in _LARGER_IS_BETTER.items():
        values = {method: run.by_seed(method, column, calibration) for method in run.methods}
        winners[column] = clear_winner(values, larger=larger)
    rows = [_score_row(run, model, calibration, winners) for model in run.models]
    header = ["Model", "Parameters", *HEADINGS.values()]
    return PageTable.of(f"scores-{calibration}", caption, header, rows)


def _score_row(run: Run, model: str, calibration: str, winners: Mapping[str, str | None]) -> list[Cell | str]:
    theirs = paper_row(run, model, calibration)
    row: list[Cell | str] = [label(run, model), f"{run.params(model):,}"]
    for column in HEADINGS:
        best, paper = winners.get(column) == model, printed(theirs, column)
        dee = run.dee(model, calibration) if column == "dee" else None
        text = dee.text if dee else run.text(model, column, calibration)
        row.append(Cell(text, best, paper, dee.seeds if dee else ""))
    return row


def clear_winner(values: Mapping[str, BySeed], *, larger: bool) -> str | None:
    """The method that is clearly better than every other: each paired 95 % interval excludes zero.

    None if there is none, if there is one method, or if one has no spread (one seed, or an infinite value).
    """
    if len(values) < 2 or not all(values.values()):
        return None
    values = by_shared_seeds(values)
    means = {name: fmean(each.values()) for name, each in values.items()}
    best = (max if larger else min)(means, key=lambda name: means[name])
    return best if all(differ(values[best], values[other]) for other in values if other != best) else None


def price_table(run: Run) -> PageTable:
    """The cost of each model: parameters, exported file, milliseconds, training time."""
    rows = run.table(Latency)
    batches = sorted({row.batch for row in rows})
    how = f" Milliseconds: one thread, {rows[0].runtime}, {rows[0].machine}." if rows else ""
    caption = (
        f"Price.{how} “× one teacher” compares milliseconds at the smallest batch. Training time is for one"
        " student, without its teachers; “× teachers” compares it with training all teachers. A dash: not"
        " measured."
    )
    body = [_price_row(run, model, batches) for model in run.models]
    return PageTable.from_rows("price", caption, body)


def _price_row(run: Run, model: str, batches: Sequence[int]) -> dict[str, str]:
    """A model's cells by heading."""
    price, times = run.price(model), run.times_one_teacher(model)
    by_batch = {batch: run.price(model, batch) for batch in batches}
    return {
        "Model": label(run, model),
        "Form": _form(run, model),
        "Members": str(run.members_of(model)),
        "Parameters": count(run.params(model)),
        "File": megabytes(price.bytes) if price and price.bytes else DASH,
        **{f"ms, {counted(batch, 'image')}": _milliseconds(row) for batch, row in by_batch.items()},
        "× one teacher": f"{times:.2f}" if times else DASH,
        **_training(run, model),
    }


def _form(run: Run, model: str) -> str:
    if model not in run.methods:
        return "deep ensemble" if model == TEACHERS else "plain network"
    form = run.recipe.form_table(model)
    return form.words or form.label


def _milliseconds(row: Latency | None) -> str:
    return f"{row.milliseconds:.3g}" if row else DASH


def _training(run: Run, model: str) -> dict[str, str]:
    taught, mine = run.seconds(TEACHERS)[: run.members], run.seconds(model)
    if not mine:
        return {"Training": DASH, "× teachers": DASH}
    seconds = sum(taught) if model == TEACHERS else fmean(mine)
    return {"Training": duration(seconds), "× teachers": f"{seconds / sum(taught):.2f}" if taught else DASH}


def members_table(run: Run) -> list[PageTable]:
    """How members differ, and whom they follow; empty if no model has members."""
    varied = [name for name in run.methods if run.members_of(name) > 1 or run.mean(name, "kld").mean]
    if not varied:
        return []
    caption = (
        "Members on test images, means over seeds. Follows own teacher: how much closer (KL) member j is to"
        " teacher j than to the other teachers; 0 %: no teacher in particular, 100 %: exact copies. Diversity"
        " kept: mean-KLD as a share of the teachers’; not shown for a student worse than one teacher, whose"
        " members are wrong in different ways. Disagree: how often two members name different classes. Same"
        " images: rank correlation of the disagreement with the teachers’, image by image. Factors: how far"
        " apart the members’ rank-one factors are, as a share of their norm."
    )
    body = [_members_row(run, model) for model in (TEACHERS, *varied)]
    return [PageTable.from_rows("members", caption, body)]


def _members_row(run: Run, model: str) -> dict[str, str]:
    tested, several = run.ensemble(model, "test").values(), run.members_of(model) > 1
    follows, kept = run.follows(model), None if model == TEACHERS else run.kept(model)
    known = [float(each.information().mean()) for each in tested if each.varies]
    apart = [row.distance for row in run.table(FactorDistance) if row.model == model]
    return {
        "Model": label(run, model),
        "Follows own teacher ↑": DASH if follows is None else percent(follows),
        "Diversity kept": DASH if kept is None else percent(kept),
        HEADINGS["kld"]: f"{run.mean(model, 'kld').mean:.3f}",
        "Disagree": share(metrics.disagreement(each.logits) for each in tested if several),
        "Mutual information": number(known, 3),
        "Same images ↑": number(row.rank_correlation for row in run.scored(model)),
        "Factors": number(apart),
    }


def label(run: Run, model: str) -> str:
    """A model's name in a table."""
    return f"{TEACHERS} ({counted(run.members, 'network')})" if model == TEACHERS else model


def unknown_tables(run: Run) -> list[PageTable]:
    """For each set of unknown classes, how well each model tells it from test images, by entropy."""
    names = dict.fromkeys(row.unknown for row in run.table(UnknownScore))
    return [_unknown(run, name) for name in names]


def _unknown(run: Run, name: str) -> PageTable:
    rows = [row for row in run.table(UnknownScore) if row.unknown == name]
    body: list[list[Cell | str]] = []
    for model in run.models:
        if mine := [row for row in rows if row.model == model]:
            body.append([model, *(_told_apart(mine, by, column) for by, column in _UNKNOWN)])
    caption = (
        f"Telling {name} (unknown: the positive class) from test images: by the entropy or the confidence of"
        " the mean prediction, the members’ mutual information, or the energy or the maximum of their mean"
        " logits; mean ± s.d. over seeds. Bold: the best score of a model on validation images and a fifth"
        " of the unknown ones, in most seeds."
    )
    return PageTable.of(f"unknown-{slug(name)}", caption, ["Model", *_UNKNOWN.values()], body)


def _told_apart(rows: Sequence[UnknownScore], by: str, column: str) -> Cell:
    values = [getattr(row, column) for row in rows if row.score == by]
    best = Counter(row.score for row in rows if row.best).most_common(1)
    text = mean_text(column, metrics.mean_sd(values)) if values else DASH
    return Cell(text, best=column == "auroc" and [by] == [score for score, _ in best])


def corrupted_tables(run: Run) -> list[PageTable]:
    """For each corrupted data set, the mean over all corruptions and severities of each model's scores."""
    names = dict.fromkeys(row.data for row in run.table(CorruptedScore))
    return [_corrupted(run, name) for name in names]


def _corrupted(run: Run, name: str) -> PageTable:
    rows = [row for row in run.table(CorruptedScore) if row.data == name]
    official = _is_official(run, name, _conditions(run, rows))
    body: list[list[Cell | str]] = []
    for model in run.models:
        theirs = paper_row(run, model, "standard", "corrupted") if official else None
        if mine := [row for row in rows if row.model == model]:
            cells = [Cell(_over_all(mine, c), paper=printed(theirs, c)) for c in _CORRUPTED]
            body.append([model, *cells])
    caption = f"{name}: mean over all corruptions and severities, as predicted; mean ± s.d. over seeds."
    return PageTable.of(f"corrupted-{slug(name)}", caption, ["Model", *_CORRUPTED.values()], body)


def _conditions(run: Run, rows: Sequence[CorruptedScore]) -> set[tuple[str, int]]:
    """The corruptions and severities; raises unless every model and seed has a score for each."""
    found = {(row.corruption, row.severity) for row in rows}
    for (model, _), scored in Counter((row.model, row.seed) for row in rows).items():
        if scored != len(found):
            why = f"it has {scored} scores of a seed of {model}, not {len(found)}"
            raise damaged(run.folder / CorruptedScore.file, why)
    return found


def _is_official(run: Run, name: str, conditions: Iterable[tuple[str, int]]) -> bool:
    """Whether all published images were predicted, as in the paper: no regenerated ones, no limit."""
    splits = (f"{CORRUPTED}{name}-{kind}-{severity}" for kind, severity in conditions)
    return not name.endswith("-regenerated") and all(run.images(s) == _PAPERS_IMAGES for s in splits)


def _over_all(rows: Sequence[CorruptedScore], column: str) -> str:
    """A model's score over its seeds, each a mean over corruptions and severities."""
    seeds: dict[int | None, list[float]] = {}
    for row in rows:
        seeds.setdefault(row.seed, []).append(getattr(row, column))
    return mean_text(column, metrics.mean_sd([fmean(each) for each in seeds.values()]))
