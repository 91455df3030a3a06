from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr, softmax

from polyphony.metrics import DirichletPredictions, Predictions
from polyphony.metrics.fidelity import Fidelity, rank_correlation


@settings(max_examples=60, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30))
def test_rank_correlation_is_scipys_with_ties(pairs):
    first, second = (torch.tensor(side, dtype=torch.float64) for side in zip(*pairs, strict=True))
    found = rank_correlation(first, second)
    if len(first.unique()) == 1 or len(second.unique()) == 1:
        assert found is None
    else:
        assert found == pytest.approx(scipy.stats.spearmanr(first, second).statistic, abs=1e-12)


def of(case):
    return Predictions(*case)


def loop_divergence(logits):
    p = softmax(logits.double().numpy(), axis=-1)
    pairs = list(itertools.permutations(range(len(p)), 2))
    return np.mean([rel_entr(p[i], p[j]).sum(-1) for i, j in pairs], axis=0)


def test_a_student_is_compared_with_its_teachers_image_by_image(draw_case):
    student, teachers = draw_case(0, members=3, scale=1.0), draw_case(0, members=3, scale=3.0)
    student = student._replace(
        logits=student.logits + torch.randn(3, 120, 10, generator=torch.Generator().manual_seed(0))
    )
    found = of(student).fidelity(of(teachers))
    mine, theirs = loop_divergence(student.logits), loop_divergence(teachers.logits)
    assert found.rank_correlation == pytest.approx(scipy.stats.spearmanr(mine, theirs).statistic, abs=1e-12)
    assert found.distance == pytest.approx(np.abs(mine - theirs).mean(), rel=1e-10)
    s, t = (softmax(each.logits.double().numpy(), axis=-1) for each in (student, teachers))
    klds = {(i, j): rel_entr(t[i], s[j]).sum(-1).mean() for i in range(3) for j in range(3)}
    own, other = np.mean([klds[j, j] for j in range(3)]), np.mean([v for (i, j), v in klds.items() if i != j])
    assert found.own_kld == pytest.approx(own, rel=1e-10)
    assert found.other_kld == pytest.approx(other, rel=1e-10)
    assert found.voice == pytest.approx(other - own, rel=1e-9)


def test_the_teachers_themselves_are_faithful_and_their_members_in_another_order_have_no_voice(draw_case):
    teachers = of(draw_case(0, members=4))
    found = teachers.fidelity(teachers)
    assert found.rank_correlation == pytest.approx(1)
    assert (found.distance, found.own_kld) == (0, 0)
    assert found.other_kld == pytest.approx(teachers.mean_kld(), rel=1e-10)
    turned = Predictions(teachers.logits.roll(1, 0), teachers.labels).fidelity(teachers)
    assert turned.rank_correlation == pytest.approx(1)
    assert turned.voice < 0


def test_classes_of_probability_zero_cost_nothing_or_everything(cases):
    sure = of(cases["certain"])
    assert sure.fidelity(sure).own_kld == 0
    assert sure.fidelity(sure).other_kld == np.inf


def test_what_a_student_does_not_have_is_none(draw_case):
    teachers = of(draw_case(0, members=4))
    none = Fidelity(None, None, None, None)
    assert teachers.first(1).fidelity(teachers) == none
    assert none.voice is None
    for other in (teachers.first(2), DirichletPredictions(teachers.logits[:1], teachers.labels)):
        found = other.fidelity(teachers)
        assert (found.own_kld, found.other_kld, found.voice) == (None, None, None)
        assert -1 <= found.rank_correlation <= 1
        theirs = loop_divergence(teachers.logits)
        assert found.distance == pytest.approx(np.abs(other.divergence().numpy() - theirs).mean())


def test_other_images_are_refused(draw_case):
    with pytest.raises(ValueError, match="same images"):
        of(draw_case(0)).fidelity(of(draw_case(1)))
