"""Run folders → one self-contained HTML page, and figures and tables as files. No model is ever loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyphony.report.compare import comparison_page
from polyphony.report.page import report_of
from polyphony.report.run import Run
from polyphony.store import write_whole

__all__ = ["Run", "comparison_page", "report_of", "write_report"]


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of one run, or of several compared; where it was written.

    One run: RUN/report.html unless `out` is given, and RUN/figures/*. Several: report.html here unless `out`
    is given. Raises StoreError, in one sentence, for a folder that is not an evaluated run.
    """
    runs = [Run.open(folder) for folder in folders]
    if len(runs) == 1:
        return _write_one(runs[0], out)
    page = out or Path("report.html")
    write_whole(page, comparison_page(runs).encode())
    return page


def _write_one(run: Run, out: Path | None) -> Path:
    report = report_of(run)
    for name, data in report.files().items():
        write_whole(run.folder / "figures" / name, data)
    page = out or run.folder / "report.html"
    write_whole(page, report.html.encode())
    return page
