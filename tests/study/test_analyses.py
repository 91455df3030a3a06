"""All analyses of a tiny study of digits, from its folder to the files a report reads."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch.autograd.functional import jacobian

from polyphony.cli.inspect import analyse as command
from polyphony.cli.options import Where
from polyphony.compute.seeds import generator
from polyphony.data import pixels
from polyphony.distill.perturb import ODS
from polyphony.ensembles import DeepEnsemble
from polyphony.nn import factor_distance
from polyphony.recipe import check
from polyphony.runs.store import StoreError
from polyphony.study import analyses
from polyphony.study.analyses import ANALYSES, analyse, one_to_one, plain_student, with_factors
from polyphony.study.run import run_study
from polyphony.study.study import Study

SHORT = {"epochs": 1, "batch": 25, "learning_rate": 0.1}
RECIPE = {
    "name": "tiny",
    "members": 2,
    "data": {"name": "digits", "per_class": 5, "valid": 50, "test": 40, "augment": {"pad": 0, "flip": False}},
    "teachers": {"network": {"kind": "resnet", "depth": 8, "width": 2}, "extra": 1, **SHORT},
    "student": {"step_size": "20/255", "temperature": 3, **SHORT},
    "methods": {"scratch": {}, "kd-ods": {"perturb": "ods"}, "kd": {"perturb": "clean"}},
}


@pytest.fixture(scope="module")
def analysed(here, quiet, tmp_path_factory):
    study = Study(check(RECIPE, "tiny"), tmp_path_factory.mktemp("run"))
    run_study(study, here, quiet)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analyses, "SNR_SAMPLES", 4)
        patch.setattr(analyses, "SNR_BATCH", 5)
        done = analyse(study, ANALYSES, here, quiet, examples=6)
        assert done.left_out == {}
        assert all(path.is_file() for path in done.files)
        yield study


def table(study, name):
    with (study.folder / "analysis" / f"{name}.csv").open() as file:
        rows = list(csv.reader(file))
    return rows[0], [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def test_jacobians_are_those_of_the_saved_models(analysed):
    columns, rows = table(analysed, "jacobians")
    assert columns == ["split", "model", "seed", "member", "example", "cosine"]
    assert len(rows) == 2 * 3 * 2 * 6
    teachers = analysed.load_teachers(2)
    for row in rows[3::17]:
        i, j = int(row["example"]), int(row["member"])
        x = pixels(getattr(analysed.data(), row["split"]).some(6).images[i : i + 1]).double()
        student = analysed.load_student(row["model"], int(row["seed"])).eval()
        networks = teachers.networks[j].double(), student.member(j).double()
        t, s = (jacobian(lambda v, net=net: net(v).softmax(-1), x).flatten() for net in networks)
        assert float(row["cosine"]) == pytest.approx(float(torch.cosine_similarity(t, s, 0)), abs=1e-3)


def test_the_step_of_an_analysis_may_be_set_in_the_perturbations_table(here, quiet, tmp_path):
    own_step = {"perturb": {"kind": "ods", "step_size": "30/255"}, "temperature": 2}
    study = Study(check(RECIPE | {"methods": {"kd-ods": own_step}}, "tiny"), tmp_path)
    run_study(study, here, quiet)
    assert analyses.ods_setting(study) == pytest.approx((30 / 255, 2))


def test_snr_leaves_out_steps_above_one(tiny_recipe, tmp_path):
    study = Study(tiny_recipe("methods={kd={perturb='clean'}}", "student.step_size=0.4"), tmp_path)
    assert analyses.ods_setting(study)[0] == 0.4
    kept = [scale for scale in analyses.SNR_STEPS if scale * 0.4 <= 1]
    assert analyses.snr_steps(study) == kept == [1 / 4, 1 / 2, 1, 2]


def test_snr_covers_both_perturbations_around_the_recipes_step(analysed):
    columns, rows = table(analysed, "snr")
    assert columns == ["perturbation", "step_size", "snr", "samples", "literal"]
    assert all(float(row["literal"]) >= float(row["snr"]) for row in rows)
    sizes = [20 / 255 * scale for scale in (1 / 4, 1 / 2, 1, 2, 4)]
    assert [(row["perturbation"], float(row["step_size"])) for row in rows] == [
        *(("gaussian", pytest.approx(size)) for size in sizes),
        *(("ods", pytest.approx(size)) for size in sizes),
    ]
    assert {row["samples"] for row in rows} == {"4"}
    assert plain_student(analysed) == ("kd", 0)  # the paper looks at plain distillation


def test_transfer_takes_its_directions_from_the_extra_teacher(analysed):
    saved = load_file(analysed.folder / "predictions" / "teachers" / "train+external.safetensors")
    networks, train = list(analysed.load_teachers(3).networks), analysed.data().train
    teachers, extra = DeepEnsemble(networks[:2]), DeepEnsemble(networks[2:])
    x, rng = pixels(train.images), generator("perturbed training images", 0)
    with torch.no_grad():
        x_tilde = ODS(20 / 255)(x, train.labels, extra, None, 3.0, rng)
        torch.testing.assert_close(
            saved["logits"], teachers(x_tilde.expand(2, *x.shape)), atol=1e-4, rtol=1e-4
        )
    assert torch.equal(saved["labels"], train.labels)


def test_members_say_what_the_networks_say(analysed):
    saved = load_file(analysed.folder / "analysis" / "members.safetensors")
    students = {f"students.{method}" for method in RECIPE["methods"]}
    assert set(saved) == {"images", "perturbed", "teachers"} | students
    x = pixels(saved["images"])
    with torch.no_grad():
        for j in range(2):
            for name in ("teachers", *students):
                model = (
                    analysed.load_teachers(2).networks[j]
                    if name == "teachers"
                    else analysed.load_student(name.removeprefix("students."), 0).eval().member(j)
                )
                torch.testing.assert_close(saved[name][0, j], model(x).softmax(-1), atol=1e-5, rtol=1e-4)
    moved = (pixels(saved["perturbed"]) - x).square().mean((1, 2, 3)).sqrt()
    assert (moved > 0).all()
    assert (moved <= 21 / 255).all()  # shorter where pixels were clamped


def test_factors_name_every_model(analysed):
    columns, rows = table(analysed, "factors")
    assert columns == ["model", "seed", "distance"]
    assert {row["model"]: float(row["distance"]) for row in rows} == {
        method: factor_distance(analysed.load_student(method, 0)) for method in RECIPE["methods"]
    }


def test_a_second_call_does_nothing_and_a_changed_one_only_what_changed(analysed, here, board):
    tables = sorted((analysed.folder / "analysis").glob("*.*"))
    before = [path.stat().st_ino for path in tables]
    assert analyse(analysed, ANALYSES, here, board, examples=6).ran == 0
    assert (board.jobs, [path.stat().st_ino for path in tables]) == ([], before)
    analyse(analysed, ["jacobians"], here, board, examples=7)
    assert board.jobs == [f"Jacobians of {method}, seed 0" for method in RECIPE["methods"]]
    analyse(analysed, ["jacobians"], here, board, examples=6)


def test_what_cannot_be_done_is_said(analysed, here, quiet, tmp_path):
    fewer = RECIPE | {"teachers": RECIPE["teachers"] | {"extra": 0}}
    done = analyse(replace(analysed, recipe=check(fewer, "tiny")), ["transfer"], here, quiet)
    assert list(done.left_out) == ["transfer"]
    assert "no extra teacher" in done.left_out["transfer"]
    with pytest.raises(StoreError, match="teachers/0 is not fully trained"):
        analyse(replace(analysed, folder=tmp_path), ["factors"], here, quiet)


def test_the_command_says_where_the_files_are(analysed, capsys):
    command(analysed.folder, "factors", where=Where(device="cpu", workers=1))
    said = capsys.readouterr().out
    assert "Nothing to do" in said
    assert str(analysed.folder / "analysis" / "factors.csv") in said.replace("\n", "")


@pytest.fixture(scope="module")
def mixed(analysed, here, quiet):
    """A study beside the other one, whose teachers it takes over, with students of other forms."""
    study = of_forms(analysed.folder.parent / "mixed", scratch="single", kd_ods="hydra", kd="dirichlet")
    run_study(study, here, quiet)
    return study


def of_forms(folder, **forms):
    methods = {
        name: RECIPE["methods"][name.replace("_", "-")] | {"form": form} for name, form in forms.items()
    }
    return Study(check(RECIPE | {"methods": methods}, "tiny"), folder)


def test_students_without_a_member_for_each_teacher_are_left_out_by_name(mixed, here, quiet):
    assert plain_student(mixed) == ("kd_ods", 0)
    done = analyse(mixed, ["jacobians", "factors"], here, quiet, examples=3)
    assert set(done.left_out) == {"jacobians of scratch", "jacobians of kd", "factors"}
    assert "one independent member for each teacher" in done.left_out["jacobians of kd"]
    assert "no student has the members" in done.left_out["factors"]
    _, rows = table(mixed, "jacobians")
    assert {row["model"] for row in rows} == {"kd_ods"}


@pytest.mark.parametrize(
    ("form", "compared", "factored"),
    [
        ("batch_ensemble", True, True),
        ("hydra", True, False),
        ("mimo", False, False),  # its members share their inputs
        ("latent_be", False, False),  # merged
        ("single", False, False),
        ("dirichlet", False, False),
    ],
)
def test_which_students_an_analysis_is_made_of_is_known_before_any_is_trained(
    tmp_path, form, compared, factored
):
    study = of_forms(tmp_path, kd=form)
    assert one_to_one(study) == ["kd"] * compared
    assert with_factors(study) == ["kd"] * factored
