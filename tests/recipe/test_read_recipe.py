from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

import pytest
from pydantic import ValidationError

from polyphony.distill.perturb import ODS, Adversarial, Chain, Clean, Diversify, Gaussian, Mixup
from polyphony.ensembles import (
    MIMO,
    BatchEnsemble,
    DeepEnsemble,
    Dirichlet,
    Hydra,
    LatentBE,
    LatentFactor,
    LoRAEnsemble,
    Separate,
    Single,
)
from polyphony.nn import ResNet, WideResNet, resnet
from polyphony.recipe import Blueprint, RecipeError, check, read_recipe, shipped
from polyphony.recipe.networks import ResNetTable

SMALL = """
members = 2

[data]
name = "digits"

[teachers]
network = { kind = "resnet", depth = 8 }
epochs = 3
batch = 20
learning_rate = 0.1

[student]
epochs = 4
batch = 20
learning_rate = 0.05
alpha = 0.7
step_size = "32/255"

[methods]
scratch = {}
kd = { perturb = "clean" }
kd-ods = { perturb = "ods", temperature = 2, step_size = 0.5 }
"""


STUDENT = BatchEnsemble(resnet(8, 4, 1, 2), 2)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def complaint(source: str | Path, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        read_recipe(source, overrides)
    text = str(caught.value)
    assert "\n" not in text
    assert "pydantic" not in text
    return text


def test_a_recipe_is_what_its_file_says(small):
    recipe = read_recipe(small)
    assert recipe.name == "small"
    assert (recipe.members, recipe.seeds, recipe.precision) == (2, (0,), "float32")
    assert (recipe.teachers.epochs, recipe.student.epochs) == (3, 4)
    assert recipe.student.step_size == pytest.approx(32 / 255)
    assert list(recipe.methods) == ["scratch", "kd", "kd-ods"]


def test_data_paths_are_relative_to_the_recipe(small, tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()  # a known name means the data set all the same
    (tmp_path / "mine.npz").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (elsewhere / "theirs.npz").touch()
    names = ("digits", "mine.npz", "theirs.npz", "nowhere.npz")
    read = [read_recipe(small, [f"data.name={name}"]).data for name in names]
    assert [data.name for data in read] == ["digits", str(tmp_path / "mine.npz"), *names[2:]]
    assert [data.label for data in read] == list(names)


def test_a_recipe_cannot_be_changed(small):
    recipe = read_recipe(small)
    with pytest.raises(ValidationError, match="frozen"):
        recipe.members = 3


def test_networks_are_built_as_named(small):
    teacher = read_recipe(small).teachers.network.build(5, 1)
    assert isinstance(teacher, ResNet)
    overrides = [f"teachers.network={{kind='wide_resnet', depth={depth}, widen=1}}" for depth in (10, 16)]
    wide = [read_recipe(small, [text]).teachers.network.build(5, 2) for text in overrides]
    assert all(isinstance(network, WideResNet) for network in wide)
    assert [len(network.stages[0]) for network in wide] == [1, 2]
    assert wide[0].stem.in_channels == 2


@pytest.mark.parametrize(
    ("name", "perturbation"),
    [
        ("clean", Clean()),
        ("gaussian", Gaussian(0.25)),
        ("ods", ODS(0.25)),
        ("confods", ODS(0.25, scale_by_confidence=True)),
        ("adversarial", Adversarial(0.25)),
        ("mixup", Mixup()),
        ("diversify", Diversify(0.25)),
        ("mixup+ods", Chain((Mixup(), ODS(0.25)))),
    ],
)
def test_a_perturbation_has_the_class_of_its_name(small, name, perturbation):
    method = read_recipe(small, [f"methods.kd.perturb={name}"]).distillation("kd")
    assert method.perturbation(0.25) == perturbation


@pytest.mark.parametrize(
    ("form", "kind", "members"),
    [
        ("batch_ensemble", BatchEnsemble, 2),
        ("mimo", MIMO, 2),
        ("hydra", Hydra, 2),
        ("single", Single, 1),
        ("latent_be", LatentBE, 1),
        ("dirichlet", Dirichlet, 1),
        ("proxy_dirichlet", Dirichlet, 1),
        ("separate", Separate, 2),
        ("low_rank", LoRAEnsemble, 2),
        ("dlf", LatentFactor, 16),
    ],
)
def test_a_student_has_the_class_of_its_form(small, form, kind, members):
    recipe = read_recipe(small, [f"methods.kd.form={form}"])
    blueprint = Blueprint(ResNetTable(kind="resnet", depth=8, width=2), 4, (2, 8, 8))
    student = recipe.form("kd").student(blueprint, 2, None)
    assert isinstance(student, kind)
    assert recipe.form("kd").predictors(2) == members
    assert recipe.form("scratch").kind == "batch_ensemble"
    assert recipe == read_recipe(small, [f"methods.kd.form={{kind = '{form}'}}"])


def test_a_method_may_set_its_own_schedule(small):
    recipe = read_recipe(small, ["methods.kd.learning_rate=0.001", "methods.kd.epochs=7"])
    own, other = recipe.schedule("kd"), recipe.schedule("scratch")
    assert (own.learning_rate, own.epochs) == (0.001, 7)
    assert (other.learning_rate, other.epochs) == (0.05, recipe.student.epochs)
    assert own.epochs != other.epochs
    assert recipe.distillation("kd") == read_recipe(small).distillation("kd")


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("methods.kd.form=mino", "methods.kd.form has no kind 'mino'; did you mean 'mimo'?"),
        ("methods.kd.form.batch=2", "methods.kd.form needs the key 'kind': one of batch_ensemble, mimo"),
        ("methods.kd={form = {kind = 'mimo', batch_repeat = 2}}", "did you mean 'batch_repetition'?"),
        ("methods.scratch.form=latent_be", "methods.scratch: a latent_be student learns from teachers"),
        ("methods.scratch.form=dirichlet", "methods.scratch: a dirichlet student learns from teachers"),
        ("methods.kd.perturb=odss", "methods.kd.perturb has no kind"),
        ("methods.kd.perturb=mixup+", "methods.kd.perturb has no kind"),
        ("methods.kd={perturb = 'diversify', step_size = 'match'}", "methods.kd.step_size cannot be matched"),
        ("members=1", "methods.kd-ods.step_size cannot be matched: one teacher does not disagree"),
        ("methods.kd={perturb = 'diversify', form = 'single'}", "needs a student with two members or more"),
        (
            "methods.kd={perturb = 'mixup', source = 'extra'}",
            "methods.kd.source needs a perturbation that takes directions",
        ),
        (
            "methods.kd={perturb = 'gaussian+mixup', passes = 'one'}",
            "mixes images but not their labels: give passes = 'two' or alpha = 1",
        ),
        (
            "methods.kd={perturb = 'mixup', form = 'latent_be'}",
            "mixes images but not their labels: give alpha = 1",
        ),
        (
            "methods.scratch.temperature=4",
            "methods.scratch.temperature has no effect: without perturb a student",
        ),
        ("methods.scratch.step_size=search", "methods.scratch.step_size has no effect: without perturb"),
        (
            "methods.kd={perturb = 'clean', step_size = 0.1}",
            "methods.kd.step_size has no effect: 'clean' takes",
        ),
        (
            "methods.kd={perturb = {kind = 'ods', step_size = 0.1}, step_size = 0.2}",
            "methods.kd.step_size has no effect",
        ),
        (
            "methods.kd={perturb = 'ods', form = 'latent_be', passes = 'two'}",
            "methods.kd.passes has no effect: a latent_be student trains in one pass",
        ),
        (
            "methods.kd={perturb = 'ods', form = 'dirichlet', alpha = 0.5}",
            "methods.kd.alpha has no effect: a dirichlet student has a loss of its own",
        ),
        (
            "methods.kd={perturb = 'ods', form = 'dlf', passes = 'one'}",
            "methods.kd.passes has no effect: a dlf student has a loss of its own",
        ),
        (
            "methods.kd={form = 'dirichlet', temperature = 4}",
            "methods.kd: a dirichlet student learns from teachers: give perturb",
        ),
        (
            "methods.kd.perturb={kind = 'confods', scale_by_confidence = false}",
            "'confods' scales by confidence",
        ),
        ("methods.kd.learning_rate=1e300", "methods.kd.learning_rate must be less than"),
    ],
)
def test_an_impossible_form_or_perturbation_is_one_sentence(small, override, sentence):
    matched = ["methods.kd-ods.step_size=match"] if override == "members=1" else []
    assert sentence in complaint(small, override, *matched)


