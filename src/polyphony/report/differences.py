"""How sure a difference between two methods is: means of paired differences with their 95 % intervals."""

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

_PLAINER = {"clean": 0, "gaussian": 1}  # perturbations that others are compared with
# Of a panel, of one of its rows, of what is around them, and how high a panel is at least, in points.
_WIDTH, _LINE, _FRAME, _LEAST = 420.0, 17.0, 60.0, 200.0
_CAPTION = (
    "Differences between two methods on test images: the mean over pairs with the same teachers and seed, ±"
    " half of its 95 % t-interval. Bold: the interval excludes zero. “Better in” counts the pairs in which"
    " the first method has the lower calibrated NLL. A method is compared with plain distillation and with"
    " Gaussian noise at its temperature, and with the plain distillation that is best on validation images;"
    " one pass with two; members with one network that learns the teachers’ mean. The intervals are not"
    " corrected for the number of comparisons."
)
_SETS = (
    " Pairs with the same teachers are not independent: “NLL over sets” takes the mean of each set of"
    " teachers as one value, and says whether other teachers would show the effect. Where there are several"
    " sets, bold means that this interval excludes zero as well."
)
_READING = (
    "Mean difference of calibrated NLL on test images over pairs with the same teachers and seed, with its"
    " 95 % t-interval; the thin line is the interval over sets of teachers, where there are several. Left of"
    " zero the first of the two methods is better."
)


@dataclass(frozen=True)
class Judged:
    """A quantity by which two methods are compared; `better` is 1 if more is, −1 if less, 0 if neither."""

    name: str
    heading: str
    better: int
    read: Callable[[StudyRuns, str], dict[Pair, float]]
    shown: bool = True  # in the table of differences; the file has all


def _column(column: str, calibration: str = "calibrated") -> Callable[[StudyRuns, str], dict[Pair, float]]:
    return lambda study, model: study.column(model, column, calibration)


JUDGED = (
    Judged("nll", "NLL", -1, _column("nll")),
    Judged("nll_standard", "NLL, as predicted", -1, _column("nll", "standard")),
    Judged("dee", "DEE", 1, _column("dee"), shown=False),
    Judged("kept", "diversity kept", 0, StudyRuns.kept, shown=False),
    Judged("distance", "distance", -1, _column("distance"), shown=False),
    Judged("voice", "follows own teacher (nats)", 1, _column("voice")),
    Judged("acc", "accuracy", 1, _column("acc")),
)


