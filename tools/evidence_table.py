"""The tables and figures of docs/results/evidence/second, from the runs of PROTOCOL-2.

python tools/evidence_table.py RUN TO/kept/NAME    keep the recipe, the scores and a table of trainings of RUN
python tools/evidence_table.py TO                  write README.md and the figures in TO from TO/kept

trainings.csv has the epochs, seconds and step size of every training, and its multiply-adds with the passes
through the teachers.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import ClassVar

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from polyphony import metrics
from polyphony.metrics import MeanSd
from polyphony.report.chart import Chart, Margins, Panel, spread
from polyphony.report.study_runs import Pair, StudyRuns
from polyphony.report.style import MUTED, assign
from polyphony.report.tables import DASH, Numbers, PageTable
from polyphony.runs.rows import TableRow, to_csv
from polyphony.runs.run import Run
from polyphony.runs.scores import BEST_TEACHER, TEACHERS

EQUAL = 0.02  # two methods are equal if the interval lies within ± this difference of NLL
FITS = 0.95  # of the teachers' accuracy on training images


@dataclass(frozen=True)
class Trained(TableRow):
    """One training; the teachers' rows have their numbers in the column `seed`."""

    file: ClassVar[str] = "trainings.csv"
    model: str
    seed: int
    epochs: int
    seconds: float
    step_size: float | None
    multiply_adds: float


@dataclass(frozen=True)
class Comparison:
    """Two methods of a study. A name that ends with "*" is the best of these methods on validation images."""

    study: str
    words: str
    method: str
    reference: str


@dataclass(frozen=True)
class Way:
    """A way to train a student: the same settings with different numbers of epochs."""

    label: str
    methods: Sequence[str]


STUDIES = {  # study → its runs in kept/
    "CIFAR-10, 4,000 images": "cifar10-*",
    "CIFAR-10, all images": "full",
    "CIFAR-100, 4,000 images": "cifar100",
    "Fashion-MNIST, 4,000 images": "fashion-*",
}
CIFAR10, FULL, CIFAR100, FASHION = STUDIES
CHOICE = "choose"
COMPARISONS = (
    Comparison(CIFAR10, "ODS − plain", "ods", "plain"),
    Comparison(CIFAR10, "ODS − plain at equal cost", "ods", "plain-long"),
    Comparison(CIFAR10, "ODS − noise", "ods", "noise"),
    Comparison(CIFAR10, "fresh: ODS − plain", "fresh-ods", "fresh-plain"),
    Comparison(CIFAR10, "fresh: ODS − Algorithm 1 as printed", "fresh-ods", "fresh-paper"),
    Comparison(CIFAR10, "ODS: from a teacher − fresh", "ods", "fresh-ods"),
    Comparison(CIFAR100, "ODS − plain", "ods-*", "plain-t*"),
    Comparison(CIFAR100, "ODS − plain at equal cost", "ods-*", "plain-long"),
    Comparison(CIFAR100, "ODS − noise", "ods-*", "noise"),
    Comparison(FULL, "ODS − plain", "ods", "plain-t*"),
    Comparison(FASHION, "from a teacher, 10 epochs − fresh, two passes, 30", "born-e10", "fresh-two-e30"),
    Comparison(FASHION, "from a teacher, 5 epochs − fresh, two passes, 30", "born-e5", "fresh-two-e30"),
    Comparison(FASHION, "shared front, 10 epochs − fresh, two passes, 30", "front-e10", "fresh-two-e30"),
    Comparison(FASHION, "fresh: one pass − two, 30 epochs", "fresh-one-e30", "fresh-two-e30"),
)
WAYS = {
    FASHION: (
        Way("fresh, two passes", ["fresh-two-e30"]),
        Way("fresh, one pass", ["fresh-one-e10", "fresh-one-e30"]),
        Way("from a teacher, two passes", ["born-two-e5"]),
        Way("from a teacher, one pass", ["born-e2", "born-e5", "born-e10"]),
        Way("the same, shared front", ["front-e2", "front-e5", "front-e10"]),
    ),
    CHOICE: (
        Way("fresh, two passes, as printed", ["fresh-paper"]),
        Way("fresh, one pass", ["fresh-ods-t1-s4-e10", "fresh-ods-t1-s4"]),
        Way("from a teacher, one pass", ["short-s12", "ods-t1-s12-e5", "ods-t1-s12", "ods-t1-s12-e20"]),
        Way("the same, shared front", ["front-e2", "front-e5", "front-e10"]),
    ),
}
STEPS = ("3", "6", "12", "24")


