"""Tables of a run: test scores, price, members, unknown and corrupted images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from polyphony import metrics
from polyphony._util.text import counted, duration, short_number
from polyphony.report.paper import printed
from polyphony.report.paper_tables import paper_row
from polyphony.report.tables import DASH, Cell, PageTable, by, number, share, slug
from polyphony.report.verdict import megabytes, percent
from polyphony.runs.predictions import CORRUPTED
from polyphony.runs.rows import CorruptedScore, FactorDistance, Latency, UnknownScore, headings
from polyphony.runs.run import Run
from polyphony.runs.scores import HEADINGS, TEACHERS, BySeed, by_shared_seeds, differ, mean_text
from polyphony.runs.store import damaged_file

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
_PAPERS_IMAGES = 10_000  # CIFAR-10-C and CIFAR-100-C have so many for every corruption and severity


def score_table(run: Run, calibration: str) -> PageTable:
    """Test scores of the teachers and every student, mean ± s.d. over seeds, with the paper's numbers."""
    n = " or ".join(map(str, sorted({len(run.scored(method)) for method in run.methods})))
    seeds = f"n = {n} {'seed' if n == '1' else 'seeds'} of the student"
    caption = (
        f"{run.recipe.name}: test scores, {_HOW[calibration]}; mean ± s.d. over {seeds}. DEE is computed from"
        " the mean NLL; its range is over seeds."
    )
    winners = {}  # by column
    for column, larger in _LARGER_IS_BETTER.items():
        values = {method: run.by_seed(method, column, calibration) for method in run.methods}
        winners[column] = clear_winner(values, larger=larger)
    rows = [_score_row(run, model, calibration, winners) for model in run.models]
    header = ["Model", "Parameters", *HEADINGS.values()]
    return PageTable.of(f"scores-{calibration}", caption, header, rows)


def _score_row(run: Run, model: str, calibration: str, winners: Mapping[str, str | None]) -> list[Cell | str]:
    papers_row = paper_row(run, model, calibration)
    row: list[Cell | str] = [label(run, model), f"{run.params(model):,}"]
    for column in HEADINGS:
        best, paper = winners.get(column) == model, printed(papers_row, column)
        dee = run.dee(model, calibration) if column == "dee" else None
        text = dee.text if dee else run.text(model, column, calibration)
        row.append(Cell(text, best, paper, dee.seeds if dee else ""))
    return row


def clear_winner(values: Mapping[str, BySeed], *, larger: bool) -> str | None:
    """The method that is clearly better than every other: each paired 95 % interval excludes zero.

    None if no method is, if there is only one, or if an interval is undefined (one seed, an infinite value).
    """
    if len(values) < 2 or not all(values.values()):
        return None
    values = by_shared_seeds(values)
    means = {name: fmean(seeds.values()) for name, seeds in values.items()}
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
    price, times = run.price(model), run.times_one_teacher(model)
    by_batch = {f"ms, {counted(batch, 'image')}": run.price(model, batch) for batch in batches}
    trainings = run.seconds(model)
    all_teachers = sum(run.seconds(TEACHERS)[: run.members])
    seconds = all_teachers if model == TEACHERS else fmean(trainings or [0.0])
    return {
        "Model": label(run, model),
        "Form": _form(run, model),
        "Members": str(run.members_of(model)),
        "Parameters": short_number(run.params(model)),
        "File": megabytes(price.bytes) if price and price.bytes else DASH,
        **{heading: f"{row.milliseconds:.3g}" if row else DASH for heading, row in by_batch.items()},
        "× one teacher": f"{times:.2f}" if times else DASH,
        "Training": duration(seconds) if trainings else DASH,
        "× teachers": f"{seconds / all_teachers:.2f}" if trainings and all_teachers else DASH,
    }


def _form(run: Run, model: str) -> str:
    if model not in run.methods:
        return "deep ensemble" if model == TEACHERS else "plain network"
    form = run.recipe.form_table(model)
    return form.words or form.label


def members_table(run: Run) -> PageTable:
    """How members differ, and whether they follow their teachers; without rows if no student has members."""
    students = [name for name in run.methods if run.members_of(name) > 1 or run.mean(name, "kld").mean]
    caption = (
        "Members on test images, means over seeds. Follows own teacher: how much closer (KL) member j is to"
        " teacher j than to the other teachers; 0 % means no teacher in particular, 100 % exact copies."
        " Mean-KLD kept: mean-KLD as a share of the teachers’; not shown for a student worse than one"
        " teacher, since its members differ by their errors. Disagree: how often two members name different"
        " classes. Same images: rank correlation, over images, of the members’ and the teachers’"
        " disagreement. Factors: how far apart the members’ rank-one factors are, as a share of their norm."
    )
    body = [_members_row(run, model) for model in (TEACHERS, *students)] if students else []
    return PageTable.from_rows("members", caption, body)


