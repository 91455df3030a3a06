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
from polyphony.report.differences import difference_chart, difference_table
from polyphony.report.study_runs import differences, studies
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
DIFFERENCE = r"([+−]\d\.\d{3}) ± (\d\.\d{3}) \((\d+) of (\d+)(?:; sets ± (\d\.\d{3}))?(?:; τ = (\d))?\)"


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


def cells(page: Path) -> list[tuple[str, str, str]]:
    """(runs, heading, cell) of every difference in a page's table of studies."""
    lines = [
        line.strip("|").split("|") for line in page.read_text(encoding="utf-8").splitlines() if "|" in line
    ]
    start = next(at for at, line in enumerate(lines) if line[0].strip() == "images to learn from")
    headings, found = [cell.strip() for cell in lines[start]], []
    for line in lines[start + 2 :]:
        name = next((name for name in RUNS if re.match(rf"{re.escape(name)}\b(?!\d)", line[0].strip())), None)
        if name is None:
            break
        cut = [(heading, cell.strip()) for heading, cell in zip(headings, line, strict=True)]
        found += [(RUNS[name], heading, cell) for heading, cell in cut if "±" in cell]
    return found


def test_the_differences_in_words_are_those_of_the_scores():
    found = cells(EVIDENCE / "README.md")
    assert len(found) >= 2 * len(RUNS)
    for runs, heading, cell in found:
        mean, interval, ahead, count, sets, warmth = re.search(DIFFERENCE, cell).groups()
        names = {"clean": "kd-t1", "noise": "gaussian-t1", "ODS": "ods-t1"}
        names |= {"best ODS": best(runs, "ods"), "best plain": best(runs, "kd")}
        method, reference = (names[each] for each in heading.split(" − "))
        assert warmth in (None, reference[-1])
        mine, theirs = nlls(runs, method), nlls(runs, reference)
        apart = {pair: mine[pair] - theirs[pair] for pair in mine}
        by_set = [
            [each for pair, each in apart.items() if pair[0] == run] for run in {run for run, _ in apart}
        ]
        values, means = list(apart.values()), [np.mean(each) for each in by_set]
        assert (int(ahead), int(count)) == (sum(each < 0 for each in values), len(values))
        assert mean == f"{np.mean(values):+.3f}".replace("-", "−")
        assert interval == f"{half(values):.3f}"
        assert sets == (f"{half(means):.3f}" if len(means) > 1 else None)
        assert cell.startswith("**") == (len(means) > 1 and abs(np.mean(means)) > half(means))
