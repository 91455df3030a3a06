"""Sets and coverage of a student: the run's own numbers, on its own test images."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import onnxruntime
import pytest
import torch

from polyphony import load_student
from polyphony.runs.rows import SetScore, Threshold
from polyphony.runs.store import read_table
from polyphony.serve import AnswerError, Answers, ExportError, export_student
from polyphony.serve.description import CoverageError, Thresholds


def test_sets_are_those_that_the_run_scored(run, student, form, images):
    answers = student(form).predict(images.images)
    rows = [
        row for row in read_table(run, SetScore) if (row.model, row.score, row.label) == (form, "lac", None)
    ]
    assert len(rows) == 2
    for row in rows:
        sets = answers.sets(row.wanted)
        assert float(sets.sum(-1).double().mean()) == pytest.approx(row.size, abs=1 / len(images))
        held = sets[torch.arange(len(images)), images.labels].double().mean()
        assert float(held) == pytest.approx(row.coverage, abs=1 / len(images))


def test_more_coverage_is_larger_sets_and_more_answers(student, form, images):
    answers = student(form).predict(images.images)
    levels = np.linspace(0.5, 0.99, 9)
    sets, certain = [answers.sets(each) for each in levels], [answers.certain(each) for each in levels]
    for one, other in itertools.pairwise(sets):
        assert not bool((one & ~other).any())
    for one, other in itertools.pairwise(certain):
        assert not bool((one & ~other).any())
    assert [int(each.sum()) for each in certain] == sorted(int(each.sum()) for each in certain)


def test_a_coverage_between_two_takes_the_higher():
    rows = [Threshold("kd", 0, level / 100, 1 - level / 100, 2.0, level / 10) for level in (50, 51, 52)]
    rows[2] = Threshold("kd", 0, 0.52, 0.4, 2.0, math.inf)
    thresholds = Thresholds.of(rows[::-1])
    assert (
        thresholds.score(0.5),
        thresholds.score(0.505),
        thresholds.score(0.51),
        thresholds.score(0.52),
    ) == (
        5.0,
        5.1,
        5.1,
        math.inf,
    )
    assert thresholds.confidence(0.501) == 0.49
    for wrong in (0.49, 0.53, math.nan):
        with pytest.raises(CoverageError, match=r"a coverage must be from 0\.5 to 0\.52"):
            thresholds.score(wrong)


def test_a_run_without_thresholds_says_what_to_do(run, images, monkeypatch):
    monkeypatch.setattr(Thresholds, "of", lambda rows: None)
    answers = load_student(run, "be").predict(images.images[:2])
    assert answers.probabilities.shape == (2, 10)
    with pytest.raises(AnswerError, match="has no thresholds from validation images: evaluate its run again"):
        answers.sets(0.9)


@pytest.mark.parametrize(("form", "coverage"), [("be", 0.9), ("mimo", 0.6), ("dirichlet", 0.8), ("be", 0.99)])
def test_an_onnx_file_answers_with_the_sets_of_python(student, images, tmp_path, form, coverage):
    student_with_sets = student(form).with_sets(coverage)
    export_student(student_with_sets, tmp_path / "s.onnx", images.images)
    session = onnxruntime.InferenceSession(tmp_path / "s.onnx")
    names = [each.name for each in session.get_outputs()]
    assert names == ["probabilities", "entropy", "mutual_information", "members", "set"]
    assert json.loads(session.get_modelmeta().custom_metadata_map["sets"]) == coverage
    (sets,) = session.run(["set"], {"pixels": images.images.numpy()})
    same_sets(student_with_sets.predict(images.images), torch.from_numpy(sets), coverage)
    if coverage == 0.99:  # more than 45 calibration images can promise
        assert bool(sets.all())


def same_sets(answers, sets, coverage):
    scores, threshold = answers.set_scores(coverage)
    assert sets.dtype == torch.bool
    assert bool(((sets == answers.sets(coverage)) | ((scores - threshold).abs() < 1e-5)).all())


def test_a_file_of_pytorch_has_the_sets_too(student, images, tmp_path):
    student_with_sets = student("be").with_sets(0.9)
    export_student(student_with_sets, tmp_path / "s.pt2", images.images)
    sets = torch.export.load(tmp_path / "s.pt2").module()(images.images)["set"]
    same_sets(student_with_sets.predict(images.images), sets, 0.9)


def test_a_file_with_other_sets_is_not_written(student, images, tmp_path, monkeypatch):
    student_with_sets = student("be").with_sets(0.9)
    true_scores = Answers.set_scores
    monkeypatch.setattr(Answers, "set_scores", lambda self, c: (true_scores(self, c)[0], 0.01))
    with pytest.raises(ExportError, match="the file's set differ"):
        export_student(student_with_sets, tmp_path / "s.onnx", images.images)
    assert not list(tmp_path.iterdir())


def test_a_student_without_thresholds_has_no_sets_to_export(run, monkeypatch):
    monkeypatch.setattr(Thresholds, "of", lambda rows: None)
    with pytest.raises(AnswerError, match="has no thresholds from validation images: evaluate its run again"):
        load_student(run, "be").with_sets(0.9)


def test_the_command_exports_sets(say, refused, run, tmp_path):
    assert say("export", run, "be", "--out", tmp_path / "s.onnx", "--sets", "0.9").code == 0
    assert "set" in [each.name for each in onnxruntime.InferenceSession(tmp_path / "s.onnx").get_outputs()]
    for wrong in ("2", "0.3", "0", "nan"):
        words = f"a coverage must be from 0.5 to 0.99, not {wrong}"
        refused(say("export", run, "be", "--out", tmp_path / "t.onnx", "--sets", wrong), words)
    assert not (tmp_path / "t.onnx").exists()
