"""The verb that tries a device: check."""

from __future__ import annotations

import sys
import time

from rich.table import Table

from polyphony._util.text import duration
from polyphony.cli import terminal
from polyphony.cli.where import Device, chosen


def check(*, device: Device = "auto") -> None:
    """Test a device: numbers against float64 on the CPU, exact resume, a small study, speed.

    Prints one table and one verdict in less than two minutes. The exit code is 1 if a test fails.
    """
    from polyphony.study.check import findings

    name, start = chosen(device), time.monotonic()
    table, failed = Table("check", "found", "allowed", "verdict", title=f"Polyphony on {name}"), []
    for finding in findings(name):
        terminal.note(f"{finding.check}: {finding.found}")
        verdict = "passed" if finding.passed else "FAILED"
        table.add_row(finding.check, finding.found, finding.allowed, verdict)
        failed += [] if finding.passed else [finding.check]
    terminal.console.print(table)
    took = duration(time.monotonic() - start)
    if failed:
        terminal.complain(f"{name} did not pass: {', '.join(failed)} ({took})")
        sys.exit(1)
    terminal.line(f"{name} computes what it should ({took}).")