def main(source: str, to: str | None = None) -> None:
    """Write the page of a folder; with two folders, keep the results of the first in the second."""
    if to is not None:
        keep(Run.open(Path(source)), Path(to))
    else:
        write_page(Path(source))


def keep(run: Run, to: Path) -> None:
    """Copy a run's recipe and scores, and write the table of its trainings."""
    to.mkdir(parents=True, exist_ok=True)
    for name in ("recipe.json", "scores.csv"):
        shutil.copyfile(run.folder / name, to / name)
    (to / Trained.file).write_text(to_csv([*trainings(run)], Trained), encoding="utf-8")


def trainings(run: Run) -> Iterator[Trained]:
    """Every training of a run, with its counted cost."""
    from polyphony.study.cost import costs
    from polyphony.study.study import Study
    from polyphony.study.trainings import TrainTeacher

    study = Study(run.recipe, run.folder)
    counted = {cost.name: cost.flops / 2 for cost in costs(study.outlined())}
    folders = [(TEACHERS, j, study.teacher(j)) for j in range(study.teacher_count)]
    folders += [(name, seed, study.student(name, seed)) for name, seed in study.students]
    for model, number, folder in folders:
        record = folder.record()
        cost = counted[TrainTeacher.kind if model == TEACHERS else model]
        yield Trained(model, number, record["epochs"], record["seconds"], record.get("step_size"), cost)


# Reading


@cache
def runs_of(folder: Path, study: str) -> StudyRuns | None:
    """The kept runs of a study; None if there are none."""
    paths = sorted((folder / "kept").glob(STUDIES.get(study, study)))
    return StudyRuns(study, [Run.open(path) for path in paths]) if paths else None


def resolve(study: StudyRuns, name: str) -> str:
    """The name of a method; of several ("plain-t*") the one with the lowest mean NLL on validation images."""
    if not name.endswith("*"):
        return name
    names = [method for method in study.methods if method.startswith(name[:-1])]
    return min(names, key=lambda method: valid_nll(study, method).mean)


def valid_nll(study: StudyRuns, method: str) -> MeanSd:
    """Calibrated NLL on validation images over sets and seeds."""
    return metrics.mean_sd([row.nll for row in study.scored(method, split="valid").values()])


def cost(study: StudyRuns, method: str) -> float:
    """The multiply-adds of one training."""
    return next(row.multiply_adds for row in study.first.table(Trained) if row.model == method)


def differences(study: StudyRuns, comparison: Comparison, column: str = "nll") -> dict[Pair, float]:
    """Method less reference in a calibrated test score, for each pair of set and seed that both have."""
    mine, theirs = (
        study.column(resolve(study, name), column) for name in (comparison.method, comparison.reference)
    )
    return {pair: mine[pair] - theirs[pair] for pair in mine if pair in theirs}


def over_sets(gaps: dict[Pair, float]) -> MeanSd:
    """The mean over sets of teachers of each set's mean."""
    sets = sorted({place for place, _ in gaps})
    return metrics.mean_sd([fmean(gap for pair, gap in gaps.items() if pair[0] == place) for place in sets])


def verdict(pairs: MeanSd, sets: MeanSd) -> str:
    """Better or worse if every interval excludes zero, equal if every one is within ± EQUAL, else unclear."""
    halves = [mean.half for mean in (pairs, sets) if mean.n > 1]
    if not halves:
        return "one pair"
    if all(abs(pairs.mean) > half for half in halves):
        return "better" if pairs.mean < 0 else "worse"
    return "equal" if all(abs(pairs.mean) + half <= EQUAL for half in halves) else "unclear"


# Tables


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def half_text(mean: MeanSd) -> str:
    return f"± {mean.half:.3f}" if mean.n > 1 else DASH


def spread_text(values: Sequence[float], digits: int, factor: float = 1.0) -> str:
    """ "0.384 ± 0.004"; the mean alone for one value; a dash for none."""
    if not values:
        return DASH
    mean = metrics.mean_sd([factor * value for value in values])
    deviation = f" ± {mean.sd:.{digits}f}" if mean.n > 1 else ""
    return f"{mean.mean:.{digits}f}{deviation}"


