"""The page of a sweep, from folders whose numbers are known."""

from __future__ import annotations

import csv
import itertools
import json
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyphony.recipe import read_recipe
from polyphony.recipe.points import Point
from polyphony.report import write_report
from polyphony.report.sweep_page import layout, notes, strengths, sweep_report
from polyphony.report.sweep_run import SweepRun, toml
from polyphony.runs.store import StoreError

SEEDS = (0, 1, 2)
HEADER = (
    "model",
    "seed",
    "alpha",
    "temperature",
    "step_size",
    "calibration",
    "acc",
    "nll",
    "bs",
    "ece",
    "kld",
)
SMALL_RECIPE = {
    "data": {"name": "digits"},
    "members": 2,
    "teachers": {"network": {"kind": "resnet", "depth": 8}, "epochs": 4, "batch": 16, "learning_rate": 0.1},
    "student": {"epochs": 4, "batch": 16, "learning_rate": 0.1},
}
PAPER_RECIPE = read_recipe("cifar10-resnet32-be4").model_dump(mode="json", exclude_none=True)


TEACHERS = {"standard": 0.16, "calibrated": 0.15}


def nll_at(point: Point, seed: int) -> float:
    """An NLL that is lowest at α = 0.9, τ = 4, with a spread over seeds of 0.002."""
    step = math.log(point.step_size * 255) if isinstance(point.step_size, float) else 0.0
    distance = (point.alpha - 0.9) ** 2 + math.log(point.temperature / 4) ** 2 / 20 + step**2 / 100
    return 0.17 + distance + 0.002 * (seed - 1)


def kld_at(point: Point, seed: int) -> float:
    return 0.02 + 0.03 * point.alpha + 0.01 * math.log(1 + point.temperature) + 0.001 * seed


