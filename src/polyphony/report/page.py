"""The report of one run: the page, and every figure and table as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jinja2
from markupsafe import Markup

from polyphony.report.chart import Absent, Chart
from polyphony.report.differences import run_differences
from polyphony.report.figures.diversity import (
    disagreement_by_temperature,
    external_diversity,
    student_diversity,
    teacher_diversity,
)
from polyphony.report.figures.jacobians import gradient_snr, jacobian_matching
from polyphony.report.figures.members import member_predictions
from polyphony.report.figures.price import other_costs, quality_for_price
from polyphony.report.figures.quality import dee_curves, reliability_diagrams, risk_coverage
from polyphony.report.figures.shift import corruption_boxes, entropy_histograms
from polyphony.report.figures.training import learning_curves
from polyphony.report.paper import experiments_of
from polyphony.report.paper_tables import paper_tables
from polyphony.report.provenance import one_line, provenance
from polyphony.report.score_tables import (
    corrupted_tables,
    members_table,
    price_table,
    score_table,
    unknown_tables,
)
from polyphony.report.style import INKS, looks_of
from polyphony.report.tables import PageTable
from polyphony.report.trust_tables import (
    calibration_table,
    group_tables,
    selective_table,
    set_tables,
    unlabelled_table,
)
from polyphony.report.verdict import advice, verdict
from polyphony.runs.run import Run

Piece = Chart | PageTable | Absent
Figure = Callable[[Run], Piece | Sequence[Piece]]
# The sections below the verdict: title, anchor and figures.
SECTIONS: tuple[tuple[str, str, tuple[Figure, ...]], ...] = (
    (
        "Quality and price",
        "scores",
        (
            quality_for_price,
            partial(score_table, calibration="calibrated"),
            price_table,
            run_differences,
            partial(score_table, calibration="standard"),
        ),
    ),
    ("When to trust it", "trust", (risk_coverage, selective_table, set_tables, group_tables)),
    (
        "Members and diversity",
        "diversity",
        (
            members_table,
            teacher_diversity,
            disagreement_by_temperature,
            unlabelled_table,
            student_diversity,
            external_diversity,
            member_predictions,
        ),
    ),
    ("More on quality", "quality", (dee_curves, other_costs, reliability_diagrams, calibration_table)),
    (
        "Unknown and corrupted images",
        "unseen",
        (entropy_histograms, unknown_tables, corruption_boxes, corrupted_tables),
    ),
    ("Why it works", "why", (jacobian_matching, gradient_snr)),
    ("Training", "training", (learning_curves,)),
    ("The paper’s own tables", "paper", (paper_tables,)),
)


@dataclass(frozen=True)
class Section:
    """A part of the page: its figures and tables, with those that are missing."""

    title: str
    anchor: str
    pieces: Sequence[Piece]

    @property
    def present(self) -> list[Chart | PageTable]:
        """The figures, and the tables that have rows, in reading order."""
        pieces = [piece for piece in self.pieces if not isinstance(piece, Absent)]
        return [piece for piece in pieces if isinstance(piece, Chart) or piece.rows]

    @property
    def absent(self) -> list[Absent]:
        """The missing figures, with the reason."""
        return [piece for piece in self.pieces if isinstance(piece, Absent)]


@dataclass(frozen=True)
class Report:
    """A finished page, and the figures and tables on it."""

    html: str
    pieces: Sequence[Chart | PageTable]

    def files(self) -> dict[str, bytes]:
        """Every figure and table as files, by name."""
        return {name: data for piece in self.pieces for name, data in piece.files().items()}


def report_of(run: Run, sections: Sequence[tuple[str, str, Sequence[Figure]]] = SECTIONS) -> Report:
    """The page of one run, and its figures and tables."""
    parts = [Section(title, anchor, _pieces(run, figures)) for title, anchor, figures in sections]
    result = verdict(run)
    html = render(
        "run.html",
        title=run.recipe.name,
        subtitle=one_line(run),
        verdict=result,
        notes=[*result.notes, *advice(run)],
        paper=experiments_of(run.recipe),
        sections=parts,
        looks=looks_of(run),
        provenance=provenance(run),
    )
    return Report(html, [piece for section in parts for piece in section.present])


def _pieces(run: Run, figures: Sequence[Figure]) -> list[Piece]:
    pieces: list[Piece] = []
    for figure in figures:
        result = figure(run)
        pieces += result if isinstance(result, Sequence) else [result]
    return pieces


def render(template: str, **values: Any) -> str:
    """A page from a template; all text is escaped, except drawings."""
    return _templates().get_template(template).render(values)


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("polyphony.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals["palette"] = _palette
    return environment


def _palette(side: str) -> Markup:
    """The CSS variables of all colours; `side` is "light" or "dark"."""
    return Markup(" ".join(f"{ink.variable}: {getattr(ink, side)};" for ink in INKS))