def comparison_rows(folder: Path) -> list[dict[str, str]]:
    """A row for each comparison whose study has results."""
    rows = []
    for comparison in COMPARISONS:
        study = runs_of(folder, comparison.study)
        if study is None or not (gaps := differences(study, comparison)):
            continue
        pairs, sets = metrics.mean_sd(list(gaps.values())), over_sets(gaps)
        names = [resolve(study, name) for name in (comparison.method, comparison.reference)]
        ratio = cost(study, names[0]) / cost(study, names[1])
        rows.append(
            {
                "study": comparison.study,
                "comparison": comparison.words,
                "cost": f"{ratio:.2f}",
                "difference": signed(pairs.mean),
                "95 % interval": half_text(pairs),
                "over sets": half_text(sets),
                "better in": f"{sum(gap < 0 for gap in gaps.values())} of {len(gaps)}",
                "verdict": verdict(pairs, sets),
            }
        )
    return rows


def score_rows(study: StudyRuns) -> list[dict[str, str]]:
    """A row for each model of a study."""
    kept = [row for run in study.runs for row in run.table(Trained)]
    return [
        {
            "model": model,
            "NLL": spread_text([*study.column(model, "nll").values()], 3),
            "as predicted": spread_text([*study.column(model, "nll", "standard").values()], 3),
            "ACC %": spread_text([*study.column(model, "acc").values()], 1, 100),
            "training ACC %": spread_text(
                [row.acc for row in study.scored(model, split="train").values()], 1, 100
            ),
            "DEE": spread_text([*study.column(model, "dee").values()], 2),
            "mean-KLD": spread_text([*study.column(model, "kld").values()], 3),
            "voice": spread_text([*study.column(model, "voice").values()], 3),
            "step": steps_text([row for row in kept if row.model == model]),
            "multiply-adds": DASH if model == BEST_TEACHER else f"{cost(study, model) / 1e12:.2f}",
            "seconds": spread_text([row.seconds for row in kept if row.model == model], 0),
            "n": str(len(study.column(model, "nll"))),
        }
        for model in study.models
    ]


def steps_text(rows: Sequence[Trained]) -> str:
    """The step sizes of trainings, in 1/255."""
    steps = {row.step_size for row in rows if row.step_size is not None}
    return ", ".join(f"{255 * step:g}" for step in sorted(steps)) or DASH


def choice_rows(folder: Path) -> list[dict[str, str]]:
    """A row for each setting that was tried on validation images."""
    study = runs_of(folder, CHOICE)
    if study is None:
        return []
    rows = []
    for name in study.methods:
        valid, recipe = study.scored(name, split="valid").values(), study.first.recipe
        rows.append(
            {
                "setting": name,
                "τ": f"{recipe.setting(name, 'temperature'):g}",
                "rate": f"{recipe.schedule(name).learning_rate:g}",
                "epochs": str(recipe.schedule(name).epochs),
                "validation NLL": spread_text([row.nll for row in valid], 3),
                "ACC %": spread_text([row.acc for row in valid], 1, 100),
                "training ACC %": spread_text(
                    [row.acc for row in study.scored(name, split="train").values()], 1, 100
                ),
                "mean-KLD": spread_text([row.kld for row in valid if row.kld is not None], 3),
                "voice": spread_text([row.voice for row in valid if row.voice is not None], 3),
                "multiply-adds": f"{cost(study, name) / 1e12:.2f}",
            }
        )
    return rows


def price_rows(folder: Path) -> list[dict[str, str]]:
    """A row for each way and number of epochs: its cost and NLL beside those of the first way."""
    rows = []
    for name, ways in WAYS.items():
        study = runs_of(folder, name)
        if study is None:
            continue
        first = ways[0].methods[0]
        goal, whole = valid_nll(study, first).mean, cost(study, first)
        for way in ways:
            for method in way.methods:
                nll = valid_nll(study, method)
                rows.append(
                    {
                        "study": CIFAR10 if name == CHOICE else name,
                        "way": way.label,
                        "epochs": str(study.first.recipe.schedule(method).epochs),
                        "share of the cost": f"{cost(study, method) / whole:.2f}",
                        "validation NLL": spread_text(
                            [row.nll for row in study.scored(method, split="valid").values()], 3
                        ),
                        "n": str(nll.n),
                        "reaches it": "yes" if nll.mean <= goal else "no",
                    }
                )
    return rows


