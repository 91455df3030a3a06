from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from polyphony import metrics
from polyphony.data import Split
from polyphony.ensembles import BatchEnsemble, DeepEnsemble, Dirichlet, Ensemble, Single
from polyphony.nn import resnet
from polyphony.predictions import Predictions, detect_unknown, pool, predict


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(seed: int = 0) -> nn.Module:
    return resnet(8, 5, channels=2, width=4, rng=seeded(seed))


def split(n: int = 23) -> Split:
    images = torch.randint(256, (n, 2, 6, 6), generator=seeded(1)).to(torch.uint8)
    return Split(images, torch.randint(5, (n,), generator=seeded(2)))


def student() -> BatchEnsemble:
    made = BatchEnsemble(small(), 3, rng=seeded())
    made(torch.rand(3, 8, 2, 6, 6, generator=seeded()))  # running statistics of its own
    return made


@pytest.mark.parametrize("batch", [1, 7, 23, 250])
@pytest.mark.parametrize("make", [student, lambda: DeepEnsemble([small(0), small(1)])], ids=["batch", "deep"])
def test_every_member_sees_every_image_once_in_order_in_eval_mode(make, batch):
    ensemble, data = make(), split()
    predictions = predict(ensemble, data, batch=batch)
    assert torch.equal(predictions.labels, data.labels)
    ensemble.eval()
    with torch.no_grad():
        for i in range(len(data)):
            x = (data.images[i].double() / 255).float()
            expected = ensemble(x.expand(ensemble.members, 1, *x.shape))[:, 0]
            torch.testing.assert_close(predictions.logits[:, i], expected, rtol=1e-4, atol=1e-5)
    assert predictions.members == ensemble.members


def test_a_model_is_left_as_it_was_frozen_parts_too():
    model = student().train()
    model.network.bn.eval()  # a norm that somebody froze
    modes = {name: module.training for name, module in model.named_modules()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    predict(model, split())
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_is_left_as_it_was_after_a_failure():
    model = student().train()

    def fail(x: Tensor, y: Tensor) -> Tensor:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        predict(model, split(), before=fail)
    assert model.training


def test_pixels_may_be_changed_before():
    teachers, data = DeepEnsemble([small(0), small(1)]), split()
    seen = []

    def darken(x: Tensor, y: Tensor) -> Tensor:
        seen.append(y)
        return x / 2

    dark = Split(data.images // 2 * 2, data.labels)  # even values, so that halves are whole
    half = Split(dark.images // 2, dark.labels)
    found = predict(teachers, dark, batch=10, before=darken)
    torch.testing.assert_close(found.logits, predict(teachers, half).logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(torch.cat(seen), data.labels)


def test_logits_are_float32_whatever_the_model_computes_in():
    class Rough(Ensemble):
        members = 1

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(2).bfloat16()

    assert predict(Rough(), split()).logits.dtype == torch.float32


# What predictions say of their spread, whoever made them


def of_members(n: int = 6) -> Predictions:
    return Predictions(2 * torch.randn(3, n, 5, generator=seeded(3)), torch.arange(n) % 5)


def of_dirichlet(n: int = 6, seed: int = 4) -> Predictions:
    return Predictions(
        1 + 2 * torch.randn(1, n, 5, generator=seeded(seed)), torch.arange(n) % 5, dirichlet=True
    )


@pytest.mark.parametrize(("offset", "dirichlet"), [(0.0, True), (1.0, True), (None, False)])
def test_predictions_know_whether_they_are_concentrations(offset, dirichlet):
    model = Single(small()) if offset is None else Dirichlet(small(), offset)
    assert predict(model, split()).dirichlet is dirichlet


def test_members_are_scored_as_members():
    each = of_members()
    assert each.mean_kld() == metrics.mean_kld(each.logits) > 0
    assert torch.equal(
        each.diversity_bins().kld.nan_to_num(), metrics.diversity_bins(each.logits).kld.nan_to_num()
    )
    expected = metrics.uncertainties(each.logits, 1.5)
    assert torch.equal(each.uncertainties(1.5).mutual_information, expected.mutual_information)
    assert each.spread() == metrics.Spread.of(each.logits, each.labels)
    assert each.varies
    assert not each.first(1).varies
    assert each.first(1).mean_kld() == 0


def test_a_dirichlet_is_scored_by_its_closed_forms():
    each = of_dirichlet()
    alpha = each.logits[0].double().exp()
    klds = 4 / alpha.sum(-1)
    assert each.mean_kld() == pytest.approx(float(klds.mean()), rel=1e-12)
    sure = (alpha / alpha.sum(-1, keepdim=True)).amax(-1)
    plot = each.diversity_bins(4)
    assert plot.count.tolist() == [int(((sure > b / 4) & (sure <= (b + 1) / 4)).sum()) for b in range(4)]
    assert float((plot.count * plot.kld.nan_to_num()).sum()) == pytest.approx(float(klds.sum()))
    found, expected = each.uncertainties(2.0), metrics.dirichlet_uncertainties(each.logits[0], 2.0)
    assert torch.equal(found.mutual_information, expected.mutual_information)
    assert torch.equal(found.entropy, expected.entropy)
    assert each.varies
    torch.testing.assert_close(each.log_probs().exp(), alpha / alpha.sum(-1, keepdim=True))


def test_a_dirichlets_spread_says_that_it_is_one_network_with_a_distribution():
    spread = of_dirichlet(50).spread()
    assert spread.kld == pytest.approx(of_dirichlet(50).mean_kld())
    health = metrics.HealthCheck().judge(spread, teachers_kld=2 * spread.kld)
    assert health.verdict == metrics.Verdict.SINGLE
    assert "one network that predicts a distribution" in health.findings[0]
    assert "0.50 of the teachers'" in health.findings[0]


def test_pooling_keeps_the_kind_and_refuses_to_mix():
    both = pool([of_dirichlet(3, 1), of_dirichlet(2, 2)])
    assert both.dirichlet
    assert both.logits.shape == (1, 5, 5)
    assert both.labels.tolist() == [0, 1, 2, 0, 1]
    with pytest.raises(ValueError, match="cannot be pooled"):
        pool([of_dirichlet(), of_members().first(1)])


def test_draws_that_differ_give_unknown_inputs_away_though_the_mean_prediction_is_the_same():
    sharp = Predictions(torch.full((1, 20, 5), 5.0), torch.arange(20) % 5, dirichlet=True)
    flat = Predictions(torch.full((1, 10, 5), -1.0), torch.arange(10) % 5, dirichlet=True)
    found = detect_unknown(sharp, flat)
    assert found["mutual_information"].auroc == 1.0
    assert found["doubt"].auroc == 0.5
    assert metrics.detect_unknown_logits(sharp.logits, flat.logits)["mutual_information"].auroc == 0.5
