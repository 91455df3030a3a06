"""Sets and coverage of a student: the run's own numbers, on its own test images."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from polyphony import load_student
from polyphony.report.files import read_table
from polyphony.runs.rows import SetScore, Threshold
from polyphony.serve import AnswerError
from polyphony.serve.thresholds import CoverageError, Thresholds


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
    found = Thresholds.of(rows[::-1])
    assert (found.score(0.5), found.score(0.505), found.score(0.51), found.score(0.52)) == (
        5.0,
        5.1,
        5.1,
        math.inf,
    )
    assert found.confidence(0.501) == 0.49
    for wrong in (0.49, 0.53, math.nan):
        with pytest.raises(CoverageError, match=r"choose one from 0\.5 to 0\.52"):
            found.score(wrong)


def test_a_run_without_thresholds_says_what_to_do(run, images, monkeypatch):
    monkeypatch.setattr(Thresholds, "of", lambda rows: None)
    answers = load_student(run, "be").predict(images.images[:2])
    assert answers.probabilities.shape == (2, 10)
    with pytest.raises(AnswerError, match="has no thresholds of validation images: evaluate its run again"):
        answers.sets(0.9)
