"""How sure a difference between two methods is: means of paired differences with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes

from polyphony.report.chart import Chart, Margins, Panel
from polyphony.report.pool import JUDGED, Difference
from polyphony.report.style import MUTED, Look
from polyphony.report.tables import Cell, Numbers, Table

# Of a panel, of one of its rows, of what is around them, and how high a panel is at least, in points.
_WIDTH, _LINE, _FRAME, _LEAST = 420.0, 17.0, 60.0, 200.0


def difference_table(found: Sequence[Difference]) -> Table:
    """A row for each comparison: every quantity's mean difference, and in how many pairs it is better."""
    several = len({each.study for each in found}) > 1
    rows: dict[tuple[str, str, str], dict[str, Difference]] = {}
    for each in found:
        rows.setdefault((each.study, each.method, each.reference), {})[each.judged.name] = each
    body = []
    for (study, method, reference), cells in rows.items():
        words = f"{method} − {reference}"
        values = (cells[judged.name].text if judged.name in cells else "–" for judged in JUDGED)
        body.append((Cell(f"{study}: {words}" if several else words), *map(Cell, values)))
    caption = (
        "Differences between methods, paired by teachers and seed, on test: mean with its 95 % t-interval,"
        " and in how many of the pairs the first is better. An effect is there if the interval leaves out"
        " zero. Each method is compared with plain distillation and with Gaussian noise at its temperature,"
        " and with the plain distillation of least validation NLL."
    )
    header = ("Difference", *(judged.heading for judged in JUDGED))
    return Table("differences", caption, header, tuple(body))


def difference_chart(found: Sequence[Difference], look: Mapping[str, Look]) -> Chart:
    """The differences of calibrated NLL: a panel for each study, a row for each comparison."""
    primary = [each for each in found if each.judged is JUDGED[0]]
    studies = {each.study: [other for other in primary if other.study == each.study] for each in primary}
    tallest = max(map(len, studies.values()))
    panels = tuple(
        Panel(
            study if len(studies) > 1 else "",
            partial(_rows, rows=rows, look=look),
            _WIDTH / max(_LEAST, _FRAME + _LINE * tallest),
            Margins(left=190.0),
        )
        for study, rows in studies.items()
    )
    numbers = [
        (
            each.study, each.method, each.reference, each.judged.name,
            each.paired.n, each.paired.mean, each.paired.half, each.ahead if each.judged.better else None,
        )
        for each in found
    ]  # fmt: skip
    header = ("study", "method", "reference", "score", "n", "difference", "half_interval", "ahead")
    reading = (
        "Mean difference of calibrated test NLL over pairs with the same teachers and seed, with its 95 %"
        " t-interval. Left of zero the first of the two methods is better."
    )
    title = "How sure a difference is"
    return Chart("differences", title, reading, panels, Numbers(header, tuple(numbers)), width=_WIDTH)


def _rows(axes: Axes, *, rows: Sequence[Difference], look: Mapping[str, Look]) -> None:
    for place, each in enumerate(rows):
        drawn, half = look[each.method], each.paired.half
        axes.errorbar(
            each.paired.mean, place, xerr=half, color=drawn.colour, marker=drawn.marker, markersize=5.5,
            elinewidth=1.6, linestyle="",
        )  # fmt: skip
    axes.axvline(0, color=MUTED.light, linewidth=1.0)
    axes.set_yticks(range(len(rows)), [f"{each.method} − {each.reference}" for each in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("difference of calibrated NLL")
    axes.grid(visible=False, axis="y")
