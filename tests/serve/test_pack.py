"""A packed student loads without its run, answers the same, and is there complete or not at all."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest

from polyphony import load_student
from polyphony.recipe import foreign_table
from polyphony.runs.rows import Latency, Score, SetScore, to_csv
from polyphony.runs.run import Run
from polyphony.runs.store import StoreError, read_table, write_atomically
from polyphony.serve.load import load_samples
from polyphony.serve.pack import card


@pytest.fixture(scope="module")
def packed(run, tmp_path_factory):
    from polyphony.serve.pack import Packing, pack_student

    to = tmp_path_factory.mktemp("pack") / "digits-hydra"
    pack_student(run, "hydra", None, to, load_samples(run), Packing("MIT"))
    return to


def test_a_packed_student_answers_as_in_its_run_and_by_onnxruntime(packed, run, images):
    expected, packed_answers = (
        load_student(where, "hydra").predict(images.images) for where in (run, packed)
    )
    session = onnxruntime.InferenceSession(packed / "model.onnx")
    answers = session.run(None, {"pixels": images.images.numpy()})
    for output, value in zip(session.get_outputs(), answers, strict=True):
        here = getattr(expected, output.name)
        assert getattr(packed_answers, output.name).equal(here)
        np.testing.assert_allclose(value, here, atol=1e-5)


def test_its_card_says_scores_origin_and_licence(packed):
    card, config = (packed / "README.md").read_text(), json.loads((packed / "config.json").read_text())
    assert 'license: "mit"' in card  # as the Hub has them
    assert f"{100 * config['scores']['acc']:.2f}" in card
    assert "distilled from a deep ensemble of 2 networks (resnet)" in card
    assert "(diversity.svg)" in card
    assert (packed / "diversity.svg").read_bytes().startswith(b"<?xml")
    assert config["classes"] == list("0123456789")


def test_its_card_has_selective_prediction_and_sets(packed, run):
    description, card = load_student(packed).description, (packed / "README.md").read_text()
    whose = (description.method, description.seed)
    (score,) = [
        row
        for row in read_table(run, Score)
        if (row.model, row.seed, row.split, row.calibration) == (*whose, "test", "calibrated")
    ]
    (sets,) = [
        row
        for row in read_table(run, SetScore)
        if (row.model, row.seed, row.score, row.wanted, row.label) == (*whose, "lac", 0.9, None)
    ]
    lines = {line.split(" | ")[0]: line for line in card.splitlines()}
    assert lines["| errors among the 80 % most confident"].endswith(f" | {score.error_80:.1%} |")
    size = f" | {sets.size:.2f} ({sets.coverage:.1%} hold the true class) |"
    assert lines["| classes in a 90 % prediction set"].endswith(size)
    models = ["teachers", "best teacher", "one network (single)", "student"]
    assert f"| on test images | {' | '.join(models)} |" in lines.values()
    assert {f"| {model}" for model in models} <= lines.keys()


def test_its_card_has_the_price_where_the_run_has_measured_it(run, student, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    rows = [
        Latency(model, 9, milliseconds, batch, 1, 2_340_000, "onnxruntime 1")
        for batch in (1, 64)
        for model, milliseconds in (
            ("teachers", 4.0),
            ("best teacher", 1.0),
            ("single", 1.25),
            ("be", batch / 8),
        )
    ]
    write_atomically(tmp_path / "run" / Latency.file, to_csv(rows, Latency).encode())
    text = card(Run.open(tmp_path / "run"), student("be"), "mine", figure=False)
    assert "| milliseconds for one image, one thread | 4.00 | 1.00 | 1.25 | 0.12 |" in text
    assert "| file (MB, float32) | 2.34 | 2.34 | 2.34 | 2.34 |" in text


def test_the_card_of_a_student_of_own_code_says_how_that_loads(run, student):
    own = foreign_table("os:getcwd", run)
    of_code = replace(
        student("single"), description=student("single").description.model_copy(update={"network": own})
    )
    text, plain = (card(Run.open(run), each, "mine", figure=False) for each in (of_code, student("single")))
    assert 'load_student("mine", code=True)' in text
    assert "With Polyphony, if the code `os:getcwd` can be imported:" in text
    assert 'load_student("mine")' in plain
    assert "With Polyphony:" in plain


def test_nothing_is_left_where_packing_fails_and_nothing_is_replaced(say, refused, run, packed, tmp_path):
    refused(say("pack", run, "hidra", "--to", tmp_path / "a"), "did you mean 'hydra'?")
    (tmp_path / "b").mkdir()
    refused(say("pack", run, "hydra", "--to", tmp_path / "b"), "exists: give --out another name, or --force")
    refused(say("pack", run, "hydra", "--to", tmp_path / "b", "--force"), "only a packed student is replaced")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".cache") == ["b"]


def test_a_packed_student_is_replaced_by_force_and_may_hold_int8(say, run, packed, images, tmp_path):
    to = shutil.copytree(packed, tmp_path / "mine")
    (to / "note.txt").write_text("mine")
    result = say("pack", run, "be", "--out", to, "--force", "--int8", "--allow", "1")
    assert result.code == 0, result
    assert "left in float32" in result.out
    assert not (to / "note.txt").exists()
    assert load_student(to).description.method == "be"
    float32, int8 = (
        onnxruntime.InferenceSession(to / name).run(["members"], {"pixels": images.images.numpy()})[0]
        for name in ("model.onnx", "model-int8.onnx")
    )
    assert 0 < np.abs(float32 - int8).max() < 0.3
    card = (to / "README.md").read_text()
    size = (to / "model-int8.onnx").stat().st_size / 1e6
    assert f"`model-int8.onnx` is the same student with int8 weights and activations ({size:.2f} MB" in card
    assert re.search(r"ECE 0\.\d{4} \(float32 0\.\d{4}\), rank correlation of the mutual information", card)


@pytest.mark.parametrize("verb", ["export", "pack"])
def test_a_rise_is_allowed_to_int8_alone(say, run, verb, tmp_path):
    result = say(verb, run, "be", "--out", tmp_path / "s.onnx", "--allow", "0.02")
    assert (result.code, result.err) == (2, "polyphony: --allow needs --int8: give both, or neither\n")


@pytest.mark.parametrize(("verb", "to"), [("export", "s.onnx"), ("pack", "packed")])
def test_a_poor_student_is_written_with_the_warnings_of_the_page(say, run, verb, to, tmp_path):
    poor = shutil.copytree(run, tmp_path / "run")
    scores = {"be": {"nll": 3.0, "kld": 0.001}, "teachers": {"kld": 0.5}, "best teacher": {"nll": 1.25}}
    rows = [replace(row, **scores.get(row.model, {"nll": 1.0})) for row in read_table(run, Score)]
    write_atomically(poor / Score.file, to_csv(rows, Score).encode())
    warned = say(verb, poor, "be", "--out", tmp_path / to)
    assert (warned.code, (tmp_path / to).exists()) == (0, True), warned
    warnings = [line for line in warned.out.splitlines() if line.startswith("Warning: ")]
    assert len(warnings) == 2
    worse = "Warning: Worse than one teacher (calibrated test NLL 1.250): be (3.000). Train longer"
    assert warnings[0].startswith(worse)
    assert warnings[1].startswith("Warning: The members of be are almost alike: ")
    good = say(verb, poor, "single", "--out", tmp_path / to, "--force")
    assert good.code == 0, good
    assert "Warning" not in good.out


def test_an_int8_file_is_announced_with_its_own_temperature(say, run, tmp_path):
    result = say("export", run, "be", "--out", tmp_path / "s.onnx", "--int8", "--allow", "1")
    assert result.code == 0, result
    properties = onnxruntime.InferenceSession(tmp_path / "s.onnx").get_modelmeta().custom_metadata_map
    assert f"temperature {float(properties['temperature']):.3g})" in result.out


def spoil_weights(folder):
    (folder / "model.safetensors").write_bytes(b"nothing")


def spoil_config(folder):
    (folder / "config.json").write_text(json.dumps({"members": 2}))


def name_code(folder):
    config = json.loads((folder / "config.json").read_text())
    config["network"] = {"kind": "python", "name": "os:getcwd", "args": {}}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_weights, "is not the file that was packed"),
        (spoil_config, "does not describe a student"),
        (name_code, "needs the code 'os:getcwd', which runs only with code=True"),
    ],
)
def test_a_folder_that_is_not_what_was_packed_is_refused(packed, tmp_path, spoil, message):
    copy = shutil.copytree(packed, tmp_path / "copy")
    spoil(copy)
    with pytest.raises(StoreError, match=re.escape(message)):
        load_student(copy)


def test_a_packed_folder_holds_one_student(packed):
    with pytest.raises(StoreError, match="holds another student: the student of hydra, seed 0"):
        load_student(packed, "single")