@dataclass(frozen=True)
class Difference:
    """The paired difference between two methods; `ahead` is the number of pairs in which the first is better.

    Pairs of one run share their teachers; `over_sets` is the difference over the means of each run, if there
    are several.
    """

    study: str
    method: str
    reference: str
    words: str  # "method − reference"
    judged: Judged
    paired: MeanSd
    ahead: int
    known: int  # pairs with a defined difference: not if both DEEs are past the curve
    over_sets: MeanSd | None

    @property
    def text(self) -> str:
        """ "−0.021 ± 0.019": the mean difference and half of its 95 % interval."""
        return _signed(self.paired)

    @property
    def over_sets_text(self) -> str:
        """The same over sets of teachers."""
        return _signed(self.over_sets) if self.over_sets else DASH

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero, and that over sets of teachers too where there are several."""
        return all(abs(each.mean) > each.half for each in (self.paired, self.over_sets) if each)


def _signed(value: MeanSd) -> str:
    return f"{value.mean:+.3f} ± {value.half:.3f}".replace("-", "−") if math.isfinite(value.mean) else DASH


def differences(study: StudyRuns) -> list[Difference]:
    """Every method against its references, where there are at least two pairs."""
    found = (
        _difference(study, method, reference, judged)
        for method in study.methods
        for reference in _references(study, method)
        for judged in JUDGED
    )
    return [each for each in found if each is not None]


def _references(study: StudyRuns, method: str) -> list[str]:
    """The same method with a plainer perturbation, and the best plain distillation."""
    plainer = [other for other in study.methods if _is_plainer(study.first.recipe, other, method)]
    if study.first.perturbation(method) in (None, "clean"):
        return plainer
    best = study.best_plain(study.first.recipe.form_table(method))
    return plainer if best is None or best in plainer else [*plainer, best]


def _is_plainer(recipe: Recipe, name: str, than: str) -> bool:
    """Whether a method is a plainer version of another at the same settings."""
    plain, special = (recipe.methods[each].label for each in (name, than))
    mine, others = ([recipe.setting(each, key) for key in ("alpha", "temperature")] for each in (name, than))
    passes, shares = ([recipe.setting(each, key) for each in (name, than)] for key in ("passes", "share"))
    if not plain or not special or mine != others:
        return False
    if recipe.form_table(name) != recipe.form_table(than):
        return plain == special == "clean" and recipe.form_table(name).label == "single"
    if shares[0] != shares[1]:  # of images without labels
        return plain == special and passes[0] == passes[1] and shares[0] == 0
    if plain == special:
        return passes == ["two", "one"]
    return _PLAINER.get(plain, 2) < _PLAINER.get(special, 2)


def _difference(study: StudyRuns, method: str, reference: str, judged: Judged) -> Difference | None:
    mine, theirs = (judged.read(study, name) for name in (method, reference))
    apart = {pair: mine[pair] - theirs[pair] for pair in mine if pair in theirs}
    if len(apart) < 2:
        return None
    ahead = sum(judged.better * each > 0 for each in apart.values())
    known = sum(not math.isnan(each) for each in apart.values())
    words, paired = _words(study.first.recipe, method, reference), metrics.paired(list(apart.values()))
    return Difference(study.name, method, reference, words, judged, paired, ahead, known, _over_sets(apart))


def _words(recipe: Recipe, method: str, reference: str) -> str:
    """ "method − reference", with their epochs if a method sets its own and they differ."""
    epochs = {name: recipe.schedule(name).epochs for name in (method, reference)}
    differ = len(set(epochs.values())) > 1
    own = [name for name in epochs if differ and recipe.methods[name].epochs]
    return " − ".join(f"{name} ({epochs[name]} epochs)" if name in own else name for name in epochs)


def _over_sets(apart: Mapping[Pair, float]) -> MeanSd | None:
    """The difference over the means of each run; None for one run."""
    sets = [[each for pair, each in apart.items() if pair[0] == at] for at in {place for place, _ in apart}]
    return metrics.paired([sum(each) / len(each) for each in sets]) if len(sets) > 1 else None


def run_differences(run: Run) -> PageTable:
    """The table of one run; without rows if no two students can be paired."""
    return difference_table(differences(StudyRuns(run.recipe.name, [run])))


def difference_table(found: Sequence[Difference]) -> PageTable:
    """A row for each comparison, a column for each quantity that a reader should see."""
    several, sets = len(by(found, "study")) > 1, any(each.over_sets for each in found)
    body = []
    for (study, words), each in by(found, "study", "words").items():
        judged = {one.judged.name: one for one in each}
        row: dict[str, Cell | str] = {"Difference": f"{study}: {words}" if several else words}
        for quantity in JUDGED:
            if quantity.shown:
                one = judged.get(quantity.name)
                row[quantity.heading] = Cell(one.text, one.is_clear) if one else DASH
        nll = judged[JUDGED[0].name]
        row["better in"] = f"{nll.ahead} of {nll.known}"
        body.append(row | ({"NLL over sets": nll.over_sets_text} if sets else {}))
    return PageTable.from_rows("differences", _CAPTION + _SETS * sets, body)


def difference_chart(found: Sequence[Difference], look: Looks) -> Chart:
    """The differences of calibrated NLL: a panel for each study, a row for each comparison."""
    studies = by((each for each in found if each.judged is JUDGED[0]), "study")
    margins = Margins(5.6 * max(len(each.words) for rows in studies.values() for each in rows))
    aspect = _WIDTH / max(_LEAST, _FRAME + _LINE * max(map(len, studies.values())))
    panels = [
        Panel(name if len(studies) > 1 else "", partial(_draw, rows=rows, look=look), aspect, margins)
        for name, rows in studies.items()
    ]
    header = ["study", "method", "reference", "score", "n", "difference", "half_interval", "ahead"]
    header += ["sets", "difference_over_sets", "half_interval_over_sets"]
    numbers = Numbers(header, [_numbers(each) for each in found])
    return Chart("differences", "How sure a difference is", _READING, panels, numbers, width=_WIDTH)


def _numbers(each: Difference) -> list[Value]:
    ahead, sets = each.ahead if each.judged.better else None, each.over_sets
    compared = [each.study, each.method, each.reference, each.judged.name]
    over_sets = [sets.n, sets.mean, sets.half] if sets else [1, None, None]
    return [*compared, each.paired.n, each.paired.mean, each.paired.half, ahead, *over_sets]


def _draw(axes: Axes, *, rows: Sequence[Difference], look: Looks) -> None:
    for place, each in enumerate(rows):
        mark = {**look[each.method].mark, "markersize": 5.5, "linestyle": ""}
        axes.errorbar(each.paired.mean, place, xerr=each.paired.half, elinewidth=1.6, **mark)
        if sets := each.over_sets:
            thin = partial(axes.errorbar, fmt="none", ecolor=MUTED.light, elinewidth=0.8, zorder=1)
            thin(sets.mean, place, xerr=sets.half)
    axes.axvline(0, color=MUTED.light, linewidth=1.0)
    axes.set_yticks(range(len(rows)), [each.words for each in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("difference of calibrated NLL")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(visible=False, axis="y")
