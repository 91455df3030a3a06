"""Every number of the tables of evidence follows from the scores that are kept with them."""

from __future__ import annotations

import csv
import importlib
import json
import re
import shutil
import sys
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "docs" / "results" / "evidence"
TABLES = EVIDENCE / "tables"
STUDIES = {
    "CIFAR-10, 4,000": "own10-*",
    "CIFAR-100, 4,000": "own100-*",
    "CIFAR-10, 4,000, an eighth of the cost": "eighth-6?",
    "CIFAR-10, 4,000, small student": "small-*",
    "CIFAR-10, 20,000": "more-*",
    "CIFAR-10, 20,000, memorised": "memorised-57",
    "CIFAR-100, 18,000": "large100-56",
    "CIFAR-10, 45,000": "full-51",
    "Fashion-MNIST, 4,000": "fashion-*",
    "Fashion-MNIST, 4,000, an eighth of the cost": "fashion-4[2-4]",
    "CIFAR-10, 4,000, sets 31 to 34": "cifar10-3?",
    "CIFAR-10, 4,000, sets 20 to 22": "cifar10-2?",
    "CIFAR-10, 4,000, sets 20 to 22, fresh": "fresh-*",
    "CIFAR-10, 4,000, set 31": "price",
    "CIFAR-10, 45,000, 3 epochs": "full",
    "CIFAR-100, 4,000, sets 27 to 29": "cifar100-*",
    "CIFAR-100, 4,000, sets 27 to 29, fresh": "fresh100-*",
    "CIFAR-100, 4,000, set 26": "cifar100",
}
OTHER_IMAGES = ("own10-*", "own100-*")  # each set has images of its own
RUNS = {**STUDIES, "CIFAR-10, 4,000, sets 20 to 34": "cifar10-*"}
CHOICES = {
    "Settings tried on validation images": "choose",
    "Settings tried for CIFAR-100": "choose-cifar100",
    "Ways at an eighth of the cost": "eighth-31",
}
BORN = {2: "short-t4-s12", 5: "ods-t4-s12-rate003-e5", 10: "ods-t4-s12-rate003", 20: "ods-t4-s12-rate003-e20"}
PRICES = {  # study, way and epochs → run in kept/, method
    **{
        ("CIFAR-10, 4,000, set 20", *key): ("choose", method)
        for key, method in {
            ("fresh, two passes", "20"): "fresh-paper",
            ("fresh, one pass", "20"): "fresh-ods-t4-s1-rate003",
            ("fresh, plain", "20"): "fresh-plain-t4-rate003",
            **{("from a teacher, one pass", str(epochs)): method for epochs, method in BORN.items()},
            **{("from a teacher, shared front", str(epochs)): f"front-e{epochs}" for epochs in (2, 5, 10)},
        }.items()
    },
    **{
        ("CIFAR-10, 4,000, set 31", *key): run
        for key, run in {
            ("fresh, two passes", "20"): ("price", "paper"),
            ("fresh, one pass", "20"): ("cifar10-31", "fresh-ods"),
            ("fresh, plain", "10"): ("price", "plain-e10"),
            ("fresh, plain", "23"): ("cifar10-31", "fresh-plain"),
            **{("fresh, plain, shared front", str(each)): ("price", f"front-e{each}") for each in (10, 20)},
            **{
                ("fresh, plain, two shared stages", str(each)): ("price", f"front-2-e{each}")
                for each in (10, 20)
            },
            **{("fresh, plain, one network", str(each)): ("price", f"mean-e{each}") for each in (10, 20)},
        }.items()
    },
    **{
        ("CIFAR-10, 4,000, an eighth of the cost", *key): ("eighth-6?", method)
        for key, method in {
            ("fresh, two passes", "20"): "paper",
            ("fresh, plain, four small networks", "10"): "separate-fast",
            ("fresh, plain, four classifiers", "10"): "hydra-fast",
        }.items()
    },
    **{
        ("Fashion-MNIST, 4,000, an eighth of the cost", *key): ("fashion-4[2-4]", method)
        for key, method in {
            ("fresh, two passes", "30"): "fresh-two-e30",
            ("from a teacher, shared front", "7"): "front-e7",
            ("from a teacher, two shared stages", "8"): "front-2-e8",
            ("from a teacher, one network, mean", "10"): "mean-ods-e10",
        }.items()
    },
    **{
        ("Fashion-MNIST, 4,000", *key): ("fashion-*", method)
        for key, method in {
            ("fresh, two passes", "30"): "fresh-two-e30",
            ("fresh, one pass", "30"): "fresh-one-e30",
            **{("from a teacher, one pass", str(epochs)): f"born-e{epochs}" for epochs in (2, 5, 10)},
            **{("from a teacher, shared front", str(epochs)): f"front-e{epochs}" for epochs in (2, 5, 10)},
        }.items()
    },
}
METHODS = {  # by the words of a comparison: methods; "*" is the best of several on validation images
    "ODS − plain": ("ods*", "plain*"),
    "ODS − plain at equal cost": ("ods*", "plain-*"),
    "ODS − plain, both at τ = 4": ("ods", "plain-t4"),
    "ODS − plain, search included": ("ods", "plain-*"),
    "ODS − noise": ("ods", "noise"),
    "ODS − noise at equal cost": ("ods*", "noise"),
    "fresh: ODS − plain at equal cost": ("fresh-ods", "fresh-plain*"),
    "ODS from a teacher − ODS fresh": ("ods*", "fresh-ods"),
    "plain from a teacher − plain fresh": ("plain", "fresh-plain"),
    "matched step − 12/255": ("match", "ods"),
    "from a teacher, 10 epochs − fresh, two passes": ("born-e10", "fresh-two-e30"),
    "shared front, 10 epochs − fresh, two passes": ("front-e10", "fresh-two-e30"),
    "fresh: one pass − two passes": ("fresh-one-e30", "fresh-two-e30"),
    "four small networks − Algorithm 1": ("separate-fast", "paper"),
    "four classifiers − Algorithm 1": ("hydra-fast", "paper"),
    "shared front, 7 epochs − fresh, two passes": ("front-e7", "fresh-two-e30"),
    "two shared stages − fresh, two passes": ("front-2-e8", "fresh-two-e30"),
    "one network, mean − fresh, two passes": ("mean-ods-e10", "fresh-two-e30"),
}


