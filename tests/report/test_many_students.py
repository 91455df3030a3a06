"""Sixteen methods of every form: tables and figures stay readable; a single network is not a collapse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from polyphony.recipe import read_recipe, shipped
from polyphony.report import Run, report_of
from polyphony.report.chart import LINES, Chart, grouped
from polyphony.report.figures.diversity import student_diversity, teacher_diversity
from polyphony.report.figures.jacobians import jacobian_matching, scratch_references
from polyphony.report.figures.members import member_predictions
from polyphony.report.figures.shift import corruption_boxes
from polyphony.report.figures.training import learning_curves
from polyphony.report.paper import EXPERIMENTS, experiments_of
from polyphony.report.score_tables import members_table, price_table, score_table
from polyphony.report.style import assign, looks_of
from polyphony.report.verdict import verdict

ONE_NETWORK = ["one-network", "mean-kd", "latentbe", "latentbe-diversify"]


@pytest.fixture(scope="module")
def run(many: Path) -> Run:
    return Run.open(many)


def rows_of(table: Any) -> dict[str, dict[str, str]]:
    return {
        row[0].text: dict(zip(table.header, (cell.text for cell in row), strict=True)) for row in table.rows
    }


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def entropy(probs: np.ndarray) -> np.ndarray:
    return -(probs * np.log(probs)).sum(-1)


# The table


def test_the_table_says_what_each_student_is_and_costs(run: Run):
    rows = rows_of(price_table(run))
    rows["teachers"] = rows.pop("teachers (3 networks)")
    assert set(rows) == set(run.models)
    names = ("teachers", "best teacher", "kd", "mimo-ods", "one-network", "end2")
    assert [rows[name]["Form"] for name in names] == [
        "deep ensemble",
        "plain network",
        "BatchEnsemble",
        "MIMO",
        "one network",
        "Dirichlet (EnD²)",
    ]
    assert [rows[name]["Members"] for name in ("teachers", "kd", "latentbe")] == ["3", "3", "1"]
    assert [rows[name]["Parameters"] for name in ("teachers", "hydra-ods")] == ["3.0 k", "1.0 k"]
    # three of the five teachers, 20 s each; kd is the second method: 35 s and 36 s
    assert (rows["teachers"]["Training"], rows["kd"]["Training"]) == ("60 s", "36 s")
    assert rows["kd"]["× teachers"] == f"{35.5 / 60:.2f}"
    assert [rows["kd"][name] for name in ("ms, 1 image", "ms, 64 images")] == ["1.2", "76.8"]
    assert [rows[name]["× one teacher"] for name in ("teachers", "kd")] == ["3.00", "1.20"]
    assert rows["kd"]["File"] == "0.006 MB"


def test_the_table_has_naive_numbers_of_diversity(run: Run, many: Path):
    rows = rows_of(members_table(run))
    shares, information = [], []
    for seed in ("0", "1"):
        probs = softmax(load_file(many / "predictions" / "kd-ods" / seed / "test.safetensors")["logits"])
        named = probs.argmax(-1)
        pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
        shares.append(np.mean([(named[i] != named[j]).mean() for i, j in pairs]))
        information.append((entropy(probs.mean(0)) - entropy(probs).mean(0)).mean())
    assert rows["kd-ods"]["Disagree"] == f"{100 * np.mean(shares):.1f} %"
    assert rows["kd-ods"]["Mutual information"] == f"{np.mean(information):.3f}"
    assert not set(ONE_NETWORK) & rows.keys()
    kld = run.scored("teachers")[0].kld
    assert rows["kd-ods"]["Follows own teacher ↑"] == f"{100 * 0.2 / kld:.0f}\xa0%"
    assert rows["scratch"]["Follows own teacher ↑"] == "–"


def test_one_network_with_a_distribution_has_its_information(run: Run, many: Path):
    """A Dirichlet's, against many draws from it."""
    rng, samples = np.random.default_rng(0), []
    for seed in ("0", "1"):
        logits = load_file(many / "predictions" / "end2" / seed / "test.safetensors")["logits"][0]
        for alpha in np.exp(logits.astype(np.float64)):
            draws = np.clip(rng.dirichlet(alpha, 400), 1e-300, None)
            samples.append(entropy(draws.mean(0)) - entropy(draws).mean(0))
    shown = rows_of(members_table(run))["end2"]
    assert float(shown["Mutual information"]) == pytest.approx(np.mean(samples), abs=0.004)
    assert float(shown["mean-KLD"]) > 0
    assert shown["Disagree"] == "–"


def test_one_network_has_no_divergence_in_the_main_table(run: Run):
    rows = rows_of(score_table(run, "calibrated"))
    assert [rows[name]["mean-KLD"] for name in ONE_NETWORK] == ["–"] * 4


# The words


def test_a_single_network_is_not_said_to_have_members_that_are_alike(run: Run):
    result = verdict(run)
    single = [
        name for name, words in result.students.items() if words.endswith("one network without members.")
    ]
    assert sorted(single) == sorted([*ONE_NETWORK, "end2"])
    alike = " ".join(words for words in result.notes if "alike" in words)
    assert not any(f" {name}" in alike for name in single)


def test_a_form_of_the_users_own_is_called_by_its_name_and_its_code_is_not_run(small_run: Path):
    path = small_run / "recipe.json"
    facts = json.loads(path.read_text())
    own = {"kind": "python", "name": "nobody_has_this:OwnForm"}
    facts["recipe"]["methods"]["kd"]["form"] = own
    facts["recipe"]["methods"]["kd-ods"]["perturb"] = {"kind": "python", "name": "nobody_has_this:Twist"}
    path.write_text(json.dumps(facts))
    run = Run.open(small_run)
    assert rows_of(price_table(run))["kd"]["Form"] == "OwnForm"
    assert run.perturbation("kd-ods") == "Twist"
    assert "OwnForm" in report_of(run).html