@pytest.mark.parametrize(
    "method",
    [
        {"temperature": 4.0},
        {"perturb": "mixup", "passes": "one"},
        {"perturb": "ods", "step_size": 4.0},
        {"perturb": [{"kind": "ods", "step_size": 4.0}]},
    ],
)
def test_a_stored_recipe_opens_with_settings_that_a_new_one_may_not_have(small, method):
    table = read_recipe(small).model_dump(mode="json", exclude_none=True) | {"methods": {"a": method}}
    with pytest.raises(RecipeError):
        check(table, "a recipe")
    stored = check(table, "recipe.json", stored=True).model_dump(mode="json", exclude_none=True)
    assert check(stored, "recipe.json", stored=True).methods.keys() == {"a"}


def test_settings_that_exclude_each_other_are_one_sentence(small):
    nesterov = "student.optimizer={kind = 'sgd', nesterov = true}"
    assert "Nesterov momentum needs a momentum above 0" in complaint(small, nesterov, "student.momentum=0")
    alone = ("members=1", "methods={kd = {form = 'dlf', perturb = 'clean'}}")
    assert "methods.kd: a dlf student needs 2 teachers or more" in complaint(small, *alone)


def test_only_parts_that_take_a_source_have_it(small):
    chain = "methods={kd = {perturb = 'mixup+adversarial+ods', source = 'extra', alpha = 1}}"
    method = read_recipe(small, ["teachers.extra=1", chain]).distillation("kd")
    source = DeepEnsemble([STUDENT.member(0)])
    parts = method.perturbation(0.1, source).perturbations
    assert [type(part).__name__ for part in parts] == ["Mixup", "Adversarial", "WithSource"]
    assert parts[2].source is source is method.perturbation(0.1, source).source


