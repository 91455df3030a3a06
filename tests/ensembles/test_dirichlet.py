from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from polyphony.data import Split
from polyphony.ensembles import BatchEnsemble, DeepEnsemble, Dirichlet, Single
from polyphony.metrics import DirichletPredictions, Predictions
from polyphony.nn import resnet
from polyphony.training.predict import predict


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(seed: int = 0) -> nn.Module:
    return resnet(8, 5, channels=2, width=4, rng=seeded(seed))


def images(b: int = 4) -> Tensor:
    return torch.rand(b, 2, 6, 6, generator=seeded(1))


@pytest.mark.parametrize("offset", [0.0, 1.0, 0.25])
def test_concentrations_are_the_offset_plus_the_exponentials_of_the_outputs(offset):
    network = small().eval()
    x = images()
    expected = offset + network(x).double().exp()
    outputs = Dirichlet(network, offset).eval()(x[None])
    torch.testing.assert_close(outputs[0].double().exp(), expected, rtol=1e-5, atol=0)


def test_without_an_offset_the_expected_prediction_is_the_networks_softmax():
    network, x = small().eval(), images()
    one, same = Dirichlet(network).eval()(x[None]), Single(network).eval()(x[None])
    assert torch.equal(one, same)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("output", [-200.0, 0.0, 200.0])
def test_log_concentrations_and_their_gradients_are_finite_for_extreme_outputs(offset, output):
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.tensor([output]))

        def forward(self, x):
            return self.value.expand(len(x), 3)

    student = Dirichlet(Constant(), offset)
    log_alpha = student(images()[None])
    log_alpha.sum().backward()
    expected = torch.tensor(output, dtype=torch.float64).exp() / (
        offset + torch.tensor(output).double().exp()
    )
    assert log_alpha.isfinite().all()
    assert float(student.network.value.grad) == pytest.approx(12 * float(expected), abs=1e-6)


def test_training_passes_are_counted_and_saved_with_the_weights():
    student = Dirichlet(small())
    for _ in range(3):
        student(images()[None])
    student.eval()
    student(images()[None])
    assert int(student.steps) == 3
    copied = Dirichlet(small(1))
    copied.load_state_dict(copy.deepcopy(student.state_dict()))
    assert int(copied.steps) == 3
    assert sum(p.numel() for p in student.parameters()) == sum(p.numel() for p in small().parameters())


def test_only_a_dirichlet_says_that_its_logits_are_concentrations():
    others = [Single(small()), DeepEnsemble([small()]), BatchEnsemble(small(), 2)]
    assert [each.predicts for each in (Dirichlet(small()), *others)] == [
        DirichletPredictions,
        *[Predictions] * 3,
    ]


@pytest.mark.parametrize("offset", [-0.5, float("nan"), float("inf")])
def test_an_offset_that_is_no_concentration_is_refused(offset):
    with pytest.raises(ValueError, match="offset must be"):
        Dirichlet(small(), offset)


def test_more_than_one_members_rows_are_refused():
    with pytest.raises(ValueError, match=r"inputs must be \[1 b …\]"):
        Dirichlet(small())(images().expand(2, 4, 2, 6, 6))


def test_predicting_does_not_count():
    student = Dirichlet(small()).train()
    data = Split((images(9) * 255).to(torch.uint8), torch.arange(9) % 5)
    predict(student, data, batch=2)
    assert int(student.steps) == 0
