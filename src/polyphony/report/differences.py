"""Differences between two methods: means over pairs with the same teachers and seed, and 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from polyphony import metrics
from polyphony.metrics import MeanSd
from polyphony.recipe import Recipe
from polyphony.report.chart import Chart, Margins, Panel
from polyphony.report.study_runs import Pair, StudyRuns
from polyphony.report.style import MUTED, Looks
from polyphony.report.tables import DASH, Cell, Numbers, PageTable, Value, by
from polyphony.runs.run import Run

_PLAINNESS = {"clean": 0, "gaussian": 1}  # perturbations that others are compared with, the plainest first
# In points: the width of a panel, the height of a row, the height around the rows, a panel's least height.
_WIDTH, _LINE, _FRAME, _LEAST = 420.0, 17.0, 60.0, 200.0
_CAPTION = (
    "Differences between two methods on test images: the mean over pairs with the same teachers and seed, ±"
    " half of its 95 % t-interval. Bold: the interval excludes zero. “Better in” counts the pairs in which"
    " the first method has the lower calibrated NLL. A method is compared with plain distillation and with"
    " Gaussian noise at its temperature, and with the plain distillation that is best on validation images."
    " One pass is compared with two passes, and a student with members with one network that learns the"
    " teachers’ mean. A pair shares its initial weights, but not the order of images after the first epoch."
    " The intervals are not corrected for the number of comparisons."
)
_SETS = (
    " Pairs with the same teachers are not independent. “NLL over sets” therefore takes the mean of each set"
    " of teachers as one value: it shows whether other teachers would give the same result with the same"
    " seeds of students. In a study with several sets, bold means that this interval excludes zero as well."
)
_READING = (
    "Mean difference of calibrated NLL on test images over pairs with the same teachers and seed, with its"
    " 95 % t-interval. The thin line, in studies with several sets of teachers, is the interval over sets."
    " Left of zero the first of the two methods is better."
)


@dataclass(frozen=True)
class Quantity:
    """A quantity by which two methods are compared."""

    name: str
    heading: str
    better: int  # 1 if higher is better, −1 if lower is better, 0 if neither
    read: Callable[[StudyRuns, str], dict[Pair, float]]  # of a study and a model
    on_page: bool = True  # a column of the table of differences; the CSV file has all quantities


def _column(column: str, calibration: str = "calibrated") -> Callable[[StudyRuns, str], dict[Pair, float]]:
    return lambda study, model: study.column(model, column, calibration)


QUANTITIES = (
    Quantity("nll", "NLL", -1, _column("nll")),
    Quantity("nll_standard", "NLL, as predicted", -1, _column("nll", "standard")),
    Quantity("dee", "DEE", 1, _column("dee"), on_page=False),
    Quantity("kept", "mean-KLD kept", 0, StudyRuns.diversity_shares, on_page=False),
    Quantity("distance", "distance", -1, _column("distance"), on_page=False),
    Quantity("voice", "follows own teacher (nats)", 1, _column("voice")),
    Quantity("acc", "accuracy", 1, _column("acc")),
)


@dataclass(frozen=True)
class Difference:
    """The paired difference between two methods in one quantity.

    Pairs of one run share their teachers. So there is a second mean, over the means of each run.
    """

    study: str
    method: str
    reference: str
    words: str  # "method − reference"
    quantity: Quantity
    paired: MeanSd
    ahead: int  # pairs in which the first method is better
    defined: int  # pairs with a defined difference: it is undefined if both DEEs are past the curve
    over_sets: MeanSd | None  # None for one run

    @property
    def text(self) -> str:
        """ "−0.021 ± 0.019": the mean difference and half of its 95 % interval."""
        return _signed(self.paired)

    @property
    def over_sets_text(self) -> str:
        """ "−0.021 ± 0.061": the same over sets of teachers; a dash for one set."""
        return _signed(self.over_sets) if self.over_sets else DASH

    @property
    def is_clear(self) -> bool:
        """Whether the interval, and with several sets of teachers also the one over sets, excludes zero."""
        return all(abs(mean.mean) > mean.half for mean in (self.paired, self.over_sets) if mean)


def _signed(value: MeanSd) -> str:
    return f"{value.mean:+.3f} ± {value.half:.3f}".replace("-", "−") if math.isfinite(value.mean) else DASH


def differences(study: StudyRuns) -> list[Difference]:
    """Every method against each of its references, in each quantity that has at least two pairs."""
    results = (
        _difference(study, method, reference, quantity)
        for method in study.methods
        for reference in _references(study, method)
        for quantity in QUANTITIES
    )
    return [result for result in results if result is not None]


def _references(study: StudyRuns, method: str) -> list[str]:
    """The methods to compare with: plainer versions of the method, and the best plain distillation."""
    plainer = [other for other in study.methods if _is_plainer(study.first.recipe, other, method)]
    if study.first.perturbation(method) in (None, "clean"):
        return plainer
    best = study.best_plain(study.first.recipe.form_table(method))
    return plainer if best is None or best in plainer else [*plainer, best]


def _is_plainer(recipe: Recipe, name: str, than: str) -> bool:
    """Whether method `name` is a plainer version of method `than` at the same α and temperature."""
    plain, special = (recipe.methods[method].label for method in (name, than))
    settings = [[recipe.setting(method, key) for key in ("alpha", "temperature")] for method in (name, than)]
    passes, shares = ([recipe.setting(method, key) for method in (name, than)] for key in ("passes", "share"))
    if not plain or not special or settings[0] != settings[1]:
        return False
    if recipe.form_table(name) != recipe.form_table(than):
        return plain == special == "clean" and recipe.form_table(name).label == "single"
    if shares[0] != shares[1]:  # of images without labels
        return plain == special and passes[0] == passes[1] and shares[0] == 0
    if plain == special:
        return passes == ["two", "one"]
    return _PLAINNESS.get(plain, 2) < _PLAINNESS.get(special, 2)


def _difference(study: StudyRuns, method: str, reference: str, quantity: Quantity) -> Difference | None:
    """The difference over the pairs that both methods have; None for fewer than two pairs."""
    mine, theirs = (quantity.read(study, name) for name in (method, reference))
    gaps = {pair: mine[pair] - theirs[pair] for pair in mine if pair in theirs}
    if len(gaps) < 2:
        return None
    return Difference(
        study=study.name,
        method=method,
        reference=reference,
        words=_words(study.first.recipe, method, reference),
        quantity=quantity,
        paired=metrics.paired(list(gaps.values())),
        ahead=sum(quantity.better * gap > 0 for gap in gaps.values()),
        defined=sum(not math.isnan(gap) for gap in gaps.values()),
        over_sets=_over_sets(gaps),
    )


def _words(recipe: Recipe, method: str, reference: str) -> str:
    """ "method − reference", with their epochs if these differ and the method sets its own."""
    epochs = {name: recipe.schedule(name).epochs for name in (method, reference)}
    differ = len(set(epochs.values())) > 1
    own = [name for name in epochs if differ and recipe.methods[name].epochs]
    return " − ".join(f"{name} ({epochs[name]} epochs)" if name in own else name for name in epochs)


def _over_sets(gaps: Mapping[Pair, float]) -> MeanSd | None:
    """The mean over runs of each run's mean difference; None for one run."""
    runs = {run for run, _ in gaps}
    sets = [[gap for pair, gap in gaps.items() if pair[0] == run] for run in runs]
    return metrics.paired([sum(values) / len(values) for values in sets]) if len(sets) > 1 else None


