"""`polyphony predict`: what it prints is what Python answers; what it cannot do is one sentence."""

from __future__ import annotations

import csv
import io
import json

import pytest
from PIL import Image

from polyphony import load_student


@pytest.fixture
def folder(tmp_path, images):
    """Six test images as files, in a folder that has other things in it too."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number, image in enumerate(images.images[:6]):
        Image.fromarray(image[0].numpy()).save(folder / f"{number}.png")
    (folder / "notes.txt").write_text("no picture")
    return folder


def test_json_csv_and_table_say_what_python_answers(say, run, folder, images):
    answers = load_student(run, "hydra").predict(images.images[:6])
    records = json.loads(say("predict", run, folder, "--method", "hydra", "--json").out)
    rows = list(csv.DictReader(io.StringIO(say("predict", run, folder, "--method", "hydra", "--csv").out)))
    table = say("predict", run, folder, "--method", "hydra").out
    for i, (one, other) in enumerate(zip(records, rows, strict=True)):
        assert one["image"] == other["image"] == str(folder / f"{i}.png")
        assert one["label"] == other["label"] == str(int(answers.labels[i]))
        for name in ("confidence", "entropy", "mutual_information"):
            expected = pytest.approx(float(getattr(answers, name)[i]), abs=1e-6)
            assert one[name] == expected
            assert float(other[name]) == expected
        assert list(one["probabilities"].values()) == pytest.approx(
            answers.probabilities[i].tolist(), abs=1e-6
        )
        assert f"{one['confidence']:.1%}" in table


def test_who_decides_and_which_classes_are_possible(say, run, folder, images):
    arguments = ("predict", run, folder, "--method", "hydra", "--coverage", "0.7", "--sets", "0.9")
    answers = load_student(run, "hydra").predict(images.images[:6])
    records, table = json.loads(say(*arguments, "--json").out), say(*arguments).out
    rows = list(csv.DictReader(io.StringIO(say(*arguments, "--csv").out)))
    for i, (one, other) in enumerate(zip(records, rows, strict=True)):
        held = [str(k) for k in range(10) if answers.sets(0.9)[i, k]]
        assert one["set"] == held
        assert other["set"] == "; ".join(held)
        assert one["by"] == other["by"] == ("model" if answers.certain(0.7)[i] else "person")
    assert all(word in table for word in ("possible", "decided", records[0]["by"]))
    plain = say("predict", run, folder, "--method", "hydra", "--csv").out
    assert plain.splitlines()[0] == "image,label,confidence,entropy,mutual_information"


def test_a_long_table_has_a_line_for_each_image(say, run, folder, monkeypatch):
    arguments = ("predict", run, folder, "--method", "hydra", "--coverage", "0.7", "--sets", "0.9")
    records = json.loads(say(*arguments, "--json").out)
    monkeypatch.setattr("polyphony.cli.use.MOST_FOLDED", 5)
    head, *lines = say(*arguments).out.splitlines()
    assert head.split("  ")[0] == "image"
    for each, line in zip(records, lines, strict=True):
        assert line.startswith(f"{each['image']}  {each['label']} ")
        assert line.index(each["by"]) == head.index("decided by")
        assert line.endswith(", ".join(each["set"]) or "none")


def test_the_most_uncertain_come_first(say, run, folder):
    records = json.loads(say("predict", run, folder, "--json", "--sort").out)
    entropies = [each["entropy"] for each in records]
    assert entropies == sorted(entropies, reverse=True)
    assert len(set(entropies)) == 6


def test_which_student_was_asked_is_said(say, run, folder):
    best = load_student(run).description
    assert f"the student of {best.method}, seed 0" in say("predict", run, folder).err
    assert "the student of be-norm, seed 0" in say("predict", run, folder, "--method", "be-norm").err


def test_the_page_has_every_picture_and_needs_nothing_else(say, run, folder, tmp_path):
    strange = folder / "<script>&.png"
    (folder / "0.png").rename(strange)
    assert say("predict", run, folder, "--sort", "--page", tmp_path / "out" / "sheet.html").code == 0
    page = (tmp_path / "out" / "sheet.html").read_text()
    assert page.count("data:image/png;base64,") == 6
    assert "<script>&.png" not in page
    assert "&lt;script&gt;&amp;.png" in page
    assert "http" not in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN"], "predict needs IMAGES"),
        (["RUN", "IN", "--json", "--csv"], "not both"),
        (["nowhere", "IN"], "nowhere is not a run folder; 'polyphony study RECIPE' makes one"),
        (["RUN", "IN", "--method", "hidra"], "no method 'hidra'; did you mean 'hydra'?"),
        (["RUN", "IN", "--seed", "3"], "no seed 3"),
        (["RUN", "IN", "--sets", "0.999"], "a coverage must be from 0.5 to 0.99, not 0.999"),
        (["RUN", "IN", "--coverage", "0"], "a coverage must be from 0.5 to 0.99, not 0"),
        (["RUN", "missing.png"], "missing.png cannot be read"),
        (["RUN", "IN", "IN/notes.txt"], "notes.txt is not a valid picture"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(say, refused, run, folder, tmp_path, words, message):
    named = [word.replace("RUN", str(run)).replace("IN", str(folder)) for word in words]
    result = say("predict", *named, "--page", tmp_path / "page.html")
    refused(result, message)
    assert not result.out
    assert not (tmp_path / "page.html").exists()
