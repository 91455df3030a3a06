from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polyphony.data import Augmentation, Split
from polyphony.distill import CrossEntropy
from polyphony.ensembles import MIMO, member_rows
from polyphony.nn import resnet, wide_resnet
from polyphony.training.fit import Plan, fit

MEMBERS, CHANNELS, CLASSES = 3, 2, 5


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network() -> nn.Module:
    return resnet(8, MEMBERS * CLASSES, channels=MEMBERS * CHANNELS, width=4, rng=seeded())


def images(rows: int = 4) -> Tensor:
    return torch.rand(MEMBERS, rows, CHANNELS, 6, 6, generator=seeded(7))


def slot(j: int) -> slice:
    return slice(j * CHANNELS, (j + 1) * CHANNELS)


def outputs(j: int) -> slice:
    return slice(j * CLASSES, (j + 1) * CLASSES)


def test_parameters_are_the_papers():
    with torch.device("meta"):
        student = MIMO(wide_resnet(28, 10, 300, channels=9), 3)
    assert sum(p.numel() for p in student.parameters()) == 36_665_948


# Where each member's image goes in and its logits come out


def test_images_are_stacked_and_logits_taken_apart_by_member():
    inner, x = network().eval(), images()
    out = MIMO(inner, MEMBERS)(x)
    for i in range(x.shape[1]):
        stacked = torch.cat([x[j, i] for j in range(MEMBERS)])
        logits = inner(stacked[None])[0]
        for j in range(MEMBERS):
            torch.testing.assert_close(out[j, i], logits[outputs(j)])


@pytest.mark.parametrize("j", range(MEMBERS))
def test_an_image_is_seen_through_its_own_slot_alone(j):
    inner, x = network().eval(), images()
    student = MIMO(inner, MEMBERS)
    other = x.clone()
    other[j] = 1 - other[j]
    assert not torch.allclose(student(x), student(other))
    inner.stem.weight.data[:, slot(j)] = 0
    assert torch.equal(student(x), student(other))
    for i in set(range(MEMBERS)) - {j}:  # the other slots still see
        third = x.clone()
        third[i] = 1 - third[i]
        assert not torch.allclose(student(x), student(third))


@pytest.mark.parametrize("j", range(MEMBERS))
def test_logits_come_from_a_members_own_rows_of_the_classifier(j):
    inner, x = network().eval(), images()
    student = MIMO(inner, MEMBERS)
    before = student(x)
    inner.classifier.bias.data[outputs(j)] += 1
    after = student(x)
    torch.testing.assert_close(after[j], before[j] + 1)
    assert all(torch.equal(after[i], before[i]) for i in range(MEMBERS) if i != j)


def split_network() -> nn.Module:
    """A network with ideal members: each answers only for its own image."""
    return nn.Sequential(
        nn.Conv2d(MEMBERS * CHANNELS, MEMBERS * CLASSES, 6, groups=MEMBERS, bias=False), nn.Flatten()
    )


def test_gradients_reach_every_slot_of_a_dense_network_and_one_of_a_split_network():
    for inner, reaches in ((network().eval(), "all"), (split_network(), "own")):
        for j in range(MEMBERS):
            x = images().requires_grad_()
            MIMO(inner, MEMBERS)(x)[j].square().sum().backward()
            reached = [bool(x.grad[i].abs().sum() > 0) for i in range(MEMBERS)]
            assert reached == [reaches == "all" or i == j for i in range(MEMBERS)]


def test_rows_do_not_see_each_other_in_eval_mode():
    student, x = MIMO(network(), MEMBERS).eval(), images()
    torch.testing.assert_close(student(x)[:, 1:3], student(x[:, 1:3]))


# Who sees what in training


@given(
    size=st.integers(1, 12),
    members=st.integers(1, 4),
    repetition=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.1, 0.5, 0.6, 1.0]),
    seed=st.integers(0, 5),
)
@settings(max_examples=100, derandomize=True)
def test_every_member_sees_every_example_as_often_as_asked(size, members, repetition, share, seed):
    student = MIMO(nn.Identity(), members, batch_repetition=repetition, input_repetition=share)
    assignment = student.assign(size, seeded(seed)).tolist()
    assert len(assignment) == members
    assert all(Counter(row) == dict.fromkeys(range(size), repetition) for row in assignment)
    together = round(share * size * repetition)
    columns = list(zip(*assignment, strict=True))
    assert all(len(set(column)) == 1 for column in columns[len(columns) - together :])


@pytest.mark.parametrize(("share", "repetition", "together"), [(0.0, 1, 0), (0.0, 4, 0), (0.25, 2, 500)])
def test_a_share_of_rows_is_the_same_for_all_and_the_rest_by_chance_alone(share, repetition, together):
    student = MIMO(nn.Identity(), 3, batch_repetition=repetition, input_repetition=share)
    first, second, third = student.assign(1000, seeded()).unbind()
    assert int((first == second).sum()) - together < 15  # by chance one example meets itself about once
    assert int((second == third).sum()) - together < 15
    assert not torch.equal(first, first.sort().values)


def test_places_are_uniform():
    """Over many draws, example 0 is equally often in every row of a member, with or without shared rows."""
    student, rng, counts = MIMO(nn.Identity(), 2, input_repetition=0.5), seeded(), torch.zeros(2, 6)
    n = 3000
    for _ in range(n):
        assignment = student.assign(6, rng)
        counts += assignment == 0
    chi = ((counts - n / 6) ** 2 / (n / 6)).sum(1)
    assert float(chi.max()) < 20.5  # χ² with 5 degrees of freedom, p = 0.001


def test_equal_generators_give_equal_orders():
    student = MIMO(nn.Identity(), 3, batch_repetition=2)
    one, same, other = (student.assign(8, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_labels_follow_their_images():
    student = MIMO(nn.Identity(), 3, batch_repetition=2)
    x = torch.arange(5.0).view(5, 1, 1, 1)
    assignment = student.assign(5, seeded())
    assert torch.equal(member_rows(x, assignment).flatten(1).long(), member_rows(torch.arange(5), assignment))


def test_it_learns_stripes_from_shuffled_images():
    labels = torch.arange(120) % 3
    pixels = torch.randint(128, (120, 1, 6, 6), generator=seeded(1))
    pixels[torch.arange(120), 0, :, labels] += 100
    data = Split(pixels.to(torch.uint8), labels)
    inner = resnet(8, 2 * 3, channels=2, width=8, rng=seeded())
    student = MIMO(inner, 2, batch_repetition=2)
    plan = Plan(epochs=12, batch=20, learning_rate=0.1, warm_up=1, augment=Augmentation(0, False))
    log = fit(student, CrossEntropy(), data, data, plan, seeded())
    assert log[-1]["acc"] > 0.9  # of each member on its own rows, while another image is beside it
    assert log[-1]["valid_acc"] > 0.95


# What is refused


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_repetition": 0}, "batch_repetition must be greater than 0"),
        ({"input_repetition": 1.5}, "input_repetition must be less than or equal to 1, not 1.5"),
    ],
)
def test_impossible_repetitions_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        MIMO(network(), MEMBERS, **wrong)


def test_outputs_that_do_not_divide_are_refused():
    student = MIMO(resnet(8, 10, channels=MEMBERS * CHANNELS, width=4), MEMBERS)
    with pytest.raises(ValueError, match="10 outputs do not divide among 3 members"):
        student(images())