# The figures


@given(st.integers(0, 40), st.booleans())
def test_panels_show_every_student_once_and_the_teachers_in_each(count: int, with_teachers: bool):
    others = [f"m{place}" for place in range(count)]
    look = assign([(name, None) for name in others])
    shown: list[list[str]] = []

    def draw(axes: Any, models: list[str]) -> None:
        shown.append(models)

    panels = grouped("NLL", [*(["teachers"] if with_teachers else []), *others], look, draw, 1.0)
    for panel in panels:
        panel.draw(None)  # type: ignore[arg-type]
    assert [name for group in shown for name in group if name != "teachers"] == others
    assert all(("teachers" in group) == with_teachers for group in shown)
    sizes = [len(group) - with_teachers for group in shown]
    assert max(sizes) <= LINES
    assert max(sizes) - min(sizes) <= 1
    assert [bool(panel.legend) for panel in panels] == [len(panels) > 1] * len(panels)


@pytest.mark.parametrize(("title", "first"), [("", "1 of 2"), ("NLL", "NLL, 1 of 2")])
def test_panels_of_one_chart_are_numbered(title: str, first: str):
    names = [f"m{place}" for place in range(LINES + 1)]
    look = assign([(name, None) for name in names])
    panels = grouped(title, names, look, lambda axes, models: None, 1.0)
    assert panels[0].title == first
    assert grouped(title, names[:1], look, lambda axes, models: None, 1.0)[0].title == title


def test_no_panel_of_lines_has_too_many_models(run: Run):
    charts = [
        learning_curves(run),
        *corruption_boxes(run),
        *jacobian_matching(run)[:1],
    ]
    for chart in charts:
        assert isinstance(chart, Chart)
        for panel in chart.panels:
            assert 0 < len(panel.legend) <= LINES + 1
        named = {look.label for panel in chart.panels for look in panel.legend}
        assert named == {look.label for look in chart.legend}


def test_learning_curves_show_diversity_where_logs_have_it(run: Run):
    chart = learning_curves(run)
    assert isinstance(chart, Chart)
    rows = [row for row in chart.numbers.rows if row[0] == "valid_kld"]
    assert {row[1] for row in rows} == set(run.methods) - {*ONE_NETWORK, "end2"}
    # kd's two logs: (35 and 36) / 100 / (1 + epoch)
    means = [row[3] for row in rows if row[1] == "kd"]
    assert means == pytest.approx([0.355 / n for n in (1, 2, 3, 4)])


def test_the_figure_of_members_has_the_best_students_with_members(run: Run):
    chart = member_predictions(run)
    assert isinstance(chart, Chart)
    nll = {m: np.mean([s.nll for s in run.scored(m)]) for m in run.methods}
    best = sorted((m for m in run.methods if m not in [*ONE_NETWORK, "end2"]), key=lambda m: nll[m])[:6]
    assert {look.label for look in chart.legend} == {"teachers", *best}
    assert {row[1] for row in chart.numbers.rows} == set(run.trained)


def test_methods_that_perturb_alike_share_a_panel(run: Run):
    groups = [names for names, _ in run.perturbed_training]
    assert ["kd-ods", "mimo-ods", "hydra-ods"] in groups
    assert ["kd-ods-external"] in groups
    chart = teacher_diversity(run)
    assert isinstance(chart, Chart)
    assert "training, as in kd-ods, mimo-ods, hydra-ods" in [panel.title for panel in chart.panels]


def test_students_without_members_have_no_diversity_plot(run: Run):
    chart = student_diversity(run)
    assert isinstance(chart, Chart)
    titles = [panel.title for panel in chart.panels]
    assert titles == [method for method in run.methods if method not in ONE_NETWORK]
    assert all(name in chart.reading for name in ONE_NETWORK)


def test_jacobians_are_compared_with_the_same_form_from_scratch(many: Path, tmp_path: Path):
    facts = json.loads((many / "recipe.json").read_text())
    facts["recipe"]["methods"]["kd-mixup"] = {"form": {"kind": "mimo"}}
    (tmp_path / "recipe.json").write_text(json.dumps(facts))
    (tmp_path / "scores.csv").write_text((many / "scores.csv").read_text())
    against = scratch_references(Run(tmp_path), ["scratch", "kd", "mimo-ods", "hydra-ods", "kd-mixup"])
    assert against == {
        "scratch": "scratch", "kd": "scratch", "mimo-ods": "kd-mixup", "hydra-ods": "scratch",
        "kd-mixup": "kd-mixup",
    }  # fmt: skip


def test_sixteen_methods_look_different(run: Run):
    looks = looks_of(run)
    assert len({look.ink for look in looks.values()}) == 17
    many = assign([(f"m{place}", "ods") for place in range(40)])
    assert len({(look.ink, look.marker) for look in many.values()}) == 42


# The paper's recipes


@pytest.mark.parametrize("name", [*EXPERIMENTS, "cifar10-resnet32-adversarial"])
def test_every_recipe_of_the_paper_is_recognised_by_its_settings(name: str):
    assert name in shipped()
    paper = experiments_of(read_recipe(name, ["name=mine"]))
    assert paper is not None
    assert paper.departures == ()
    assert {"cifar10-resnet32-adversarial": "cifar10-resnet32-be4"}.get(name, name) in paper.names
