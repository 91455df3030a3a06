"""How sure a difference between two methods is: means of paired differences with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from polyphony.report.chart import Chart, Margins, Panel
from polyphony.report.study_runs import JUDGED, Difference, StudyRuns, differences
from polyphony.report.style import MUTED, Looks
from polyphony.report.tables import Cell, Numbers, PageTable, Value
from polyphony.runs.run import Run

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


def run_differences(run: Run) -> list[PageTable]:
    """The table of one run; empty if no two students can be paired."""
    found = differences(StudyRuns(run.recipe.name, [run]))
    return [difference_table(found)] if found else []


def difference_table(found: Sequence[Difference]) -> PageTable:
    """A row for each comparison, a column for each quantity that a reader should see."""
    several, sets = len({each.study for each in found}) > 1, any(each.over_sets for each in found)
    rows: dict[str, dict[str, Difference]] = {}
    for each in found:
        label = f"{each.study}: {each.words}" if several else each.words
        rows.setdefault(label, {})[each.judged.name] = each
    shown = [judged for judged in JUDGED if judged.shown]
    header = ["Difference", *(judged.heading for judged in shown), "better in"]
    body: list[list[Cell | str]] = []
    for label, row in rows.items():
        cells = [_cell(row.get(judged.name)) for judged in shown]
        nll = row[JUDGED[0].name]
        over_sets = [nll.over_sets_text] if sets else []
        body.append([label, *cells, f"{nll.ahead} of {nll.known}", *over_sets])
    header += ["NLL over sets"] if sets else []
    return PageTable.of("differences", _CAPTION + _SETS * sets, header, body)


def _cell(each: Difference | None) -> Cell:
    return Cell(each.text, each.is_clear) if each else Cell("–")


def difference_chart(found: Sequence[Difference], look: Looks) -> Chart:
    """The differences of calibrated NLL: a panel for each study, a row for each comparison."""
    studies: dict[str, list[Difference]] = {}
    for each in found:
        if each.judged is JUDGED[0]:
            studies.setdefault(each.study, []).append(each)
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
    ahead = each.ahead if each.judged.better else None
    compared = [each.study, each.method, each.reference, each.judged.name]
    sets = each.over_sets
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
