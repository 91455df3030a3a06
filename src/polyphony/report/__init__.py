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
    """Write the page of one run or sweep, or of several runs compared, and its figures; returns its path.

    The page is RUN/report.html, or ./report.html for several runs, unless `out` is given. Figures go to
    RUN/figures, or to figures beside the page for several runs. Raises StoreError for a folder that is not an
    evaluated run.
    """
    page = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    report = _report(folders)
    for name, data in report.files().items():
        write_whole((folders[0] if len(folders) == 1 else page.parent) / "figures" / name, data)
    write_whole(page, report.html.encode())
    return page


def _report(folders: Sequence[Path]) -> Report:
    sweeps = [folder for folder in folders if SweepRun.holds(folder)]
    if len(folders) == 1:
        return sweep_report(SweepRun.open(sweeps[0])) if sweeps else report_of(Run.open(folders[0]))
    if sweeps:
        raise StoreError(f"{sweeps[0]} is a sweep, which has no test scores to compare: report it by itself")
    return comparison([Run.open(folder) for folder in folders])