def test_a_file_may_begin_with_the_mark_of_windows_editors(small):
    small.write_bytes(b"\xef\xbb\xbf" + small.read_bytes())
    assert read_recipe(small).members == 2


@pytest.mark.parametrize(
    "method",
    [
        "{perturb = 'mixup'}",
        "{perturb = 'mixup', passes = 'one', alpha = 1}",
        "{perturb = 'mixup', form = 'latent_be', alpha = 1}",
        "{perturb = 'mixup', form = 'dirichlet'}",  # it ignores labels
    ],
)
def test_mixed_images_are_accepted_where_no_label_of_theirs_counts(small, method):
    read_recipe(small, [f"methods.kd={method}"])


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_recipe_resolves_by_name(name):
    recipe = read_recipe(name)
    assert recipe.name == name
    for method, written in recipe.methods.items():
        assert (recipe.distillation(method) is None) == (written.perturb is None)


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_recipe_states_its_cost_and_what_to_expect(name):
    header = "".join(takewhile(lambda line: line[0] == "#", shipped()[name].read_text().splitlines(True)))
    for heading in ("Cost:", "Expect:"):
        assert re.search(rf"{heading} +\S*[a-z0-9]", header)
    assert not re.search("COST|EXPECT", header)


def test_the_demo_is_shipped():
    assert {"digits", "demo"} <= shipped().keys()
    digits = read_recipe("digits")
    assert digits.data.name == "digits"
    assert len(digits.seeds) == 5


# Overrides


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("members=3", lambda r: r.members == 3),
        ("seeds=[4, 5]", lambda r: r.seeds == (4, 5)),
        ("student.alpha=0.25", lambda r: r.student.alpha == 0.25),
        ("student.alpha = 1", lambda r: r.student.alpha == 1.0),
        ("student.step_size=1/255", lambda r: r.student.step_size == pytest.approx(1 / 255)),
        ('student.step_size="8/255"', lambda r: r.student.step_size == pytest.approx(8 / 255)),
        ("student.step_size=match", lambda r: r.student.step_size == "match"),
        ("data.name=cifar10", lambda r: r.data.name == "cifar10"),
        ("data.augment={pad=1}", lambda r: r.data.augment.pad == 1 and r.data.augment.flip),
        ("data.augment.flip=false", lambda r: r.data.augment.flip is False),
        ("methods.new.perturb=confods", lambda r: r.methods["new"].label == "confods"),
        ("teachers.network.width=4", lambda r: r.teachers.network.width == 4),
        ("student.network={kind='resnet', depth=14}", lambda r: r.student_network.depth == 14),
        ("name=other", lambda r: r.name == "other"),
    ],
)
def test_an_override_sets_one_key(small, override, read):
    assert read(read_recipe(small, [override]))


