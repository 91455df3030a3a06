"""The tables of docs/results/students follow from the files that are kept with them."""

from __future__ import annotations

import csv
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from polyphony.recipe import read_recipe
from polyphony.runs.rows import EnsembleNll, Latency, Score, UnknownScore, to_csv

ROOT = Path(__file__).parents[1]
KEPT = [path.parent for path in sorted((ROOT / "docs" / "results" / "students").glob("*/scores.csv"))]
CALIBRATIONS = ("calibrated", "standard")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("students_table", ROOT / "tools" / "students_table.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the types of fields
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=[None, *KEPT], ids=lambda path: path.name if path else "invented")
def kept(request, tmp_path, tool) -> Path:
    """Kept results in a folder that may be written to: invented ones, and all that are published."""
    folder = tmp_path / "kept"
    if request.param:
        shutil.copytree(request.param, folder)
    else:
        invent(folder, tool)
        tool.main(str(folder))
    return folder


def invent(folder: Path, tool: ModuleType) -> None:
    """Results of every method of students-fashion with random numbers."""
    recipe, rng = read_recipe("students-fashion"), np.random.default_rng(0)
    facts = json.loads((ROOT / "docs" / "results" / "branch" / "recipe.json").read_text())
    seeds = {name: [70, 71, 72] for name in recipe.methods} | {"teachers": [None], "best teacher": [2]}
    scores = [
        Score(name, seed, split, kind, *rng.uniform(0.1, 0.9, 4), *rng.uniform(1, 8, 1), rng.uniform(), 9)
        for name, each in seeds.items()
        for seed in each
        for split in ("train", "valid", "test")
        for kind in CALIBRATIONS
    ]
    curve = [EnsembleNll("test", kind, size, 1 - size / 10 + 1) for kind in CALIBRATIONS for size in range(9)]
    unknown = [
        UnknownScore(name, seed, data, score, *rng.uniform(size=5))
        for name, each in seeds.items()
        for seed in each
        for data in ("digits", "cifar10")
        for score in ("entropy", "energy")
    ]
    plain = [Latency(name, 9, *rng.uniform(size=1), 1, 1, 90_000) for name in seeds]
    small = [tool.Int8Latency(name, 9, 0.2, 1, 1, 30_000, nll_rise=-0.001) for name in recipe.methods]
    small += [tool.Int8Latency(name, 9, 0.2, 1, 1, 30_000) for name in ("teachers", "best teacher")]
    trained = [tool.TrainingCost(name, 2e12) for name in seeds]
    (folder / "analysis").mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(facts | {"recipe": recipe.model_dump(mode="json")}))
    for rows in (scores, curve, unknown, plain, small, trained):
        (folder / type(rows[0]).file).write_text(to_csv(rows, type(rows[0])))


def rows_of(path: Path, **where: str) -> list[dict[str, str]]:
    with path.open() as file:
        return [row for row in csv.DictReader(file) if where.items() <= row.items()]


def numbers(
    folder: Path, model: str, column: str, split: str = "test", kind: str = "calibrated"
) -> np.ndarray:
    rows = rows_of(folder / "scores.csv", model=model, split=split, calibration=kind)
    return np.array([float(row[column]) for row in rows if row[column]])


def said(values: np.ndarray, digits: int) -> str:
    if not len(values):
        return "–"
    spread = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{spread}"