def write_sweep(
    folder: Path,
    points: Sequence[Point],
    name: str = "small",
    seeds: Sequence[int] = SEEDS,
    recipe: dict[str, Any] | None = None,
    **asked: Any,
) -> Path:
    """Write the files of a sweep's folder, without a sweep."""
    folder.mkdir(parents=True)
    perturb = asked.get("settings", {"perturb": "ods"})
    methods = {point.name: {**perturb, **point.settings()} for point in points}
    base = recipe or SMALL_RECIPE
    derived = {**base, "name": f"{name}-sweep", "methods": methods}
    facts = {"recipe": derived, "versions": {"torch": "2"}}
    (folder / "recipe.json").write_text(json.dumps(facts))
    said = {
        "recipe": name,
        "method": "kd-ods",
        "settings": {"perturb": "ods"},
        "own": Point(0.9, 2.0, 1 / 255).settings(),
        "values": {},
        "trials": None,
        **asked,
    }
    (folder / "sweep.json").write_text(json.dumps(said))
    with (folder / "sweep.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for point, seed, kind in itertools.product(points, seeds, ("standard", "calibrated")):
            worse = 0.01 * point.temperature if kind == "standard" else 0.0
            scores = (0.94 + 0.001 * seed, nll_at(point, seed) + worse, 0.08, 0.01, kld_at(point, seed))
            settings = (point.alpha, point.temperature, "" if point.step_size is None else point.step_size)
            writer.writerow([point.name, seed, *settings, kind, *scores])
    (folder / "analysis").mkdir()
    taught = [f"{kind},0.95,{nll},0.07,0.01,0.06" for kind, nll in TEACHERS.items()]
    columns = "calibration,acc,nll,bs,ece,kld"
    (folder / "analysis" / "teachers.csv").write_text("\n".join([columns, *taught, ""]))
    return folder


def grid(
    alphas: Sequence[float] = (0.5, 0.9, 1.0),
    temperatures: Sequence[float] = (1.0, 2.0, 4.0, 8.0),
    steps: Sequence[Any] = (1 / 255, 2 / 255),
) -> list[Point]:
    return [Point(*point) for point in itertools.product(alphas, temperatures, steps)]


def scattered(count: int) -> list[Point]:
    rng = np.random.default_rng(1)
    return [
        Point(
            round(rng.uniform(0.5, 1), 3), round(2 ** rng.uniform(0, 3), 2), round(rng.uniform(1, 8) / 255, 5)
        )
        for _ in range(count)
    ]


# Reading


def test_points_are_ranked_by_the_mean_calibrated_nll(tmp_path):
    run = SweepRun.open(write_sweep(tmp_path / "a", grid()))
    assert len(run.points) == 24
    means = {p.name: float(np.mean([nll_at(p, seed) for seed in SEEDS])) for p in grid()}
    assert [each.name for each in run.ranked] == sorted(means, key=lambda name: means[name])
    assert run.best.settings == {"alpha": 0.9, "temperature": 4.0, "step_size": 1 / 255}
    assert run.best.nll.mean == pytest.approx(0.17)
    assert run.best.nll.sd == pytest.approx(0.002)
    assert run.recipe_point is not None
    assert run.recipe_point.settings == {"alpha": 0.9, "temperature": 2.0, "step_size": 1 / 255}
    assert run.values["temperature"] == [1.0, 2.0, 4.0, 8.0]


def test_close_points_are_within_one_standard_deviation_of_the_best(tmp_path):
    run = SweepRun.open(write_sweep(tmp_path / "a", grid((0.86, 0.9, 0.95), (4.0,), (1 / 255,))))
    assert [each.settings["alpha"] for each in run.close] == [0.86]  # 0.0016 away; 0.95 is 0.0025
    alone = SweepRun.open(write_sweep(tmp_path / "b", grid(), seeds=(0,)))
    assert math.isnan(alone.best.nll.sd)
    assert alone.close == []


def test_a_matched_step_comes_last_and_a_missing_step_is_none(tmp_path):
    run = SweepRun.open(write_sweep(tmp_path / "a", grid(steps=(2 / 255, "match", 1 / 255))))
    assert run.values["step_size"] == [1 / 255, 2 / 255, "match"]
    assert SweepRun.open(write_sweep(tmp_path / "b", grid(steps=(None,)))).values["step_size"] == [None]


def test_the_teachers_are_those_of_the_file(tmp_path):
    folder = write_sweep(tmp_path / "a", grid())
    assert SweepRun.open(folder).teachers_nll == 0.15
    (folder / "analysis" / "teachers.csv").unlink()
    assert SweepRun.open(folder).teachers_nll is None


def test_points_that_diverged_are_those_without_rows(tmp_path):
    folder = write_sweep(tmp_path / "a", grid())
    lines = (folder / "sweep.csv").read_text().splitlines(keepends=True)
    gone = "a0.5-t1-s1_255"
    (folder / "sweep.csv").write_text("".join(line for line in lines if not line.startswith(gone)))
    run = SweepRun.open(folder)
    assert run.diverged == [gone]
    assert any(gone in said for said in notes(run))
    _, table = sweep_report(run).pieces
    assert len(table.rows) == 23


def test_no_advice_to_go_beyond_a_value_that_diverged(tmp_path):
    folder = write_sweep(tmp_path / "a", grid())
    lines = (folder / "sweep.csv").read_text().splitlines(keepends=True)
    (folder / "sweep.csv").write_text("".join(line for line in lines if "-t8-" not in line))
    run = SweepRun.open(folder)
    assert len(run.diverged) == 6
    assert max(run.values["temperature"]) == run.best.settings["temperature"] == 4
    assert not any("best τ" in said for said in notes(run))


@pytest.mark.parametrize(
    "settings", [{"perturb": "ods"}, {"perturb": "ods", "source": "extra", "alpha": 0.1}]
)
@pytest.mark.parametrize("step", [24 / 255, 0.00484, "match", None])
def test_the_line_can_be_pasted_into_a_recipe(tmp_path, settings, step):
    run = SweepRun.open(write_sweep(tmp_path / "a", [Point(0.85, 4.0, step)], settings=settings))
    method = tomllib.loads(f"[methods]\n{run.line(run.best)}")["methods"]["kd-ods"]
    assert method.items() >= {**settings, "alpha": 0.85, "temperature": 4}.items()
    line = run.line(run.best).removeprefix("kd-ods = ")
    distillation = read_recipe("digits", [f"methods={{mine={line}}}"]).distillation("mine")
    assert distillation is not None
    assert (distillation.alpha, distillation.temperature) == (0.85, 4.0)
    assert distillation.step_size == (24 / 255 if step is None else step)


@given(
    st.recursive(
        st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8", exclude_categories=("C",))),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex(r"\A[a-z_]{1,8}\Z"), inner, max_size=3),
        max_leaves=6,
    )
)  # fmt: skip
def test_toml_reads_back_as_what_was_written(value):
    assert tomllib.loads(f"key = {toml(value)}")["key"] == value


# The map


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((3, 4, 1), ("alpha", "temperature", "step_size")),
        ((3, 3, 3), ("alpha", "temperature", "step_size")),
        ((2, 1, 5), ("alpha", "step_size", "temperature")),
        ((2, 3, 5), ("temperature", "step_size", "alpha")),
    ],
)
def test_most_values_go_down_and_fewest_make_panels(counts, expected):
    names = ("alpha", "temperature", "step_size")
    assert layout({name: range(count) for name, count in zip(names, counts, strict=True)}) == expected


