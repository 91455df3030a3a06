from __future__ import annotations

from itertools import product

import mpmath
import numpy as np
import pytest
import torch
from torch.autograd.functional import jacobian

from polyphony.analysis.jacobians import cosines, jacobian_cosines, softmax_jacobian
from polyphony.data import Split, pixels
from polyphony.ensembles import BatchEnsemble, DeepEnsemble
from polyphony.nn import resnet
from polyphony.training.fit import Unwatched

DIGITS = 500  # 1 − p is e⁻⁸⁰⁰ below


class Listening(Unwatched):
    def __init__(self):
        self.heard = []

    def step(self, done, steps, row):
        self.heard.append((done, steps))


def linear_jacobian(network, x):
    """J_k = p_k (W_k − Σ_i p_i W_i), in exact enough arithmetic. [k d]"""
    with mpmath.workdps(DIGITS):
        weight = mpmath.matrix(network.weight.tolist())
        z = weight * mpmath.matrix(x.flatten().tolist()) + mpmath.matrix(network.bias.tolist())
        total = mpmath.fsum(mpmath.exp(v) for v in z)
        p = mpmath.matrix([mpmath.exp(v) / total for v in z])
        mean = p.T * weight
        return [[p[k] * (weight[k, d] - mean[d]) for d in range(weight.cols)] for k in range(weight.rows)]


def exact_cosine(a, b):
    with mpmath.workdps(DIGITS):
        flat_a, flat_b = ([v for row in j for v in row] for j in (a, b))
        dot = mpmath.fdot(flat_a, flat_b)
        return float(dot / mpmath.sqrt(mpmath.fdot(flat_a, flat_a) * mpmath.fdot(flat_b, flat_b)))


@pytest.mark.parametrize("gap", [0.0, 10.0, 30.0, 100.0, 800.0])
def test_cosines_of_linear_classifiers_are_the_closed_form_however_confident(linear_ensemble, images, gap):
    teachers, student = linear_ensemble(2, gap), linear_ensemble(2, gap / 2)
    found = cosines(teachers, student, images)
    for j, i in product(range(2), range(len(images))):
        t, s = (linear_jacobian(model.networks[j], images[i]) for model in (teachers, student))
        assert float(found[j, i]) == pytest.approx(exact_cosine(t, s), rel=1e-9, abs=1e-12)


def test_autograd_through_the_softmax_loses_what_the_closed_form_keeps(linear_ensemble, images):
    teachers, student = linear_ensemble(1, 60.0).float(), linear_ensemble(1, 60.0).float()
    x = images[0].float()
    t, s = (linear_jacobian(m.networks[0], x) for m in (teachers, student))
    naive = [jacobian(lambda v, m=m: m.networks[0](v).softmax(-1), x[None]) for m in (teachers, student)]
    lost = torch.cosine_similarity(naive[0].flatten(), naive[1].flatten(), 0)
    assert float(cosines(teachers, student, x[None])) == pytest.approx(exact_cosine(t, s), abs=1e-5)
    assert abs(float(lost) - exact_cosine(t, s)) > 0.01


def test_cosines_in_float32_hold_where_the_square_of_a_gradient_is_zero(linear_ensemble, images):
    teachers, student = linear_ensemble(1).float(), linear_ensemble(1).float()
    with torch.no_grad():
        for model in (teachers, student):
            model.networks[0].weight *= 1e-23
    x = images[0].float()
    t, s = (linear_jacobian(m.networks[0], x) for m in (teachers, student))
    assert float(cosines(teachers, student, x[None])) == pytest.approx(exact_cosine(t, s), abs=1e-5)


@pytest.mark.parametrize("member_norm", [False, True])
def test_cosines_of_networks_match_a_loop_over_examples_and_members(rng, member_norm):
    teachers = DeepEnsemble([resnet(8, 4, 1, 2, rng).double() for _ in range(2)])
    student = BatchEnsemble(resnet(8, 4, 1, 2, rng), 2, rng=rng, member_norm=member_norm).double().eval()
    x = torch.rand(3, 1, 8, 8, generator=rng, dtype=torch.float64)
    found = cosines(teachers, student, x)
    for j, i in product(range(2), range(3)):
        plain = teachers.networks[j], student.member(j)
        t, s = (jacobian(lambda v, net=net: net(v).softmax(-1), x[i : i + 1]).flatten() for net in plain)
        assert float(found[j, i]) == pytest.approx(float(t @ s / (t.norm() * s.norm())), abs=1e-9)


def test_a_split_is_read_in_batches_that_do_not_change_the_result(rng):
    teachers = DeepEnsemble([resnet(8, 4, 1, 2, rng) for _ in range(2)])
    student = BatchEnsemble(resnet(8, 4, 1, 2, rng), 2, rng=rng)
    images = torch.randint(256, (7, 1, 8, 8), dtype=torch.uint8, generator=rng)
    split, watch = Split(images, torch.zeros(7, dtype=torch.int64)), Listening()
    found = jacobian_cosines(teachers, student, split, batch=3, watch=watch)
    assert student.training  # as it was
    exact = cosines(teachers.double(), student.double().eval(), pixels(images).double())
    torch.testing.assert_close(found, exact, atol=1e-4, rtol=0)
    assert watch.heard == [(3, 7), (6, 7), (7, 7)]


def test_the_softmax_jacobian_is_diag_p_minus_p_pt_over_the_second_largest_p(rng):
    z = torch.randn(6, 5, generator=rng, dtype=torch.float64)
    p = z.softmax(-1).numpy()
    for found, row in zip(softmax_jacobian(z), p, strict=True):
        np.testing.assert_allclose(found, (np.diag(row) - np.outer(row, row)) / np.sort(row)[-2], rtol=1e-12)


def test_a_network_that_never_changes_matches_nothing(linear_ensemble, images):
    still = linear_ensemble(1)
    with torch.no_grad():
        still.networks[0].weight.zero_()
    assert cosines(linear_ensemble(1), still, images).tolist() == [[0.0] * len(images)]


def test_numbers_of_members_must_agree(linear_ensemble):
    split = Split(torch.zeros(1, 3, 2, 2, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="3 teachers cannot be paired with 2"):
        jacobian_cosines(linear_ensemble(3), linear_ensemble(2), split)
