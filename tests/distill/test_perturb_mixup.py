from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor

from polyphony.distill import Distill
from polyphony.distill.perturb import ODS, Adversarial, Chain, Clean, Gaussian, Mixup, WithSource
from polyphony.ensembles import DeepEnsemble
from polyphony.nn import resnet

B = 12
LABELS = torch.arange(B) % 3


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def deep() -> DeepEnsemble:
    return DeepEnsemble([resnet(8, 3, channels=2, width=4, rng=seeded(j)) for j in range(2)])


def noise() -> Tensor:
    return torch.rand(B, 2, 6, 6, generator=seeded(5))


def mixed(concentration: float, rng: torch.Generator) -> Tensor:
    """Image i is a single bright pixel i, so that what is mixed can be read off. [b b]"""
    x = torch.eye(B).view(B, 1, 1, B)
    return Mixup(concentration)(x, LABELS, None, None, 1.0, rng).view(B, B)


def read_off(x_tilde: Tensor) -> tuple[float, list[int]]:
    """λ and the partner of each image; an image that met itself is whole."""
    whole = x_tilde.diagonal().isclose(torch.ones(B))
    partners = (x_tilde - torch.diag(x_tilde.diagonal())).argmax(1)
    partners[whole] = torch.arange(B)[whole]
    shares = x_tilde.diagonal()[~whole]
    torch.testing.assert_close(shares, shares[:1].expand_as(shares))  # one λ for the batch
    return float(shares[0]), partners.tolist()


def test_every_image_is_mixed_with_one_of_its_batch_by_one_share():
    share, partners = read_off(mixed(1.0, seeded()))
    assert sorted(partners) == list(range(B))
    expected = torch.zeros(B, B)
    for i, partner in enumerate(partners):
        expected[i, i] += share
        expected[i, partner] += 1 - share
    torch.testing.assert_close(mixed(1.0, seeded()), expected)


@pytest.mark.parametrize("concentration", [0.2, 1.0, 8.0])
def test_shares_are_beta_distributed(concentration):
    rng = seeded()
    draws = []
    for _ in range(400):
        x = torch.tensor([1.0, 0.0]).view(2, 1, 1, 1)
        first, second = Mixup(concentration)(x, LABELS[:2], None, None, 1.0, rng).flatten().tolist()
        if (first, second) != (1.0, 0.0):  # else each image met itself
            assert first + second == pytest.approx(1)
            draws.append(first)
    assert len(draws) > 150
    assert stats.kstest(draws, stats.beta(concentration, concentration).cdf).pvalue > 0.001


def test_partners_are_uniform():
    rng, met = seeded(), torch.zeros(B)
    for _ in range(600):
        met[read_off(mixed(1.0, rng))[1][0]] += 1
    assert stats.chisquare(met).pvalue > 0.001


def test_pixels_stay_between_0_and_1():
    x = noise().round()
    for seed in range(20):
        x_tilde = Mixup()(x, LABELS, None, None, 1.0, seeded(seed))
        assert x_tilde.min() >= 0
        assert x_tilde.max() <= 1


def test_equal_generators_give_equal_pixels_and_numpys_own_generator_has_no_part():
    x = noise()
    kept = x.clone()
    one, same, other = (Mixup()(x, LABELS, None, None, 1.0, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(x, kept)


# One after the other


def test_a_chain_hands_on_what_it_has():
    x, teachers = noise(), deep()
    rng = seeded(1)
    middle = Mixup()(x, LABELS, teachers, None, 4.0, rng)
    expected = ODS(0.01)(middle, LABELS, teachers, None, 4.0, rng)
    found = Chain((Mixup(), ODS(0.01)))(x, LABELS, teachers, None, 4.0, seeded(1))
    assert torch.equal(found, expected)
    assert not torch.equal(found, middle)


def test_order_matters_and_nesting_does_not():
    x, teachers = noise(), deep()
    first, second, third = Mixup(), Gaussian(0.01), ODS(0.01)
    calls = [
        Chain((first, second, third)),
        Chain((Chain((first, second)), third)),
        Chain((third, second, first)),
    ]
    flat, nested, reverse = (perturb(x, LABELS, teachers, None, 4.0, seeded()) for perturb in calls)
    assert torch.equal(flat, nested)
    assert not torch.equal(flat, reverse)


@pytest.mark.parametrize("perturbations", [(), (Clean(),), (Clean(), Clean())], ids=len)
def test_a_chain_that_changes_nothing_gives_the_very_same_pixels(perturbations):
    x = noise()
    assert Chain(perturbations)(x, LABELS, deep(), None, 4.0, seeded()) is x


@pytest.mark.parametrize("perturb", [Mixup(), Chain((Gaussian(0.1), Mixup())), WithSource(Mixup(), deep())])
def test_mixed_images_need_two_passes_unless_labels_have_no_weight(perturb):
    Distill(deep(), perturb=perturb, passes="two")
    Distill(deep(), perturb=perturb, passes="one", alpha=1.0)
    with pytest.raises(ValueError, match='passes must be "two" with mixed images'):
        Distill(deep(), perturb=perturb, passes="one")


def test_an_attack_on_mixed_images_uses_the_teachers_own_answers():
    """Labels are of the images before they were mixed."""
    teachers, x = deep(), noise()
    found = Chain((Mixup(), Adversarial(0.1)))(x, LABELS, teachers, None, 1.0, seeded())
    rng = seeded()
    x_mixed = Mixup()(x, LABELS, teachers, None, 1.0, rng)
    expected = Adversarial(0.1)(x_mixed, torch.full_like(LABELS, -1), teachers, None, 1.0, rng)
    assert torch.equal(found, expected)
    before = Chain((Adversarial(0.1), Mixup()))(x, LABELS, teachers, None, 1.0, seeded())
    rng = seeded()
    attacked = Adversarial(0.1)(x, LABELS, teachers, None, 1.0, rng)
    assert torch.equal(before, Mixup()(attacked, LABELS, teachers, None, 1.0, rng))