def tables(page: Path) -> dict[str, list[dict[str, str]]]:
    """The first Markdown table below each heading of a page: rows by the headings of their columns."""
    found: dict[str, list[dict[str, str]]] = {}
    for section in re.split(r"^##? ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        lines = [line for line in section.split("\n| ", 1)[-1].split("\n\n")[0].splitlines() if "|" in line]
        cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
        if len(cells) > 2:
            name = section.splitlines()[0]
            found[name] = [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]
    return found


def folders(runs: str) -> list[Path]:
    """The kept runs of a study."""
    return sorted((TABLES / "kept").glob(runs))


def step_sizes(folder: Path, model: str) -> list[float]:
    with (folder / "trainings.csv").open() as file:
        return [float(row["step_size"]) for row in csv.DictReader(file) if row["model"] == model]


def kept_studies() -> list[str]:
    return [study for study, runs in STUDIES.items() if folders(runs)]


def scores(folder: Path, model: str, split: str, kind: str, column: str) -> dict[str, float]:
    """A column of scores.csv by seed."""
    with (folder / "scores.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row[column]]
    wanted = (model, split, kind)
    picked = [row for row in rows if (row["model"], row["split"], row["calibration"]) == wanted]
    return {row["seed"]: float(row[column]) for row in picked}


def column(runs: str, model: str, name: str, split: str = "test", kind: str = "calibrated") -> dict:
    """A column over all sets of a study, by the teachers' seed and the student's seed."""
    return {
        (recipe_of(folder)["teachers"]["seed"], seed): value
        for folder in folders(runs)
        for seed, value in scores(folder, model, split, kind, name).items()
    }


def recipe_of(folder: Path) -> dict:
    return json.loads((folder / "recipe.json").read_text())["recipe"]


def methods(runs: str) -> list[str]:
    """The methods that all runs of a study have."""
    first, *others = (recipe_of(folder)["methods"] for folder in folders(runs))
    return [name for name in first if all(name in other for other in others)]


def teachers(runs: str) -> int:
    """How many teachers a study has, extra ones included."""
    recipe = recipe_of(folders(runs)[0])
    return recipe["members"] + recipe["teachers"]["extra"]


def chosen(runs: str, pattern: str) -> str:
    """A method's name; of several, the best on validation images. All students of some studies are fresh."""
    there = methods(runs)
    stem = pattern.rstrip("*").rstrip("-")
    if not any(name.startswith(stem) for name in there):
        stem = stem.removeprefix("fresh-")
    if stem in there and not pattern.endswith("-*"):
        return stem
    names = [name for name in there if name.startswith(f"{stem}-")]
    if not names:
        return stem
    return min(names, key=lambda each: np.mean([*column(runs, each, "nll", "valid").values()]))


def multiply_adds(runs: str, model: str) -> float:
    with (folders(runs)[0] / "trainings.csv").open() as file:
        rows = list(csv.DictReader(file))
    own = [float(row["multiply_adds"]) for row in rows if row["model"] == model]
    search = [float(row["multiply_adds"]) for row in rows if row["model"] == f"{model}, step size"]
    return own[0] + sum(search) / len(own)


def half(values: list[float]) -> float | None:
    """Half of the 95 % t-interval of a mean; None for one value."""
    if len(values) < 2:
        return None
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    return (high - low) / 2


def spread(values: list[float], digits: int) -> str:
    if not values:
        return "–"
    deviation = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{deviation}"  # exact, so that ties are rounded as in the table


def comparisons() -> list[dict[str, str]]:
    return tables(TABLES / "README.md")["Comparisons"]


@pytest.mark.parametrize("row", comparisons(), ids=lambda row: f"{row['study']}: {row['comparison']}")
def test_a_comparison_is_what_the_kept_scores_say(row):
    runs, (first, second) = RUNS[row["study"]], METHODS[row["comparison"]]
    against, fresh = runs, f"{row['study']}, fresh"  # the runs of its fresh students, if they are apart
    if row["comparison"].endswith("fresh") and fresh in RUNS:
        against, second = RUNS[fresh], second.removeprefix("fresh-")
    method, reference = chosen(runs, first), chosen(against, second)
    mine, theirs = column(runs, method, "nll"), column(against, reference, "nll")
    gaps = {pair: mine[pair] - theirs[pair] for pair in mine if pair in theirs}
    values, sets = list(gaps.values()), sorted({place for place, _ in gaps})
    means = [np.mean([gap for pair, gap in gaps.items() if pair[0] == place]) for place in sets]
    halves = [half(values), half(means)]
    mean, judged = np.mean(means) if len(sets) > 1 else np.mean(values), halves[1] or halves[0]
    verdict = "one pair"
    if judged is not None:
        verdict = "equal" if abs(mean) + judged <= 0.02 else "unclear"
        if abs(mean) > judged:
            verdict = "better" if mean < 0 else "worse"
    assert row["difference"] == f"{mean:+.3f}".replace("-", "−")
    assert [row["95 % interval"], row["over sets"]] == [f"± {each:.3f}" if each else "–" for each in halves]
    assert row["better in"] == f"{sum(value < 0 for value in values)} of {len(values)}"
    assert row["verdict"] == verdict
    assert row["cost"] == f"{multiply_adds(runs, method) / multiply_adds(against, reference):.2f}"
    voices = [column(group, name, "voice") for group, name in ((runs, method), (against, reference))]
    gaps = {pair: voices[0][pair] - voices[1][pair] for pair in voices[0] if pair in voices[1]}
    if not gaps:  # one network has no voice
        assert row["voice"] == row["95 % interval of voice"] == "–"
        return
    voice = [np.mean([gap for pair, gap in gaps.items() if pair[0] == place]) for place in sets]
    voice = voice if len(sets) > 1 else list(gaps.values())
    assert row["voice"] == f"{np.mean(voice):+.3f}".replace("-", "−")
    interval = half(voice)
    assert row["95 % interval of voice"] == (f"± {interval:.3f}" if interval else "–")


def test_every_pair_of_a_study_counts():
    for study, runs in STUDIES.items():
        for folder in folders(runs):
            recipe = recipe_of(folder)
            for name in recipe["methods"]:
                seeds = scores(folder, name, "test", "calibrated", "nll")
                assert list(seeds) == [str(seed) for seed in recipe["seeds"]], (study, folder, name)


def test_sets_have_images_of_their_own_where_the_fifth_protocol_says_so():
    for study, runs in STUDIES.items():
        facts = [json.loads((folder / "recipe.json").read_text()) for folder in folders(runs)]
        images = [{fact["data"][part] for fact in facts} for part in ("train", "valid", "test")]
        seeds = {fact["recipe"]["teachers"]["seed"] for fact in facts}
        assert len(seeds) == len(facts)
        if runs in OTHER_IMAGES:
            assert [len(each) for each in images] == [len(facts), len(facts), 1]
        if facts:
            text = (TABLES / "README.md").read_text(encoding="utf-8")
            section = re.search(
                rf"^## {re.escape(study)}\n\n(.+?\.) Students", text, re.MULTILINE | re.DOTALL
            )
            assert section, study
            assert re.findall(r"\d+", section[1]) == [str(len(facts)), str(len(images[0]))], study


@pytest.mark.parametrize("study", kept_studies())
def test_scores_of_a_study_are_means_over_its_students(study):
    runs = RUNS[study]
    rows = tables(TABLES / "README.md")[study]
    assert [row["model"] for row in rows] == ["teachers", "best teacher", *methods(runs)]
    for row in rows:
        model = row["model"]
        for heading, (name, kind, digits, factor) in {
            "NLL": ("nll", "calibrated", 3, 1),
            "as predicted": ("nll", "standard", 3, 1),
            "ACC %": ("acc", "calibrated", 1, 100),
            "DEE": ("dee", "calibrated", 2, 1),
            "mean-KLD": ("kld", "calibrated", 3, 1),
            "voice": ("voice", "calibrated", 3, 1),
        }.items():
            values = [factor * value for value in column(runs, model, name, "test", kind).values()]
            if np.isfinite(values).all():
                expected = spread(values, digits)
            else:
                fewest = f"{min(values):.2f} to " if np.isfinite(values).any() else ""
                expected = rf"{fewest}\>{teachers(runs)}"  # escaped in Markdown
            assert row[heading] == expected, (model, heading)
        train = [100 * value for value in column(runs, model, "acc", "train").values()]
        assert row["training ACC %"] == spread(train, 1)
        if model != "best teacher":
            assert row["multiply-adds"] == f"{multiply_adds(runs, model) / 1e12:.2f}"


def test_the_price_of_quality_follows_from_validation_scores():
    rows = tables(TABLES / "README.md")["Price of quality"]
    assert {(row["study"], row["way"], row["epochs"]) for row in rows} == set(PRICES)
    paper = dict.fromkeys(row["study"] for row in rows)
    for row in rows:
        runs, name = PRICES[row["study"], row["way"], row["epochs"]]
        nlls, cost = column(runs, name, "nll", "valid"), multiply_adds(runs, name)
        paper[row["study"]] = whole, goal = paper[row["study"]] or (cost, nlls)  # the first row
        gaps = [nlls[pair] - goal[pair] for pair in nlls if pair in goal]
        assert row["share of the cost"] == f"{cost / whole:.2f}"
        assert row["validation NLL"] == spread([*nlls.values()], 3)
        assert row["difference"] == f"{np.mean(gaps):+.4f}".replace("-", "−")
        if nlls is not goal:
            interval = half(gaps)
            assert row["95 % interval"] == (f"± {interval:.3f}" if interval else "–")
        assert row["n"] == str(len(gaps))
        assert row["reaches it"] == ("yes" if np.mean(gaps) <= 0 else "no")


@pytest.mark.parametrize(("heading", "runs"), CHOICES.items())
def test_every_setting_that_was_tried_is_listed(heading, runs):
    rows = {row["setting"]: row["validation NLL"] for row in tables(TABLES / "README.md")[heading]}
    assert rows == {name: spread([*column(runs, name, "nll", "valid").values()], 3) for name in methods(runs)}


@pytest.mark.parametrize(
    ("setting", "matched", "fixed", "methods"),
    [
        ("CIFAR-10, other images", "own10-*", "own10-*", ["ods"]),
        ("CIFAR-10, τ = 4, rate 0.03", "match-cifar10-*", "cifar10-3?", ["ods"]),
        ("CIFAR-100, τ = 4, rate 0.03", "match-cifar100-*", "cifar100-*", ["ods"]),
        ("Fashion-MNIST, τ = 1, rate 0.1", "match-fashion-41", "fashion-41", ["s3", "s6", "s12", "s24"]),
    ],
)
def test_matched_steps_are_compared_with_the_best_fixed_step(setting, matched, fixed, methods):
    (row,) = (row for row in tables(TABLES / "README.md")["Matched steps"] if row["setting"] == setting)
    means = {name: np.mean([*column(fixed, name, "nll", "valid").values()]) for name in methods}
    best = min(means, key=means.get)
    mine, theirs = column(matched, "match", "nll", "valid"), column(fixed, best, "nll", "valid")
    assert mine.keys() <= theirs.keys()  # each set of teachers has both
    ours, means[best] = (np.mean([nlls[pair] for pair in mine]) for nlls in (mine, theirs))
    recipes = [recipe_of(folder) for folder in folders(matched)]
    assert {recipe["methods"]["match"]["step_size"] for recipe in recipes} == {"match"}
    assert row["sets"] == str(len(recipes))
    assert [row["NLL, matched step"], row["NLL, fixed step"]] == [f"{ours:.3f}", f"{means[best]:.3f}"]
    assert row["difference"] == f"{ours - means[best]:+.3f}".replace("-", "−")
    assert row["at most 0.01 worse"] == ("yes" if ours - means[best] <= 0.01 else "no")
    steps = [255 * step for each in folders(matched) for step in step_sizes(each, "match")]
    assert row["matched step (1/255)"] == spread(steps, 1)
    assert row["fixed step (1/255)"] == f"{255 * step_sizes(folders(fixed)[0], best)[0]:g}"


def test_weight_decays_are_compared_on_validation_images():
    runs = {}
    for folder in folders("decay-*"):
        recipe = recipe_of(folder)
        assert recipe["data"]["seed"] == 31
        runs[recipe["student"]["weight_decay"]] = folder.name
    rows = tables(TABLES / "README.md")["Weight decay"]
    assert len(rows) == 2 * len(runs) > 2
    for row in rows:
        run = runs[float(row["weight decay"])]
        method = {"a teacher": "ods", "fresh": "fresh-ods"}[row["start"]]
        assert row["validation NLL"] == spread([*column(run, method, "nll", "valid").values()], 3)
        accuracies = [100 * value for value in column(run, method, "acc", "train").values()]
        assert row["training ACC %"] == spread(accuracies, 1)


def test_the_seconds_of_a_step_are_those_of_the_benchmark():
    with (ROOT / "benchmarks" / "results" / "ways.csv").open() as file:
        measured = {row["name"]: float(row["median"]) for row in csv.DictReader(file)}
    with (ROOT / "benchmarks" / "results" / "ways.csv").open() as file:
        assert min(int(row["rounds"]) for row in csv.DictReader(file) if "seconds" in row["name"]) >= 20
    rows = tables(TABLES / "README.md")["Seconds of a step"]
    assert len(rows) == 6
    for row in rows:
        for name in ("seconds", "multiply-adds"):
            assert row[name] == "{:.2f}".format(measured[f"{row['way']}: {name}"])


def test_the_tool_writes_the_page_that_is_kept(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    for name in ("evidence_table", "evidence_figures", "evidence_runs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    shutil.copytree(TABLES / "kept", tmp_path / "kept")
    importlib.import_module("evidence_table").main(str(tmp_path))
    for name in ("README.md", "front.md", "differences.csv", "price.csv"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (TABLES / name).read_text(encoding="utf-8")


def test_the_page_of_evidence_has_the_table_of_the_front():
    table = (TABLES / "front.md").read_text(encoding="utf-8")
    assert table in (EVIDENCE / "README.md").read_text(encoding="utf-8")
    known = {(row["study"], row["comparison"]): row for row in comparisons()}
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert rows
    for images, words, cost, sets, difference, interval, verdict in rows:
        full = known[images, words]
        assert [cost, difference, verdict] == [full[name] for name in ("cost", "difference", "verdict")]
        assert interval == full["over sets"]
        assert int(sets) == len(folders(RUNS[images]))


@pytest.mark.parametrize("page", ["README.md", "details.md"])
def test_every_decimal_in_the_pages_of_evidence_stands_in_a_kept_table(page):
    prose = (EVIDENCE / page).read_text(encoding="utf-8")
    files = [TABLES / "README.md", EVIDENCE / "first.md"]
    known = " ".join(file.read_text(encoding="utf-8") for file in files)
    decimals = set(re.findall(r"(?<![\d.])\d+\.\d{2,}(?![\d.])", prose))
    assert decimals
    assert decimals <= set(re.findall(r"\d+\.\d{2,}", known))
