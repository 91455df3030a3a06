"""The verb that shows what came out: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from polyphony.cli import terminal


def report(
    runs: Annotated[
        tuple[Path, ...],
        Parameter(name="RUN", required=True, help="Folders of runs, for example runs/digits."),
    ],
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(
            validator=validators.Path(ext="html"),
            help="Page to write (default: RUN/report.html; for several runs report.html).",
        ),
    ] = None,
) -> None:
    """Write an HTML page, figures and tables about a run or sweep, or compare several runs."""
    with terminal.working("Writing the page"):
        from polyphony.report import write_report

        page = write_report(runs, out)
    terminal.line(f"Page: {page}")
