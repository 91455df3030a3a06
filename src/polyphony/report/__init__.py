"""Run folders → one self-contained HTML page, and figures and tables as files. No model is ever loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyphony.report.compare import comparison
from polyphony.report.page import Report, report_of
from polyphony.report.sweep_page import sweep_report
from polyphony.report.sweep_run import SweepRun
from polyphony.runs.run import Run
from polyphony.runs.store import StoreError, write_whole

__all__ = ["Run", "comparison", "report_of", "write_report"]


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of one run or sweep, or of several compared; where it was written.

    One run: RUN/report.html unless `out` is given, and RUN/figures/*. Several: report.html here unless `out`
    is given, and figures/* beside it. Raises StoreError, in one sentence, for a folder that is not an
    evaluated run.
    """
    if len(folders) == 1:
        return _write(_report(folders[0]), out or folders[0] / "report.html", folders[0])
    page = out or Path("report.html")
    return _write(_compared(folders), page, page.parent)


def _report(folder: Path) -> Report:
    return sweep_report(SweepRun.open(folder)) if SweepRun.holds(folder) else report_of(Run.open(folder))


def _compared(folders: Sequence[Path]) -> Report:
    for folder in filter(SweepRun.holds, folders):
        raise StoreError(f"{folder} is a sweep, which has no test scores to compare: report it by itself")
    return comparison([Run.open(folder) for folder in folders])


def _write(report: Report, page: Path, folder: Path) -> Path:
    for name, data in report.files().items():
        write_whole(folder / "figures" / name, data)
    write_whole(page, report.html.encode())
    return page