def test_later_overrides_win_and_the_file_does_not_change(small):
    assert read_recipe(small, ["members=3", "members=5"]).members == 5
    assert small.read_text() == SMALL


def test_a_student_has_the_teachers_network_unless_it_has_its_own(small):
    assert read_recipe(small).student_network == read_recipe(small).teachers.network


def test_a_method_has_the_students_values_for_unset_keys(small):
    recipe = read_recipe(small)
    kd, ods = recipe.distillation("kd"), recipe.distillation("kd-ods")
    assert (kd.perturb[0].kind, kd.alpha, kd.temperature) == ("clean", 0.7, 4.0)
    assert kd.step_size == 0, "a clean input takes no step, whatever the student's step size"
    assert recipe.distillation("scratch") is None
    assert (ods.perturb[0].kind, ods.alpha, ods.temperature, ods.step_size) == ("ods", 0.7, 2.0, 0.5)


@pytest.mark.parametrize("override", ["members", "=3", "", "student.=3"])
def test_an_override_without_key_or_value_is_rejected(small, override):
    assert "a change is key=value" in complaint(small, override)


def test_an_override_below_a_value_is_rejected(small):
    assert "'members' is a value, not a table" in complaint(small, "members.deep=3")


# Faults


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("student.alfa=1", "small.toml: student has no key 'alfa'; did you mean 'alpha'?"),
        ("teachers.weights=['a.pt', 'b.pt']", "small.toml: teachers has no key 'epochs', because pretrained"),
        (
            "student.optimizer={kind = 'adamw', betas = [0.9]}",
            "small.toml: student.optimizer.betas has too few",
        ),
        ("teachers.epoch=1", "small.toml: teachers has no key 'epoch'; did you mean 'epochs'?"),
        ("member=4", "small.toml: a recipe has no key 'member'; did you mean 'members'?"),
        ("data.augment.pat=1", "small.toml: data.augment has no key 'pat'; did you mean 'pad'?"),
        ("teachers.network.dept=8", "small.toml: teachers.network has no key 'dept'; did you mean 'depth'?"),
        (
            "teachers.network.widen=2",
            "small.toml: teachers.network has no key 'widen'; did you mean 'width'?",
        ),
        ("methods.kd.pertub=ods", "small.toml: methods.kd has no key 'pertub'; did you mean 'perturb'?"),
        ("data.qqq=1", "small.toml: data has no key 'qqq'; known are augment, channels,"),
        (
            "teachers.network.kind=resent",
            "small.toml: teachers.network has no kind 'resent'; did you mean 'r",
        ),
        (
            "teachers.network={depth=8}",
            "small.toml: teachers.network needs the key 'kind': one of resnet, wide",
        ),
        ("teachers.network={kind='resnet'}", "small.toml: teachers.network needs the key 'depth'"),
    ],
)
def test_a_misspelt_or_missing_key_is_named_with_the_nearest_right_one(small, override, sentence):
    assert complaint(small, override).startswith(sentence)


@pytest.mark.parametrize(
    ("override", "place", "value"),
    [
        ("student.alpha=2", "student.alpha", "2"),
        ("student.alpha=-0.1", "student.alpha", "-0.1"),
        ("student.alpha=nan", "student.alpha", "nan"),
        ("student.alpha=true", "student.alpha", "True"),
        ("student.temperature=0", "student.temperature", "0"),
        ("student.temperature=inf", "student.temperature", "inf"),
        ("student.form={kind = 'batch_ensemble', member_norm = 1}", "student.form.member_norm", "1"),
        ("members=0", "members", "0"),
        ("members=-1", "members", "-1"),
        ("members=2.5", "members", "2.5"),
        ("members=four", "members", "four"),
        ("members=true", "members", "True"),
        ("seeds=[]", "seeds", "[]"),
        ("seeds=[1, 1]", "seeds", "[1, 1]"),
        ("seeds=[-1]", "seeds", "-1"),
        ("seeds=3", "seeds", "3"),
        ("teachers.batch=0", "teachers.batch", "0"),
        ("teachers.epochs=0", "teachers.epochs", "0"),
        ("teachers.learning_rate=0", "teachers.learning_rate", "0"),
        ("teachers.learning_rate=fast", "teachers.learning_rate", "fast"),
        ("teachers.momentum=1", "teachers.momentum", "1"),
        ("teachers.weight_decay=-1", "teachers.weight_decay", "-1"),
        ("teachers.network.depth=9", "teachers.network.depth", "9"),
        ("teachers.network={kind='wide_resnet', depth=9, widen=1}", "teachers.network.depth", "9"),
        ("data.name=3", "data.name", "3"),
        ("data.per_class=0", "data.per_class", "0"),
        ("data.valid=-5", "data.valid", "-5"),
        ("precision=float8", "precision", "float8"),
        ("methods.kd.perturb=3", "methods.kd.perturb", "3"),
        ("methods={}", "methods", "{}"),
        ("methods.kd=3", "methods.kd", "3"),
        ("teachers=3", "teachers", "3"),
        ("name=../elsewhere", "name", "../elsewhere"),
    ],
)
def test_a_wrong_type_or_an_impossible_value_names_key_and_value(small, override, place, value):
    text = complaint(small, override)
    assert text.startswith(f"small.toml: {place}")
    assert re.search(r"must|should|at least", text)
    assert value in text or "pattern" in text or value in ("[]", "{}")


