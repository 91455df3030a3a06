"""The verb that tries a device: check."""

from __future__ import annotations

import sys
import time

from rich.table import Table

from polyphony._util.text import duration
from polyphony.cli import terminal
from polyphony.cli.where import Device, chosen


def check(*, device: Device = "auto") -> None:
    """Try a device: does it compute what float64 on the CPU does, resume exactly, run a study, and how fast?

    One table and one verdict, in well under two minutes; exit code 1 if anything did not pass.
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
