"""The verb that shows what came out: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from polyphony.cli import terminal


def report(
    runs: Annotated[
        tuple[Path, ...],
        Parameter(name="RUN", required=True, help="Run folders, for example runs/digits."),
    ],
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(
            validator=validators.Path(ext="html"),
            help="The page; RUN/report.html unless given, or report.html here for several.",
        ),
    ] = None,
) -> None:
    """Write one HTML page about a run or sweep, and its figures and tables as files; compare several."""
    with terminal.working("Writing the page"):
        from polyphony.report import write_report

        page = write_report(runs, out)
    terminal.line(f"Page: {page}")