def tables(folder: Path) -> list[dict[str, dict[str, str]]]:
    """The tables of a page: model → heading → cell."""
    found: list[list[list[str]]] = []
    before = ""
    for line in (folder / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            found += [] if before.startswith("| ") else [[]]
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        before = line
    return [{row[0]: dict(zip(table[0], row, strict=True)) for row in table[2:]} for table in found]


def models(folder: Path) -> dict[str, str]:
    """What the tables call the models that they must have: of two temperatures the better on validation."""
    methods = list(json.loads((folder / "recipe.json").read_text())["recipe"]["methods"])
    worse = {
        max(pair, key=lambda name: numbers(folder, name, "nll", "valid").mean())
        for name in methods
        if "-t4-" in name
        for pair in [(name, name.replace("-t4-", "-"))]
    }
    students = {name: name for name in methods if name not in worse}
    return {"teachers": "teachers (4 networks)", "best teacher": "best teacher"} | students


def test_the_quality_of_every_model_is_what_the_kept_scores_say(kept):
    table, expected = tables(kept)[0], models(kept)
    one_teacher = numbers(kept, "best teacher", "nll").mean()
    assert list(table) == list(expected.values())
    for model, label in expected.items():
        row = table[label]
        kld = numbers(kept, model, "kld") / numbers(kept, "teachers", "kld")
        worse = numbers(kept, model, "nll").mean() > one_teacher or model in ("teachers", "best teacher")
        assert row["ACC % ↑"] == said(100 * numbers(kept, model, "acc"), 2)
        assert row["ACC, training %"] == said(100 * numbers(kept, model, "acc", "train"), 1)
        assert row["NLL ↓"] == said(numbers(kept, model, "nll"), 3)
        assert row["NLL, as predicted ↓"] == said(numbers(kept, model, "nll", kind="standard"), 3)
        assert row["AURC ↓"] == said(numbers(kept, model, "aurc"), 4)
        assert row["Voice ↑"] == said(numbers(kept, model, "voice"), 3)
        assert row["Mean-KLD kept %"] == said(100 * kld[[] if worse or not kld.any() else slice(None)], 0)
        for heading in (each for each in row if each.startswith("AUROC, ")):
            where = {"model": model, "unknown": heading.split()[1], "score": "entropy"}
            found = [float(each["auroc"]) for each in rows_of(kept / "analysis" / "ood.csv", **where)]
            assert row[heading] == said(np.array(found), 3)
            assert found


def test_the_price_of_every_model_is_what_was_kept(kept):
    table, expected = tables(kept)[1], models(kept)
    assert list(table) == list(expected.values())
    for model, label in expected.items():
        (plain,), (small,) = (
            rows_of(kept / "analysis" / f"{name}.csv", model=model) for name in ("latency", "int8")
        )
        for words, file in {"float32": plain, "int8": small}.items():
            assert table[label][f"ms, {words}"] == f"{float(file['milliseconds']):.3f}"
            assert table[label][f"kB, {words}"] == f"{int(file['bytes']) / 1000:,.0f}"
        trained = rows_of(kept / "analysis" / "training.csv", model=model)
        assert table[label]["Training"] == (
            f"{float(trained[0]['multiply_adds']) / 1e12:.2f}" if trained else "–"
        )


def test_students_that_nobody_beats_are_named(kept):
    prices = {row["model"]: float(row["milliseconds"]) for row in rows_of(kept / "analysis" / "latency.csv")}
    nlls = {name: numbers(kept, name, "nll").mean() for name in prices}
    best = {}
    for name in list(models(kept))[2:]:
        form, valid = (
            name.rpartition("-")[0].replace("be-t4", "be"),
            numbers(kept, name, "nll", "valid").mean(),
        )
        best[form] = min(best.get(form, (np.inf, "")), (valid, name))
    shown = [name for _, name in best.values()]
    front = [
        one
        for one in shown
        if not any(nlls[each] <= nlls[one] and prices[each] < prices[one] for each in shown)
    ]
    words = " ".join((kept / "README.md").read_text(encoding="utf-8").split())
    named = words.rsplit("NLL and milliseconds are ", 1)[1].rstrip(".").replace(" and ", ", ").split(", ")
    assert sorted(named) == sorted(front)


def test_a_page_is_what_the_tool_writes(kept, tool):
    published = (kept / "README.md").read_text(encoding="utf-8")
    tool.main(str(kept))
    assert (kept / "README.md").read_text(encoding="utf-8") == published


def test_a_run_without_unknown_images_is_refused_before_anything_is_written(kept, tmp_path, tool):
    (kept / "analysis" / "ood.csv").unlink()
    with pytest.raises(SystemExit, match="polyphony evaluate RUN --ood NAME"):
        tool.main(str(kept), str(tmp_path / "to"))
    assert not (tmp_path / "to").exists()


CHOICES = ["best teacher", "teachers", "mean-ods", "separate-small-clean", "front-2-ods", "hydra-ods"]


@pytest.mark.parametrize("model", [*CHOICES, "dlf-clean", "separate-small-ods"])
def test_the_advice_which_student_to_choose_has_the_kept_numbers(model):
    page = (ROOT / "docs" / "students.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if f"| `{model}` | " in line and line.count("|") == 7)
    expected = []
    for name in ("fashion", "cifar10"):
        folder = ROOT / "docs" / "results" / "students" / name
        (price,) = rows_of(folder / "analysis" / "latency.csv", model=model)
        expected += [said(numbers(folder, model, "nll"), 3), f"{float(price['milliseconds']):.3f}"]
    assert [cell.strip() for cell in row.strip("|").split("|")][2:] == expected
