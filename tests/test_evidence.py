"""Every number of the evidence's tables follows from the scores that are kept with it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from polyphony.report import Run
from polyphony.report.compare import comparison_table
from polyphony.report.differences import difference_chart, difference_table, differences
from polyphony.report.study_runs import studies
from polyphony.report.style import assign

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "docs" / "results" / "evidence"
KEPT = EVIDENCE / "kept"
PAGES = {
    "digits-20": ["digits-20-*"],
    "all": ["digits-10-*", "digits-20a-*", "digits-50-*", "fashion-*", "cifar10", "cifar100"],
}
RUNS = {  # by what a row of the tables begins with
    "digits, 10": "digits-10-?",
    "digits, 20": "digits-20-?",
    "digits, 50": "digits-50-?",
    "digits again, 20": "digits-20a-?",
    "Fashion-MNIST, 4,000": "fashion-?",
    "Fashion-MNIST, 20,000": "fashion-20000",
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
}


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_are_those_that_the_kept_scores_make(page):
    folders = [folder for pattern in PAGES[page] for folder in sorted(KEPT.glob(pattern))]
    found = studies([Run.open(folder) for folder in folders])
    apart = [each for study in found for each in differences(study)]
    look = assign([(name, study.first.perturbation(name)) for study in found for name in study.methods])
    made = {
        "comparison.md": comparison_table(found).markdown(),
        "differences.md": difference_table(apart).markdown(),
        "differences.csv": difference_chart(apart, look).numbers.csv(),
    }
    for name, text in made.items():
        assert (EVIDENCE / page / name).read_text(encoding="utf-8") == text, name


def nlls(runs: str, method: str, split: str = "test") -> dict[tuple[str, str], float]:
    """The calibrated NLLs of a method, by run and seed."""
    found = {}
    for folder in sorted(KEPT.glob(runs)):
        with (folder / "scores.csv").open() as file:
            for row in csv.DictReader(file):
                if (row["model"], row["split"], row["calibration"]) == (method, split, "calibrated"):
                    found[folder.name, row["seed"]] = float(row["nll"])
    return found


def best(runs: str, kind: str) -> str:
    """The method of a kind with the temperature of least validation NLL."""
    found = {f"{kind}-t{warmth}": nlls(runs, f"{kind}-t{warmth}", "valid") for warmth in "124"}
    return min((name for name in found if found[name]), key=lambda name: np.mean(list(found[name].values())))


def half(values: list[float]) -> float:
    """Half of the 95 % t-interval of a mean."""
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    return (high - low) / 2


def rows() -> list[list[str]]:
    """The cells of the page's table, a list for each row."""
    lines = (EVIDENCE / "first.md").read_text(encoding="utf-8").splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return table[2:]


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}: {row[1]}")
def test_a_row_of_the_page_is_what_the_kept_scores_say(row):
    runs = next(runs for name, runs in RUNS.items() if re.match(rf"{re.escape(name)}\b(?!\d)", row[0]))
    plain = best(runs, "kd")
    references = {
        "clean images, τ = 1": "kd-t1",
        f"best plain distillation (τ = {plain[-1]})": plain,
        "Gaussian noise": "gaussian-t1",
    }
    mine, theirs = nlls(runs, "ods-t1"), nlls(runs, references[row[1]])
    apart = {pair: mine[pair] - theirs[pair] for pair in mine}
    values = list(apart.values())
    sets = [
        np.mean([apart[pair] for pair in apart if pair[0] == run])
        for run in sorted({run for run, _ in apart})
    ]
    halves = [half(values)] + ([half(sets)] if len(sets) > 1 else [])
    clear = abs(np.mean(values)) > max(halves)
    assert row[2:] == [
        signed(np.mean(values)),
        *(f"± {each:.3f}" for each in halves),
        *(["–"] if len(halves) == 1 else []),
        f"{sum(each < 0 for each in values)} of {len(values)}",
        ("better" if np.mean(values) < 0 else "worse") if clear else "unclear",
    ]


def test_the_page_has_every_study_and_comparison():
    assert len({tuple(row[:2]) for row in rows()}) == 3 * len(RUNS)
