"""The paper's numbers: a few of every table are typed here a second time, as printed."""

from __future__ import annotations

from typing import Any

import pytest

from polyphony.data import Augmentation
from polyphony.recipe import Schedule, read_recipe
from polyphony.report.paper import EXPERIMENTS, PaperExperiments, experiments_of, paper_rows, tuning

BE4 = "cifar10-resnet32-be4"

PRINTED = [
    # experiment, table, calibration, method, acc, nll, bs, ece, dee
    ("cifar10-resnet32-be4", None, "calibrated", "confods",
     "94.01 ± 0.19", "0.180 ± 0.001", "0.089 ± 0.001", "0.007 ± 0.001", "2.524 ± 0.080"),
    ("cifar10-resnet32-be8", None, "calibrated", "ods",
     "94.13 ± 0.08", "0.175 ± 0.003", "0.086 ± 0.001", "0.006 ± 0.002", "2.991 ± 0.322"),
    ("cifar100-wrn28x10-be4", None, "calibrated", "teachers", "82.52", "0.661", "0.247", "0.022", ""),
    ("cifar10-resnet32-be4", None, "standard", "scratch",
     "93.37 ± 0.11", "0.282 ± 0.003", "0.107 ± 0.001", "0.039 ± 0.001", "0.994 ± 0.001"),
    ("cifar100-wrn28x10-be4", None, "standard", "ods",
     "81.88 ± 0.32", "0.680 ± 0.016", "0.257 ± 0.006", "0.023 ± 0.003", "3.987 ± 1.325"),
    ("cifar100-wrn28x5-be4", None, "calibrated", "confods",
     "80.62 ± 0.25", "0.733 ± 0.007", "0.275 ± 0.003", "0.027 ± 0.001", ""),
    ("cifar100-wrn28x2-be4", None, "standard", "gaussian",
     "74.50 ± 0.17", "1.247 ± 0.012", "0.389 ± 0.004", "0.137 ± 0.003", ""),
    ("tinyimagenet-wrn28x5-be4", None, "standard", "ods", "65.98", "1.440", "0.460", "0.059", ""),
    ("cifar10-resnet32-be4", "corrupted", "standard", "clean",
     "72.68 ± 0.49", "1.485 ± 0.051", "0.455 ± 0.010", "0.196 ± 0.006", ""),
    ("cifar100-wrn28x10-be4", "corrupted", "standard", "confods",
     "54.19 ± 0.75", "2.083 ± 0.073", "0.610 ± 0.015", "0.101 ± 0.011", ""),
    ("cifar100-wrn28x10-mimo3", None, "calibrated", "ods", "81.17", "0.692", "0.267", "0.020", ""),
    ("cifar100-wrn28x10-mimo3", None, "standard", "ods", "81.17", "0.715", "0.270", "0.037", ""),
    ("cifar10-resnet32-be4", None, "calibrated", "adversarial", "93.32 ± 0.22", "0.194 ± 0.003", "", "", ""),
    ("cifar10-resnet32-end2-32", None, "calibrated", "endd", "93.49", "0.218", "0.102", "0.014", ""),
]  # fmt: skip


@pytest.mark.parametrize("printed", PRINTED, ids=lambda row: "-".join(filter(None, row[:4])))
def test_rows_are_as_printed(printed: tuple[Any, ...]):
    experiment, table, calibration, method, *expected = printed
    form = EXPERIMENTS[experiment].form
    row = PaperExperiments((experiment,), "").row(method, calibration, table, form)
    assert row is not None
    assert [getattr(row, column) for column in ("acc", "nll", "bs", "ece", "dee")] == expected


def test_every_row_of_every_table_is_there_once():
    counts: dict[str, int] = {}
    for row in paper_rows():
        counts[row.table] = counts.get(row.table, 0) + 1
    # six models × three blocks × two tables; 6 + 6 + 5 models × two; 6 × 2; 5 × two calibrations; 4 + 2
    assert counts == {
        "main": 36,
        "cross": 34,
        "corrupted": 12,
        "mimo": 10,
        "endd": 6,
        "text": 1,
        "rerun": 5,
        "ood": 2,  # the README of the authors' code; captions of the figures of entropies
    }
    keys = [(row.table, row.experiment, row.calibration, row.method) for row in paper_rows()]
    assert len(set(keys)) == len(keys)


def test_the_re_run_and_the_entropies_are_not_test_scores_of_the_paper():
    wide = PaperExperiments(("cifar100-wrn28x10-be4",), "")
    assert wide.row("confods", "calibrated").nll != wide.row("confods", "calibrated", "rerun").nll == "0.665"
    entropies = wide.row("teachers", "standard", "ood")
    assert (entropies.known_entropy, entropies.unknown_entropy, entropies.nll) == ("0.894", "2.093", "")
    assert wide.row("teachers", "standard").table == "main"