@pytest.mark.parametrize("step", ["0", "-1/255", "0/255", "1/0", "'big'", "true", "nan", "inf", "[1]", "4"])
def test_an_invalid_step_size_is_rejected(small, step):
    for key in ("student.step_size", "methods.kd.step_size"):
        text = complaint(small, f"{key}={step}")
        assert text.startswith(f"small.toml: {key} must be a number or a fraction above 0, such as")


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "", "a b"])
def test_a_method_name_that_cannot_be_a_folder_is_rejected(small, name):
    text = complaint(small, f"methods={{'{name}' = {{}}}}")
    assert text.startswith("small.toml: methods")


@pytest.mark.parametrize("table", ["data", "teachers", "student", "methods", "members"])
def test_a_missing_table_is_named(tmp_path, table):
    lines = SMALL.splitlines()
    if table == "members":
        rest = [line for line in lines if not line.startswith("members")]
    else:
        start = lines.index(f"[{table}]")
        end = next((i for i in range(start + 1, len(lines)) if lines[i].startswith("[")), len(lines))
        rest = lines[:start] + lines[end:]
    path = tmp_path / "part.toml"
    path.write_text("\n".join(rest))
    assert complaint(path) == f"part.toml: the recipe needs the key '{table}'"


@pytest.mark.parametrize(
    "content", [b"members: 4", b"[data", b"{}", b"a = 1\na = 2", b"\xff\xfe\x00", b"a = 'x\n"], ids=repr
)
def test_a_file_that_is_not_toml_is_named(tmp_path, content):
    path = tmp_path / "odd.toml"
    path.write_bytes(content)
    text = complaint(path)
    assert "odd.toml" in text
    assert re.search("is not TOML|cannot be read", text)


def test_a_missing_recipe_is_named_with_a_suggestion():
    assert complaint("digist") == "there is no recipe 'digist'; did you mean 'digits'?"
    assert complaint("some/where/digist.toml").endswith("digist.toml'; did you mean 'digits'?")
    assert complaint("./x.toml") == "there is no file './x.toml'"
    assert complaint("qqqq").startswith("there is no recipe 'qqqq'; shipped are")


def test_a_folder_is_rejected_as_a_recipe(tmp_path):
    assert complaint(tmp_path) == f"'{tmp_path}' is not a file: a recipe is a TOML file"


def test_a_key_without_its_table_is_suggested_with_it(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    assert complaint(path, "alpha=0.5").endswith("a recipe has no key 'alpha'; did you mean 'student.alpha'?")
    assert complaint(path, "epochs=3").endswith("did you mean 'student.epochs' or 'teachers.epochs'?")
    assert complaint(path, "membres=3").endswith("did you mean 'members'?")


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("methods.kd.form=3", "methods.kd.form must be a table"),
        ("methods=3", "methods must be a table, not 3"),
        ("methods={}", "methods must not be empty"),
        ("seeds=[]", "seeds must not be empty"),
        ("name=../x", "name must be a name of letters, digits and + _ . -, not '../x'"),
        ("methods={'a/b' = {}}", "methods.a/b must be a name of letters, digits and + _ . -, not 'a/b'"),
        ("threads=100000", "threads must be less than or equal to 1024, not 100000"),
        ("data.seed=100000000000000000000", "data.seed must be less than"),
    ],
)
def test_errors_use_the_words_of_a_recipe(small, override, sentence):
    assert sentence in complaint(small, override)