def run_differences(run: Run) -> PageTable:
    """The table of one run; without rows if no two students can be paired."""
    return difference_table(differences(StudyRuns(run.recipe.name, [run])))


def difference_table(rows: Sequence[Difference]) -> PageTable:
    """A row for each comparison, a column for each quantity that is on the page."""
    several, sets = len(by(rows, "study")) > 1, any(row.over_sets for row in rows)
    body = []
    for (study, words), group in by(rows, "study", "words").items():
        by_quantity = {row.quantity.name: row for row in group}
        cells: dict[str, Cell | str] = {"Difference": f"{study}: {words}" if several else words}
        for quantity in QUANTITIES:
            if quantity.on_page:
                row = by_quantity.get(quantity.name)
                cells[quantity.heading] = Cell(row.text, row.is_clear) if row else DASH
        nll = by_quantity[QUANTITIES[0].name]
        cells["better in"] = f"{nll.ahead} of {nll.defined}"
        body.append(cells | ({"NLL over sets": nll.over_sets_text} if sets else {}))
    return PageTable.from_rows("differences", _CAPTION + _SETS * sets, body)


def difference_chart(rows: Sequence[Difference], look: Looks) -> Chart:
    """The differences of calibrated NLL: a panel for each study, a row for each comparison."""
    studies = by((row for row in rows if row.quantity is QUANTITIES[0]), "study")
    margins = Margins(5.6 * max(len(row.words) for group in studies.values() for row in group))
    aspect = _WIDTH / max(_LEAST, _FRAME + _LINE * max(map(len, studies.values())))
    panels = [
        Panel(name if len(studies) > 1 else "", partial(_draw, rows=group, look=look), aspect, margins)
        for name, group in studies.items()
    ]
    header = ["study", "method", "reference", "score", "n", "difference", "half_interval", "ahead"]
    header += ["sets", "difference_over_sets", "half_interval_over_sets"]
    numbers = Numbers(header, [_numbers(row) for row in rows])
    return Chart("differences", "How certain a difference is", _READING, panels, numbers, width=_WIDTH)


def _numbers(row: Difference) -> list[Value]:
    ahead, sets = row.ahead if row.quantity.better else None, row.over_sets
    names = [row.study, row.method, row.reference, row.quantity.name]
    over_sets = [sets.n, sets.mean, sets.half] if sets else [1, None, None]
    return [*names, row.paired.n, row.paired.mean, row.paired.half, ahead, *over_sets]


def _draw(axes: Axes, *, rows: Sequence[Difference], look: Looks) -> None:
    for place, row in enumerate(rows):
        mark = {**look[row.method].mark, "markersize": 5.5, "linestyle": ""}
        axes.errorbar(row.paired.mean, place, xerr=row.paired.half, elinewidth=1.6, **mark)
        if sets := row.over_sets:
            thin = partial(axes.errorbar, fmt="none", ecolor=MUTED.light, elinewidth=0.8, zorder=1)
            thin(sets.mean, place, xerr=sets.half)
    axes.axvline(0, color=MUTED.light, linewidth=1.0)
    axes.set_yticks(range(len(rows)), [row.words for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("difference of calibrated NLL")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(visible=False, axis="y")