def test_accuracy_does_not_depend_on_calibration():
    by_model: dict[tuple[str, str], set[str]] = {}
    for row in paper_rows():
        if row.table in ("main", "cross", "mimo"):
            by_model.setdefault((row.experiment, row.method), set()).add(row.acc)
    assert all(len(values) == 1 for values in by_model.values())


def test_tuning_tables_are_as_printed():
    cells = {(t.experiment, t.alpha, t.temperature): (t.acc, t.nll) for t in tuning()}
    assert len(cells) == 4 * 3 + 5
    assert cells["cifar10-resnet32-be4", 0.9, 4] == ("94.60 ± 0.14", "0.174 ± 0.003")
    assert cells["cifar10-resnet32-be4", 0.8, 2] == ("94.67 ± 0.18", "0.169 ± 0.005")
    assert cells["cifar100-wrn28x10-be4", 0.9, 1] == ("80.29", "0.757")


def experiments(base: str, *overrides: str) -> tuple[str, ...]:
    """The paper's experiments that a recipe reproduces, by its settings alone."""
    paper = experiments_of(read_recipe(base, ["name=mine", *overrides]))
    return paper.names if paper else ()


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if "end2" not in name])
def test_a_recipe_with_the_papers_settings_is_compared_whatever_its_name(name: str):
    assert experiments(name) == (name,)
    assert experiments(name, "student.form=hydra") == ()


def test_a_recipe_of_several_forms_is_several_experiments():
    methods = "methods={kd={perturb='clean'}, end2={perturb='clean', form='dirichlet'}}"
    both = experiments(BE4, methods)
    assert both == (BE4, "cifar10-resnet32-end2-4")
    assert experiments("cifar10-resnet32-end2-16") == ("cifar10-resnet32-end2-16",)
    paper = PaperExperiments(both, "")
    assert paper.row("clean", "calibrated").nll == "0.188 ± 0.003"  # type: ignore[union-attr]
    assert paper.row("endd", "calibrated", form="dirichlet").nll == "0.260"  # type: ignore[union-attr]
    assert paper.row("endd", "calibrated") is None
    assert paper.row("clean", "calibrated", form="hydra") is None


def test_a_recipe_that_is_part_of_an_experiment_is_recognised_by_its_name():
    paper = experiments_of(read_recipe("cifar10-resnet32-adversarial", ["data.limit=500"]))
    assert paper is not None
    assert paper.names == (BE4,)
    assert paper.departures == ("only a part of the data is used",)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data.limit=5000", "only a part of the data is used"),
        ("data.resolution=16", "the images are resized"),
        ("data.name=digits", "the data are not cifar10"),
        ("members=5", "there are 5 members"),
        ("teachers.network.depth=8", "the teachers are another network; the student is another network"),
        ("teachers.network.width=8", "the teachers are another network; the student is another network"),
        ("student.network={kind='resnet', depth=20}", "the student is another network"),
        ("student.form=hydra", "the student has another form"),
        ("student.form={kind='batch_ensemble', factor_std=0.02}", "the members start differently"),
        ("student.start=teacher", "the students start from a teacher"),
        ("data.valid=25000", "the validation images are others"),
        ("data.augment={pad=0, flip=false}", "the augmentation is different"),
        ("student.optimizer=adamw", "the students' optimiser or its schedule is different"),
        ("student.momentum=0", "the students' optimiser or its schedule is different"),
        ("teachers.schedule=cosine", "the teachers' optimiser or its schedule is different"),
        ("student.epochs=12", "the students train for 12 epochs, not 250"),
        ("teachers.epochs=12", "the teachers train for 12 epochs, not 200"),
        ("teachers.batch=64", "the teachers learn in batches of 64, not 512"),
        ("student.batch=64", "the students learn in batches of 64, not 128"),
        ("student.learning_rate=0.05", "the students have a learning rate of 0.05, not 0.1"),
        ("student.weight_decay=0.0", "the students have a weight decay of 0, not 0.0004"),
        ("student.alpha=0.8", "α is 0.8, not 0.9"),
        ("student.temperature=1.0", "τ is 1, not 4"),
        ("student.step_size=2/255", "η is 2/255, not 1/255"),
        ("student.step_size=match", "η is match, not 1/255"),
    ],
)
def test_other_settings_have_no_paper_numbers_unless_the_recipe_has_the_name(setting: str, words: str):
    assert experiments(BE4, setting) == ()
    named = experiments_of(read_recipe(BE4, [setting]))
    assert named is not None
    assert "; ".join(named.departures) == words


