from __future__ import annotations

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from polyphony.data import Split
from polyphony.ensembles import BatchEnsemble, DeepEnsemble, Dirichlet, Ensemble, Single
from polyphony.metrics import DirichletPredictions, Predictions
from polyphony.metrics.calibration import ece
from polyphony.nn import resnet
from polyphony.runs.rows import Score, columns
from polyphony.training.predict import predict


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


# What predictions say of themselves, whoever made them


def of_members(n: int = 6) -> Predictions:
    return Predictions(2 * torch.randn(3, n, 5, generator=seeded(3)), torch.arange(n) % 5)


def of_dirichlet(n: int = 6, seed: int = 4) -> DirichletPredictions:
    return DirichletPredictions(1 + 2 * torch.randn(1, n, 5, generator=seeded(seed)), torch.arange(n) % 5)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (Single, Predictions),
        (Dirichlet, DirichletPredictions),
        (lambda network: Dirichlet(network, 1.0), DirichletPredictions),
    ],
)
def test_an_ensemble_says_what_its_predictions_are(make, kind):
    assert type(predict(make(small()), split())) is kind


def test_scores_are_the_columns_of_scores_csv():
    each = of_members(50)
    p = each.logits.double().softmax(-1).mean(0)
    own = p[torch.arange(50), each.labels]
    named = p.argmax(-1) == each.labels
    found = each.scores()
    beside = {"model", "seed", "split", "calibration", "dee", "params"}
    assert set(found) == set(columns(Score)) - beside - {"rank_correlation", "distance", "voice"}
    assert found["acc"] == pytest.approx(float(named.double().mean()))
    assert found["nll"] == pytest.approx(float(-own.log().mean()))
    assert found["bs"] == pytest.approx(float((p.square().sum(-1) - 2 * own + 1).mean()))
    assert found["ece"] == pytest.approx(ece(p.log(), each.labels))
    assert found["kld"] == each.mean_kld() > 0


def test_a_temperature_scales_the_mean_prediction_and_not_its_members():
    each = of_members(50)
    p = each.logits.double().softmax(-1).mean(0)
    scaled = p**0.4 / (p**0.4).sum(-1, keepdim=True)
    found, standard = each.scores(2.5), each.scores()
    assert found["nll"] == pytest.approx(float(-scaled[torch.arange(50), each.labels].log().mean()))
    assert found["ece"] == pytest.approx(ece(scaled.log(), each.labels))
    assert (found["acc"], found["kld"]) == (standard["acc"], standard["kld"])
    assert each.scores(each.fit_temperature())["nll"] < min(found["nll"], standard["nll"])


def test_members_vary_and_one_does_not():
    each = of_members()
    assert each.varies
    assert not each.first(1).varies
    assert each.first(1).mean_kld() == 0


def test_a_dirichlet_is_scored_by_its_closed_forms():
    each = of_dirichlet()
    alpha = each.logits[0].double().exp()
    klds = 4 / alpha.sum(-1)
    assert each.mean_kld() == pytest.approx(float(klds.mean()), rel=1e-12)
    mean = alpha / alpha.sum(-1, keepdim=True)
    plot = each.diversity_bins(4)
    sure = mean.amax(-1)
    assert plot.count.tolist() == [int(((sure > b / 4) & (sure <= (b + 1) / 4)).sum()) for b in range(4)]
    assert float((plot.count * plot.kld.nan_to_num()).sum()) == pytest.approx(float(klds.sum()))
    found = each.uncertainties()
    torch.testing.assert_close(found["entropy"], -(mean * mean.log()).sum(-1))
    torch.testing.assert_close(found["doubt"], 1 - sure)
    shared = -(mean * ((alpha + 1).digamma() - (alpha.sum(-1, keepdim=True) + 1).digamma())).sum(-1)
    torch.testing.assert_close(found["mutual_information"], found["entropy"] - shared)
    assert each.varies
    torch.testing.assert_close(each.log_probs().exp(), mean)


def test_joining_keeps_the_kind_and_refuses_to_mix():
    both = Predictions.joined([of_dirichlet(3, 1), of_dirichlet(2, 2)])
    assert type(both) is DirichletPredictions
    assert both.logits.shape == (1, 5, 5)
    assert both.labels.tolist() == [0, 1, 2, 0, 1]
    with pytest.raises(ValueError, match="cannot be joined"):
        Predictions.joined([of_dirichlet(), of_members().first(1)])


def test_unknown_inputs_are_told_by_each_uncertainty():
    known, unknown = of_members(30), Predictions(of_members(20).logits / 3, torch.zeros(20).long())
    p, q = (each.logits.double().softmax(-1) for each in (known, unknown))
    entropies = [-(mean * mean.log()).sum(-1) for mean in (p.mean(0), q.mean(0))]
    shared = [-(each * each.log()).sum(-1).mean(0) for each in (p, q)]
    scores = {
        "entropy": entropies,
        "mutual_information": [whole - part for whole, part in zip(entropies, shared, strict=True)],
        "doubt": [1 - mean.amax(-1) for mean in (p.mean(0), q.mean(0))],
        "energy": [-each.logits.double().mean(0).exp().sum(-1).log() for each in (known, unknown)],
        "max_logit": [-each.logits.double().mean(0).amax(-1) for each in (known, unknown)],
    }
    found = known.detect(unknown)
    assert found.keys() == scores.keys()
    for name, pair in scores.items():
        assert found[name].auroc == pytest.approx(roc_auc_score([0] * 30 + [1] * 20, torch.cat(pair)))


def test_draws_that_differ_give_unknown_inputs_away_though_the_mean_prediction_is_the_same():
    labels = torch.arange(20) % 5
    sharp, flat = (DirichletPredictions(torch.full((1, 20, 5), value), labels) for value in (5.0, -1.0))
    assert sharp.detect(flat)["mutual_information"].auroc == 1.0
    assert sharp.detect(flat)["doubt"].auroc == 0.5
    sharp, flat = (Predictions(each.logits, labels) for each in (sharp, flat))
    assert "mutual_information" not in sharp.detect(flat)  # of one network there is none