def step_rows(folder: Path) -> list[dict[str, str]]:
    """Calibrated validation NLL by step after short and after full trainings."""
    study = runs_of(folder, CHOICE)
    if study is None:
        return []
    return [
        {
            "step (1/255)": step,
            "2 epochs": f"{valid_nll(study, f'short-s{step}').mean:.3f}",
            "10 epochs": f"{valid_nll(study, f'ods-t1-s{step}').mean:.3f}",
        }
        for step in STEPS
    ]


# Figures


def difference_panel(folder: Path) -> tuple[Panel, Numbers]:
    """The differences of calibrated NLL, with both intervals."""
    found = []
    for comparison in COMPARISONS:
        study = runs_of(folder, comparison.study)
        if study is not None and (gaps := differences(study, comparison)):
            label = f"{comparison.study.partition(',')[0]}: {comparison.words}"
            found.append((label, metrics.mean_sd(list(gaps.values())), over_sets(gaps)))

    def draw(axes: Axes) -> None:
        for place, (_, pairs, sets) in enumerate(found):
            mean = pairs.mean
            if sets.n > 1:
                axes.plot([mean - sets.half, mean + sets.half], [place] * 2, color=MUTED.light, linewidth=0.8)
            half = pairs.half if pairs.n > 1 else 0.0
            axes.errorbar(mean, place, xerr=half, marker="o", markersize=5.5, color="#d14f00", elinewidth=1.6)
        axes.axvline(0, color=MUTED.light, linewidth=1.0)
        axes.set_yticks(range(len(found)), [label for label, _, _ in found])
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.set_xlabel("difference of calibrated test NLL")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.grid(visible=False, axis="y")

    margins = Margins(left=5.9 * max((len(label) for label, _, _ in found), default=10))
    header = ["comparison", "n", "difference", "half_interval", "sets", "half_interval_over_sets"]
    rows = [
        (
            label,
            pairs.n,
            pairs.mean,
            pairs.half if pairs.n > 1 else None,
            sets.n,
            sets.half if sets.n > 1 else None,
        )
        for label, pairs, sets in found
    ]
    return Panel("", draw, 1.7, margins), Numbers(header, rows)


def price_chart(folder: Path) -> Chart:
    """Calibrated validation NLL against training cost: a curve for each way."""
    panels, rows = [], []
    labels = list(dict.fromkeys(way.label for ways in WAYS.values() for way in ways))
    look = assign([(label, None) for label in labels])
    for name, ways in WAYS.items():
        study = runs_of(folder, name)
        if study is None:
            continue
        points = {
            way.label: [(cost(study, method) / 1e12, valid_nll(study, method)) for method in way.methods]
            for way in ways
        }
        rows += [
            (
                CIFAR10 if name == CHOICE else name,
                label,
                price,
                nll.mean,
                None if math.isnan(nll.sd) else nll.sd,
            )
            for label, line in points.items()
            for price, nll in line
        ]

        def draw(axes: Axes, points: dict[str, list[tuple[float, MeanSd]]]) -> None:
            for label, line in points.items():
                x, means = [price for price, _ in line], [nll for _, nll in line]
                bars = [spread(nll) for nll in means]
                axes.errorbar(x, [nll.mean for nll in means], bars, **look[label].mark, elinewidth=1.2)
            axes.set_xscale("log")
            axes.set(xlabel="multiply-adds of one training (10¹²)", ylabel="calibrated validation NLL")

        title = CIFAR10 if name == CHOICE else name
        panels.append(Panel(title, partial(draw, points=points), 1.2, Margins(left=58.0, bottom=44.0)))
    reading = (
        "Calibrated validation NLL against the cost of one training. A curve is one way to train with"
        " different numbers of epochs; bars are one standard deviation over sets and seeds. Lower left is"
        " better."
    )
    numbers = Numbers(["study", "way", "multiply_adds_1e12", "nll", "nll_sd"], rows)
    return Chart(
        "price", "Price of quality", reading, panels, numbers, [look[label] for label in labels], 400.0
    )