def _members_row(run: Run, model: str) -> dict[str, str]:
    predictions, several = run.ensemble(model, "test").values(), run.members_of(model) > 1
    follows, diversity = run.follows(model), None if model == TEACHERS else run.diversity_share(model)
    information = [float(seed.information().mean()) for seed in predictions if seed.varies]
    distances = [row.distance for row in run.table(FactorDistance) if row.model == model]
    return {
        "Model": label(run, model),
        "Follows own teacher ↑": DASH if follows is None else percent(follows),
        "Mean-KLD kept": DASH if diversity is None else percent(diversity),
        HEADINGS["kld"]: f"{run.mean(model, 'kld').mean:.3f}",
        "Disagree": share(metrics.disagreement(seed.logits) for seed in predictions if several),
        "Mutual information": number(information, 3),
        "Same images ↑": number(row.rank_correlation for row in run.scored(model)),
        "Factors": number(distances),
    }


def label(run: Run, model: str) -> str:
    """A model's name in a table; that of the teachers with their number."""
    return f"{TEACHERS} ({counted(run.members, 'network')})" if model == TEACHERS else model


def unknown_tables(run: Run) -> list[PageTable]:
    """For each set of unknown classes, how well each model separates it from test images."""
    tables = []
    for name, rows in by(run.table(UnknownScore), "unknown").items():
        models = by(rows, "model")
        body = [_unknown_row(model, models[model]) for model in run.models if model in models]
        caption = (
            f"How well each model separates {name} (unknown classes: the positives) from test images; mean ±"
            " s.d. over seeds. The uncertainty is the entropy or the confidence of the mean prediction, the"
            " members’ mutual information, or the energy or the maximum of their mean logits. Bold: the"
            " uncertainty of a model that is best on validation images and a fifth of the unknown images, in"
            " most seeds."
        )
        tables.append(PageTable.from_rows(f"unknown-{slug(name)}", caption, body))
    return tables


def _unknown_row(model: str, rows: Sequence[UnknownScore]) -> dict[str, Cell | str]:
    cells: dict[str, Cell | str] = {"Model": model}
    best = [score for score, _ in Counter(row.score for row in rows if row.best).most_common(1)]
    for (score, column), heading in _UNKNOWN.items():
        values = [getattr(row, column) for row in rows if row.score == score]
        text = mean_text(column, metrics.mean_sd(values)) if values else DASH
        cells[heading] = Cell(text, best=column == "auroc" and best == [score])
    return cells


def corrupted_tables(run: Run) -> list[PageTable]:
    """For each corrupted data set, the mean over all corruptions and severities of each model's scores."""
    return [_corrupted_table(run, name, rows) for name, rows in by(run.table(CorruptedScore), "data").items()]


def _corrupted_table(run: Run, name: str, rows: Sequence[CorruptedScore]) -> PageTable:
    official, models = _is_official(run, name, rows), by(rows, "model")
    body: list[dict[str, Cell | str]] = []
    for model in [model for model in run.models if model in models]:
        papers_row = paper_row(run, model, "standard", "corrupted") if official else None
        seeds = by(models[model], "seed").values()
        cells: dict[str, Cell | str] = {"Model": model}
        for column, heading in _CORRUPTED.items():
            means = [fmean(getattr(row, column) for row in seed) for seed in seeds]
            text = mean_text(column, metrics.mean_sd(means))
            cells[heading] = Cell(text, paper=printed(papers_row, column))
        body.append(cells)
    caption = f"{name}: mean over all corruptions and severities, as predicted; mean ± s.d. over seeds."
    return PageTable.from_rows(f"corrupted-{slug(name)}", caption, body)


def _is_official(run: Run, name: str, rows: Sequence[CorruptedScore]) -> bool:
    """Whether the scores are on all published images, as in the paper: none regenerated, none left out.

    Raises a FileError if a model lacks a score for a corruption and severity that others have.
    """
    conditions = by(rows, "corruption", "severity")
    for (model, _), scored in by(rows, "model", "seed").items():
        if len(scored) != len(conditions):
            why = f"it has {len(scored)} scores of a seed of {model}, not {len(conditions)}"
            raise damaged_file(run.folder / CorruptedScore.file, why)
    splits = (f"{CORRUPTED}{name}-{kind}-{severity}" for kind, severity in conditions)
    return not name.endswith("-regenerated") and all(run.images(s) == _PAPERS_IMAGES for s in splits)
