"""One run → its report: the page, and every figure and table as files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from polyphony.report import figures
from polyphony.report.chart import Absent, Chart
from polyphony.report.paper import Comparison, compare
from polyphony.report.provenance import one_line, provenance
from polyphony.report.run import CALIBRATIONS, Run
from polyphony.report.shifted import corrupted_tables, unknown_tables
from polyphony.report.style import INKS, looks
from polyphony.report.summary import health_checks, score_table, verdict
from polyphony.report.tables import Table, shown

MOST_ROWS = 60  # of a chart's numbers on the page; the file has them all


@dataclass(frozen=True)
class Section:
    """A part of the page: what is there, and what is not."""

    title: str
    anchor: str
    charts: tuple[Chart, ...]
    tables: tuple[Table, ...]
    absent: tuple[Absent, ...]

    @classmethod
    def of(
        cls, title: str, anchor: str, parts: Iterable[Chart | Absent], tables: Iterable[Table | None] = ()
    ) -> Section:
        """Sort the parts into what can be shown and what cannot."""
        each = list(parts)
        return cls(
            title,
            anchor,
            tuple(part for part in each if isinstance(part, Chart)),
            tuple(table for table in tables if table is not None),
            tuple(part for part in each if isinstance(part, Absent)),
        )


@dataclass(frozen=True)
class Report:
    """A finished page, and the files that go with it."""

    html: str
    files: dict[str, bytes]


def report_of(run: Run) -> Report:
    """The page of one run, and its figures and tables."""
    paper = compare(run.recipe)
    scores = [score_table(run, calibration, paper) for calibration in CALIBRATIONS]
    sections = sections_of(run, paper)
    html = render(
        "run.html",
        title=run.name,
        subtitle=one_line(run),
        verdict=verdict(run),
        scores=scores,
        paper=paper,
        sections=sections,
        health=health_checks(run),
        looks=looks(run),
        provenance=provenance(run),
    )
    written: dict[str, bytes] = {}
    for table in [*scores, *(table for section in sections for table in section.tables)]:
        written |= table.files()
    for chart in (chart for section in sections for chart in section.charts):
        written |= chart.files()
    return Report(html, written)


def sections_of(run: Run, paper: Comparison | None) -> list[Section]:
    """Every figure that the run folder has the numbers for, in reading order."""
    jacobians, cosines = figures.jacobian_matching(run)
    diversity = [
        figures.teacher_diversity(run),
        figures.student_diversity(run),
        figures.external_diversity(run),
        figures.member_predictions(run),
    ]
    quality = [
        figures.dee_curves(run),
        figures.nll_against_parameters(run),
        figures.nll_against_latency(run),
        figures.reliability_diagrams(run),
    ]
    unseen = [*figures.entropy_histograms(run), *figures.corruption_boxes(run)]
    tables = [*unknown_tables(run), *corrupted_tables(run, paper)]
    return [
        Section.of("Diversity", "diversity", diversity),
        Section.of("Quality", "quality", quality),
        Section.of("Unknown and corrupted inputs", "unseen", unseen, tables),
        Section.of("Why it works", "why", [jacobians, figures.gradient_snr(run)], [cosines]),
        Section.of("Training", "training", [figures.learning_curves(run)]),
    ]


def render(template: str, **values: Any) -> str:
    """A page from its template; all text is escaped, only drawings are not."""
    return _templates().get_template(template).render(values)


def drawings(chart: Chart) -> list[tuple[str, Markup]]:
    """(title, SVG) of each panel."""
    return [(panel.title, Markup(chart.inline(place))) for place, panel in enumerate(chart.panels)]  # noqa: S704


def numbers(chart: Chart) -> Sequence[Sequence[str]]:
    """A chart's numbers for the page, if they are few enough to read."""
    rows = chart.numbers.rows
    return [[shown(value) for value in row] for row in rows] if len(rows) <= MOST_ROWS else []


def palette(side: str) -> Markup:
    """The CSS variables of all colours, for "light" or "dark"."""
    return Markup(" ".join(f"{ink.variable}: {getattr(ink, side)};" for ink in INKS))  # noqa: S704


@cache
def _templates() -> jinja2.Environment:
    folder = files("polyphony.report") / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(drawings=drawings, numbers=numbers, palette=palette)
    return environment