@given(st.lists(st.floats(0, 10), min_size=1, max_size=20))
def test_shades_follow_the_order_of_quality(values):
    shades = strengths(sorted(values))
    assert shades == sorted(shades, reverse=True)
    assert shades[0] == 1
    assert all(0 <= strength <= 1 for strength in shades)


def test_one_failed_point_does_not_give_all_others_the_same_colour():
    first, _, third, _, failed = strengths([0.10, 0.11, 0.12, 0.13, 90.0])
    assert first - third > 0.2
    assert failed == 0


# The page


def page_of(folder: Path) -> str:
    """The page of a sweep, without the files of its figures."""
    return sweep_report(SweepRun.open(folder)).html


def test_the_page_names_the_best_point_and_every_number_is_in_a_file(tmp_path):
    folder = write_sweep(tmp_path / "a", grid())
    page = write_report([folder]).read_text()
    best = (
        "Of 24 points, α 0.9, τ 4, η 1/255 has the lowest calibrated NLL on validation images: 0.170 ± 0.002."
    )
    assert f"{best} The teachers have 0.150." in page
    assert (
        "kd-ods = { perturb = &#34;ods&#34;, alpha = 0.9, temperature = 4, step_size = &#34;1/255&#34; }"
        in page
    )
    assert "The best η, 1/255, is the smallest value tried: try values beyond it." in page
    assert "The best τ" not in page
    made = {path.name for path in (folder / "figures").iterdir()}
    assert made == {*(f"sweep-map.{kind}" for kind in ("svg", "pdf", "csv")), "sweep.md", "sweep.tex"}
    with (folder / "figures" / "sweep-map.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24
    assert float(rows[0]["nll"]) == pytest.approx(0.17)


def test_equal_folders_give_equal_bytes(tmp_path):
    pages = [page_of(write_sweep(tmp_path / name / "run", grid())) for name in "ab"]
    assert pages[0] == pages[1]


def test_the_papers_own_table_stands_beside_a_sweep_of_its_experiment(tmp_path):
    points = grid((0.8, 0.9, 1.0), (2.0, 3.0, 4.0, 5.0), (None,))
    folder = write_sweep(tmp_path / "a", points, "cifar10-resnet32-be4", recipe=PAPER_RECIPE)
    page = write_report([folder]).read_text()
    assert "paper 0.174 ± 0.003" in page
    assert "paper 94.60 ± 0.14" in page
    assert "for orientation only: here kd-ods was swept" in page


def test_a_sweep_is_compared_whatever_its_students_own_setting(tmp_path):
    points = grid((0.8, 0.9), (2.0, 4.0), (None,))
    elsewhere = PAPER_RECIPE | {"student": PAPER_RECIPE["student"] | {"alpha": 0.5, "step_size": 0.1}}
    page = page_of(write_sweep(tmp_path / "a", points, recipe=elsewhere))
    assert "paper 0.174 ± 0.003" in page
    other = PAPER_RECIPE | {"student": PAPER_RECIPE["student"] | {"learning_rate": 0.3}}
    page = page_of(write_sweep(tmp_path / "b", points, recipe=other))
    assert "paper 0.174 ± 0.003" not in page


def test_one_seed_one_parameter_one_point_and_a_search_have_pages_too(tmp_path):
    once = write_report([write_sweep(tmp_path / "once", grid(), seeds=(0,))]).read_text()
    assert "Every point was trained once" in once
    line = write_report([write_sweep(tmp_path / "line", grid((0.9,), steps=(1 / 255,)))]).read_text()
    assert "lower is better" in line
    single = write_report([write_sweep(tmp_path / "single", grid((0.9,), (4.0,), (None,)))]).read_text()
    assert "only one point was tried." in single
    search = write_report([write_sweep(tmp_path / "search", scattered(30), trials=30)]).read_text()
    assert search.count('role="img"') == 3  # a panel for each parameter
    assert "is the smallest value tried" not in search


def test_a_folder_that_cannot_be_reported_raises_one_sentence(tmp_path):
    folder = write_sweep(tmp_path / "a", grid())
    with pytest.raises(StoreError, match="is a sweep, which has no test scores to compare"):
        write_report([folder, folder])
    (folder / "sweep.csv").write_text("model,seed\na,0\n")
    with pytest.raises(StoreError, match=r"sweep\.csv is damaged \(it has no column 'alpha'\)"):
        write_report([folder])
    cut = write_sweep(tmp_path / "b", grid())
    data = (cut / "sweep.csv").read_bytes()
    (cut / "sweep.csv").write_bytes(data[: data.rindex(b",", 0, len(data) // 2)])
    with pytest.raises(StoreError, match=r"sweep\.csv is damaged \(it ends within a line\)"):
        write_report([cut])
    other = write_sweep(tmp_path / "c", grid())
    (other / "sweep.json").write_text("{}")
    with pytest.raises(StoreError, match=r"sweep\.json is damaged \(the recipe needs the key 'recipe'\)"):
        write_report([other])
    unknown = write_sweep(tmp_path / "d", grid())
    text = (unknown / "sweep.csv").read_text()
    (unknown / "sweep.csv").write_text(text.replace("a0.9-t4-s1_255", "other"))
    with pytest.raises(StoreError, match=r"sweep\.csv is damaged \(recipe\.json has no method 'other'\)"):
        write_report([unknown])
    (folder / "sweep.csv").unlink()
    with pytest.raises(StoreError, match=r"sweep\.csv is not there: the sweep is not finished"):
        write_report([folder])


# In a browser


SEEN = """
(() => [...document.querySelectorAll("svg[role=img]")].map(svg => {
  const box = svg.getBoundingClientRect(), scale = svg.getScreenCTM().a;
  const texts = [...svg.querySelectorAll("text")];
  const sizes = texts.map(t => parseFloat(getComputedStyle(t).fontSize) * scale);
  return {name: svg.getAttribute("aria-label"), left: box.left, right: box.right,
          texts: texts.length, least: Math.min(...sizes),
          out: texts.filter(t => { const b = t.getBoundingClientRect();
                                   return b.left < box.left - 1 || b.right > box.right + 1; }).length};
}))()
"""


def test_every_map_is_readable_at_any_width_in_light_and_dark(tmp_path, browser):
    folders = {
        "grid": write_sweep(tmp_path / "grid", grid()),
        "wide": write_sweep(
            tmp_path / "wide", grid((0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0), tuple(range(1, 10)))
        ),
        "line": write_sweep(tmp_path / "line", grid((0.9,), steps=(1 / 255,))),
        "search": write_sweep(tmp_path / "search", scattered(30), trials=30),
    }
    for name, folder in folders.items():
        page = write_report([folder])
        for width, scheme in itertools.product((1280, 390), ("light", "dark")):
            browser.open(page, width, scheme)
            where = f"{name} at {width} pixels in {scheme}"
            sideways = browser.value("[document.documentElement.scrollWidth, window.innerWidth]")
            assert sideways[0] <= sideways[1], where
            for figure in browser.value(SEEN):
                assert figure["left"] >= 0, (where, figure)
                assert figure["right"] <= width, (where, figure)
                assert figure["least"] >= 8.5, (where, figure)
                assert figure["out"] == 0, (where, figure)
                assert figure["texts"] > 4, (where, figure)


def test_numbers_stand_out_on_their_cells_in_light_and_dark(tmp_path, browser):
    page = write_report([write_sweep(tmp_path / "a", grid())])
    for scheme in ("light", "dark"):
        browser.open(page, 1280, scheme)
        colours = browser.value(
            """(() => { const root = getComputedStyle(document.documentElement);
            const style = name => root.getPropertyValue(name);
            return {text: style("--ink"), cell: style("--ods"), paper: style("--paper")}; })()"""
        )
        text, cell, paper = (channels(colours[name].strip()) for name in ("text", "cell", "paper"))
        strongest = browser.value(
            """Math.max(...[...document.querySelectorAll("#figure-sweep-map svg use")].map(
            part => parseFloat(getComputedStyle(part).fillOpacity))
            .filter(opacity => 0 < opacity && opacity < 1))"""
        )
        assert 0.3 < strongest <= 0.5
        mixed = strongest * cell + (1 - strongest) * paper
        low, high = sorted((luminance(text), luminance(mixed)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (scheme, strongest)


def channels(colour: str) -> np.ndarray:
    return np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])


def luminance(colour: np.ndarray) -> float:
    """Relative luminance as WCAG 2 defines it."""
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
