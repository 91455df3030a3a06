from __future__ import annotations

import json
from pathlib import Path

from polyphony.report import Run, report_of
from polyphony.report.provenance import provenance

GROUP = "Trainings reused from other runs"


def take_over(mine: Path, other: Path) -> None:
    """done.json as `store.Stage.adopt` writes it; only the folder's name matters here."""
    done = json.loads((mine / "done.json").read_text())
    (mine / "done.json").write_text(json.dumps(done | {"adopted": str(other)}))


def test_trainings_of_other_runs_are_counted_under_their_folders_names(small_run: Path, tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    for j in (0, 1):
        take_over(small_run / "teachers" / str(j), first / "teachers" / str(j))
    take_over(small_run / "students" / "kd" / "0", first / "students" / "plain" / "0")
    take_over(small_run / "students" / "kd" / "1", second / "students" / "plain" / "1")
    run = Run.open(small_run)
    trainings = 5 + 2 * 4
    assert provenance(run)[GROUP] == [
        ("together", f"4 of {trainings}"),
        ("from first", "3"),
        ("from second", "1"),
    ]
    html = report_of(run).html
    assert GROUP in html
    assert str(tmp_path) not in html


def test_a_run_without_reused_trainings_does_not_mention_other_runs(small_run: Path):
    assert GROUP not in provenance(Run.open(small_run))