# The page


def write_page(folder: Path) -> None:
    """Write README.md and the figures from the kept results."""
    panel, numbers = difference_panel(folder)
    reading = (
        "Mean difference of calibrated test NLL over pairs with the same teachers and seed, with its 95 %"
        " interval. The thin line is the interval over sets of teachers. Left of zero the first method is"
        " better."
    )
    apart = Chart("differences", "Differences", reading, [panel], numbers, width=640.0)
    price = price_chart(folder)
    for chart in (apart, price):
        files = chart.files()
        for suffix in ("svg", "csv"):
            (folder / f"{chart.name}.{suffix}").write_bytes(files[f"{chart.name}.{suffix}"])
    (folder / "README.md").write_text(page(folder, apart, price), encoding="utf-8")


def page(folder: Path, apart: Chart, price: Chart) -> str:
    """All tables with their captions."""
    parts = [
        "# Second protocol: all results",
        "Written by `python tools/evidence_table.py` from the files in `kept/`. [The answer](../README.md),"
        " [the protocol](../PROTOCOL-2.md).",
        "## Comparisons",
        f"![Differences of calibrated test NLL](differences.svg)\n\n*{apart.reading}*",
        PageTable.from_rows("comparisons", COMPARISON_CAPTION, comparison_rows(folder)).markdown(),
        "## Price of quality",
        f"![Validation NLL against training cost](price.svg)\n\n*{price.reading}*",
        PageTable.from_rows("price", PRICE_CAPTION, price_rows(folder)).markdown(),
    ]
    for name in STUDIES:
        if study := runs_of(folder, name):
            caption = f"{study_words(study)} {SCORE_CAPTION} {fit_words(study)}"
            parts += [f"## {name}", PageTable.from_rows("scores", caption, score_rows(study)).markdown()]
    parts += [
        "## Settings tried on validation images",
        PageTable.from_rows("choice", CHOICE_CAPTION, choice_rows(folder)).markdown(),
        "## Steps after short and long trainings",
        PageTable.from_rows("steps", STEP_CAPTION, step_rows(folder)).markdown(),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


COMPARISON_CAPTION = (
    "Difference: calibrated test NLL of the first method less that of the second; below zero, the first is"
    " better. Cost: multiply-adds of one training of the first, relative to the second. Intervals: half of"
    " the 95 % t-interval over pairs with the same teachers and seed, and over the means of sets of teachers."
    " Verdict: better or worse if every interval excludes zero; equal if every interval lies within ± 0.02;"
    " else unclear."
)
SCORE_CAPTION = (
    "Test images, calibrated, mean ± s.d. over n students; “as predicted” is the NLL without a fitted"
    " temperature. Voice: how much closer (in nats) member j is to teacher j than to the other teachers."
    " Step: in 1/255. Multiply-adds: of one training (10¹²). Seconds: one training in one thread on a shared"
    " machine."
)
CHOICE_CAPTION = (
    "CIFAR-10, 4,000 images, set 20, student seed 60, 2,000 validation images, calibrated NLL. Multiply-adds:"
    " of one training (10¹²)."
)
PRICE_CAPTION = (
    "Share of the cost: multiply-adds of a training relative to the first way of the study. Reaches it: is"
    " the calibrated validation NLL as low as that of the first way? CIFAR-10 has one seed."
)
STEP_CAPTION = "Calibrated validation NLL of ODS at τ = 1 after a short and a full training, one seed."


def study_words(study: StudyRuns) -> str:
    """How many sets of teachers and student seeds a study has."""
    sets = len(study.runs)
    return f"{sets} {'set' if sets == 1 else 'sets'} of teachers."


def fit_words(study: StudyRuns) -> str:
    """Which students do not fit their training images."""
    teachers = fmean(row.acc for row in study.scored(TEACHERS, split="train").values())
    short = [name for name in study.methods if not fits(study, name, teachers)]
    return f"Students below {FITS:.0%} of their teachers’ training accuracy: {', '.join(short) or 'none'}."


def fits(study: StudyRuns, method: str, teachers: float) -> bool:
    return fmean(row.acc for row in study.scored(method, split="train").values()) >= FITS * teachers


if __name__ == "__main__":
    main(*sys.argv[1:3])
