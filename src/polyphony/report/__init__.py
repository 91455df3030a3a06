"""Writes run folders as one self-contained HTML page, with figures and tables as files; loads no model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyphony.report.compare import comparison
from polyphony.report.page import Report, report_of
from polyphony.report.sweep_page import sweep_report
from polyphony.report.sweep_run import SweepRun
from polyphony.runs.run import Run
from polyphony.runs.store import StoreError, write_atomically

__all__ = ["Run", "comparison", "report_of", "write_report"]


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of one run or sweep, or a page that compares several runs; returns its path.

    The page is `out` (default: RUN/report.html for one run, ./report.html for several). Figures and tables
    go to RUN/figures for one run, and to figures/ beside the page for several. Raises a StoreError if a
    folder is not an evaluated run.
    """
    single = folders[0] if len(folders) == 1 else None
    page = out or (single or Path()) / "report.html"
    report = _report(folders)
    for name, data in report.files().items():
        write_atomically((single or page.parent) / "figures" / name, data)
    write_atomically(page, report.html.encode())
    return page


def _report(folders: Sequence[Path]) -> Report:
    sweeps = [folder for folder in folders if SweepRun.holds(folder)]
    if len(folders) == 1:
        return sweep_report(SweepRun.open(sweeps[0])) if sweeps else report_of(Run.open(folders[0]))
    if sweeps:
        raise StoreError(f"{sweeps[0]} is a sweep, which has no test scores to compare: report it alone")
    return comparison([Run.open(folder) for folder in folders])
