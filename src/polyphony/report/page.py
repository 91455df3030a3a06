"""One run → its report: the page, and every figure and table as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from polyphony.report import figures
from polyphony.report.chart import Absent, Chart, Panel
from polyphony.report.paper import Comparison, compare
from polyphony.report.paper_tables import paper_tables
from polyphony.report.provenance import one_line, provenance
from polyphony.report.run import Run
from polyphony.report.shifted import corrupted_tables, unknown_tables
from polyphony.report.students import student_table
from polyphony.report.style import INKS, looks
from polyphony.report.summary import health_checks, score_table, take_home
from polyphony.report.tables import Table, shown
from polyphony.scores import CALIBRATIONS

MOST_ROWS = 60  # of a chart's numbers on the page; the file has them all


Piece = Chart | Table | Absent


@dataclass(frozen=True)
class Section:
    """A part of the page: what is there, and what is not."""

    title: str
    anchor: str
    parts: tuple[Piece, ...]

    @property
    def shown(self) -> tuple[Chart | Table, ...]:
        """What is there, in reading order."""
        return tuple(part for part in self.parts if not isinstance(part, Absent))

    @property
    def absent(self) -> tuple[Absent, ...]:
        """What is not, and why."""
        return tuple(part for part in self.parts if isinstance(part, Absent))


@dataclass(frozen=True)
class Report:
    """A finished page, and the figures and tables on it."""

    html: str
    parts: tuple[Chart | Table, ...]

    def files(self) -> dict[str, bytes]:
        """Every figure and table as files, by name."""
        return {name: data for part in self.parts for name, data in part.files().items()}


def report_of(run: Run) -> Report:
    """The page of one run, and its figures and tables."""
    paper = compare(run.recipe)
    calibrated, standard = (score_table(run, calibration, paper) for calibration in CALIBRATIONS)
    scores = [calibrated, student_table(run), standard]
    sections = sections_of(run, paper)
    health = health_checks(run)
    html = render(
        "run.html",
        title=run.name,
        subtitle=one_line(run),
        take_home=take_home(run, health),
        scores=scores,
        paper=paper,
        sections=sections,
        health=health,
        looks=looks(run),
        provenance=provenance(run),
    )
    return Report(html, (*scores, *(part for section in sections for part in section.shown)))


def sections_of(run: Run, paper: Comparison | None) -> list[Section]:
    """Every figure that the run folder has the numbers for, in reading order."""
    curves = figures.ensemble_curves(run)
    diversity = (
        figures.teacher_diversity(run),
        figures.student_diversity(run),
        figures.external_diversity(run),
        figures.member_predictions(run),
    )
    quality = (
        figures.dee_curves(run, curves),
        *figures.quality_for_cost(run, curves),
        figures.reliability_diagrams(run),
    )
    unseen = (
        *figures.entropy_histograms(run),
        *unknown_tables(run),
        *figures.corruption_boxes(run),
        *corrupted_tables(run, paper),
    )
    return [
        Section("Diversity", "diversity", diversity),
        Section("Quality", "quality", quality),
        Section("Unknown and corrupted inputs", "unseen", unseen),
        Section("Why it works", "why", (*figures.jacobian_matching(run), figures.gradient_snr(run))),
        Section("Training", "training", (figures.learning_curves(run),)),
        Section("The paper’s own tables", "paper", tuple(paper_tables(run, paper))),
    ]


def render(template: str, **values: Any) -> str:
    """A page from its template; all text is escaped, only drawings are not."""
    return _templates().get_template(template).render(values)


def drawings(chart: Chart) -> list[tuple[Panel, Markup]]:
    """Each panel and its SVG."""
    return [(panel, Markup(chart.inline(place))) for place, panel in enumerate(chart.panels)]


def numbers(chart: Chart) -> Sequence[Sequence[str]]:
    """A chart's numbers for the page, if they are few enough to read."""
    rows = chart.numbers.rows
    return [[shown(value) for value in row] for row in rows] if len(rows) <= MOST_ROWS else []


def palette(side: str) -> Markup:
    """The CSS variables of all colours, for "light" or "dark"."""
    return Markup(" ".join(f"{ink.variable}: {getattr(ink, side)};" for ink in INKS))


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
