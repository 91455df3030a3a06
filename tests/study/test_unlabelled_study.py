"""A study with images without labels."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest
from safetensors.torch import load_file

from polyphony.metrics import Predictions
from polyphony.recipe import RecipeError, read_recipe
from polyphony.study.cost import costs
from polyphony.study.study import Study

TWO = "methods={kd={perturb='clean', share=0}, more={perturb='ods'}, scratch={}}"


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("camera") / "camera.npz"
    np.savez(path, images=np.random.default_rng(0).integers(0, 256, (30, 8, 8), dtype=np.uint8))
    return str(path)


def settings(folder, *methods):
    return [json.loads((folder / "students" / name / "0/done.json").read_text())["spec"] for name in methods]


def test_only_methods_with_a_share_train_on_them(run, images, tmp_path):
    base = ("seeds=[0]", TWO)
    _, plain, _ = run(
        tmp_path / "plain", *base[:1], "methods={kd={perturb='clean'}, more={perturb='ods'}, scratch={}}"
    )
    study, with_unlabelled, _ = run(tmp_path / "more", *base, f"data.unlabelled={images}")
    names = ("kd", "scratch", "more")
    before, after = settings(tmp_path / "plain", *names), settings(tmp_path / "more", *names)
    assert before[:2] == after[:2]
    assert "unlabelled" not in before[2]
    assert after[2]["unlabelled"] == study.data().unlabelled.fingerprint
    assert after[2]["method"]["share"] == 0.5
    nlls = [
        {row.model: row.nll for row in each.scores if (row.split, row.calibration) == ("test", "standard")}
        for each in (plain, with_unlabelled)
    ]
    assert [name for name in nlls[0] if nlls[0][name] != nlls[1][name]] == ["more"]
    saved = load_file(tmp_path / "more/predictions/teachers/unlabelled.safetensors")
    assert saved["logits"].shape == (2, 30, 10)
    (row,) = csv.DictReader((tmp_path / "more/analysis/unlabelled.csv").read_text().splitlines())
    valid = load_file(tmp_path / "more/predictions/teachers/valid.safetensors")["logits"][:2]
    klds = [float(Predictions(each, None).mean_kld()) for each in (saved["logits"], valid)]
    assert [float(row["kld"]), float(row["valid_kld"])] == pytest.approx(klds)
    assert not (tmp_path / "plain/analysis/unlabelled.csv").exists()


def test_a_share_makes_an_epoch_longer(tiny_recipe, images, tmp_path):
    recipe = tiny_recipe("seeds=[0]", TWO, f"data.unlabelled={images}", "methods.more.share=0.75")
    study = Study(recipe, tmp_path)
    batch, images = recipe.student.batch, len(study.data().train)
    own = batch - round(0.75 * batch)
    assert study.student_steps("more", recipe.student.epochs) == recipe.student.epochs * math.ceil(
        images / own
    )
    flops = {each.name: each.flops for each in costs(study)}
    assert flops["more"] > 3 * flops["kd"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("methods.kd.share=0.5", r"methods\.kd\.share needs images without labels: set data\.unlabelled"),
        ("student.share=1", "student.share"),
        ("data.unlabelled=0", "data.unlabelled"),
    ],
)
def test_a_share_that_makes_no_sense_is_one_sentence(override, words):
    with pytest.raises(RecipeError, match=words):
        read_recipe("digits", [override])


def test_a_student_from_scratch_has_no_use_for_them(images):
    with pytest.raises(RecipeError, match=r"methods\.scratch\.share needs teachers"):
        read_recipe("digits", [f"data.unlabelled={images}", "methods.scratch.share=0.5"])