def test_settings_that_are_left_free_are_not_compared():
    elsewhere = ["name=mine", "student.alpha=0.5", "student.temperature=2"]
    assert experiments_of(read_recipe(BE4, elsewhere), free=("alpha", "temperature")) is not None
    assert experiments_of(read_recipe(BE4, elsewhere), free=("alpha",)) is None
    assert experiments_of(read_recipe(BE4, elsewhere), BE4, free=("alpha",)) is not None


def test_coarse_classes_are_not_the_papers():
    assert experiments("cifar100-wrn28x10-be4", "data.coarse=true") == ()


R32 = {"kind": "resnet", "depth": 32, "width": 16, "stride": 1}
WIDE = {width: {"kind": "wide_resnet", "depth": 28, "widen": width} for width in (2, 5, 10)}
# The settings of the paper's appendix. Data: validation images, padding, and the teachers' schedule.
DATA = {
    "cifar10": (5000, 4, {"epochs": 200, "batch": 512, "learning_rate": 0.4, "weight_decay": 4e-4}),
    "cifar100": (5000, 4, {"epochs": 300, "batch": 256, "learning_rate": 0.2, "weight_decay": 5e-4}),
    "tinyimagenet": (10000, 8, {"epochs": 300, "batch": 512, "learning_rate": 0.4, "weight_decay": 5e-4}),
}
AT_4, AT_1 = ({"alpha": 0.9, "temperature": t, "step_size": 1 / 255} for t in (4, 1))
RESNET = {"epochs": 250, "weight_decay": 4e-4, **AT_4}
CROSS = {"batch": 64, "learning_rate": 0.05, "weight_decay": 5e-4, **AT_1}
END2 = {f"cifar10-resnet32-end2-{m}": ("cifar10", m, R32, R32, "dirichlet", {}) for m in (4, 8, 16, 32)}
# data, members, the teachers' network, the student's network and form, and its settings that are stated
APPENDIX: dict[str, tuple[str, int, dict[str, Any], dict[str, Any], str, dict[str, float]]] = {
    BE4: ("cifar10", 4, R32, R32, "batch_ensemble", {"batch": 128, "learning_rate": 0.1, **RESNET}),
    "cifar10-resnet32-be8": (
        "cifar10", 8, R32, R32, "batch_ensemble", {"batch": 64, "learning_rate": 0.05, **RESNET}
    ),
    "cifar100-wrn28x10-be4": ("cifar100", 4, WIDE[10], WIDE[10], "batch_ensemble", CROSS),
    "cifar100-wrn28x2-be4": ("cifar100", 4, WIDE[10], WIDE[2], "batch_ensemble", CROSS),
    "cifar100-wrn28x5-be4": ("cifar100", 4, WIDE[10], WIDE[5], "batch_ensemble", CROSS),
    "tinyimagenet-wrn28x5-be4": ("tinyimagenet", 4, WIDE[10], WIDE[5], "batch_ensemble", CROSS),
    "cifar100-wrn28x10-mimo3": ("cifar100", 3, WIDE[10], WIDE[10], "mimo", AT_1),
    **END2,
}  # fmt: skip


@pytest.mark.parametrize("name", [*EXPERIMENTS, "cifar10-resnet32-adversarial"])
def test_the_shipped_recipes_have_the_settings_of_the_papers_appendix(name: str):
    recipe = read_recipe(name)
    experiment = {"cifar10-resnet32-adversarial": BE4}.get(name, name)
    data, members, teacher, student, form, settings = APPENDIX[experiment]
    valid, pad, schedule = DATA[data]
    assert (recipe.data.name, recipe.data.valid, recipe.members) == (data, valid, members)
    assert recipe.data.augment == Augmentation(pad=pad, flip=True)
    whole = (recipe.data.limit, recipe.data.per_class, recipe.data.test, recipe.data.resolution)
    assert not any(whole)
    assert recipe.teachers.network_of(0).model_dump() == teacher
    assert recipe.student_network.model_dump() == student
    assert EXPERIMENTS[experiment].form == form
    assert set(EXPERIMENTS[experiment].stated) == set(settings)
    for part, stated in ((recipe.teachers, schedule), (recipe.student, settings)):
        assert {key: getattr(part, key) for key in stated} == stated
        for key in ("optimizer", "momentum", "schedule", "warm_up", "clip"):
            assert getattr(part, key) == Schedule.model_fields[key].default
    paper = experiments_of(recipe)
    assert paper is not None
    assert experiment in paper.names
    assert paper.departures == ()


def test_students_with_other_settings_are_not_those_of_the_papers_comparison_with_end2():
    paper = experiments_of(read_recipe("cifar10-resnet32-end2-4", ["student.temperature=1"]))
    assert paper is not None
    assert paper.names == ("cifar10-resnet32-end2-4",)
    assert paper.row("confods", "calibrated") is None


def test_every_experiment_has_rows():
    assert set(EXPERIMENTS) <= {row.experiment for row in paper_rows()}
