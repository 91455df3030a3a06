"""How ensembles run their networks: in a memory format that works for them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from polyphony.data import Augmentation, Split
from polyphony.distill import CrossEntropy
from polyphony.ensembles import MIMO, BatchEnsemble, DeepEnsemble, Dirichlet, Hydra, LatentBE, Single
from polyphony.nn import add_members, merge_member, resnet
from polyphony.training.fit import Plan, fit

MEMBERS, CLASSES = 2, 3


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Viewed(nn.Module):
    """`view(b, -1)` after a norm and a convolution, which channels_last does not allow."""

    def __init__(self, channels: int = 3, classes: int = CLASSES) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(channels), nn.Conv2d(channels, 4, 3)
        self.out = nn.Linear(4 * 36, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.norm(x)).relu()
        return self.out(y.view(len(y), -1))


class Shortcut(nn.Module):
    """A strided 1 × 1 convolution of few channels."""

    def __init__(self, channels: int = 3, classes: int = CLASSES) -> None:
        super().__init__()
        self.slim, self.out = nn.Conv2d(channels, 8, 1, stride=2), nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.slim(x).relu().mean((2, 3)))


def small(channels: int = 3, classes: int = CLASSES) -> nn.Module:
    return resnet(8, classes, channels, 4, rng=seeded())


def last_layer(network: nn.Module) -> str:
    return list(dict(network.named_modules()))[-1]


FORMS = {
    "single": lambda make: Single(make()),
    "deep": lambda make: DeepEnsemble([make() for _ in range(MEMBERS)]),
    "dirichlet": lambda make: Dirichlet(make()),
    "batch_ensemble": lambda make: BatchEnsemble(make(), MEMBERS),
    "branch": lambda make: BatchEnsemble(make(), MEMBERS, branch=last_layer(make())),
    "latent": lambda make: LatentBE(make(), MEMBERS),
    "hydra": lambda make: Hydra(make(), MEMBERS),
    "mimo": lambda make: MIMO(make(3 * MEMBERS, CLASSES * MEMBERS), MEMBERS),
}


def images(members: int, side: int = 8) -> Tensor:
    x = torch.rand(members * 4, 3, side, side, generator=seeded(1))
    return x.contiguous(memory_format=torch.channels_last).unflatten(0, (members, 4))


def is_channels_last(model: nn.Module) -> bool:
    weights = [p for p in model.parameters() if p.dim() == 4 and not p.is_contiguous()]
    return bool(weights)


@pytest.mark.parametrize("form", FORMS)
def test_convolutions_run_channels_last_where_they_can(form):
    model = FORMS[form](small)
    model(images(model.members))
    assert is_channels_last(model)


@pytest.mark.parametrize("make", [Viewed, Shortcut])
@pytest.mark.parametrize("form", FORMS)
def test_a_network_that_channels_last_breaks_runs_in_the_usual_layout(form, make):
    model = FORMS[form](make).train()
    x = images(model.members).requires_grad_()
    out = model(x)
    assert not is_channels_last(model)
    assert out.shape == (model.members, 4, CLASSES)
    out.square().sum().backward()
    assert x.grad.any()
    torch.testing.assert_close(model.eval()(x), model(x.detach().contiguous()))


@pytest.mark.parametrize("form", ["single", "dirichlet", "batch_ensemble", "hydra"])
def test_what_a_norm_saw_before_the_break_is_not_counted_twice(form):
    model = FORMS[form](Viewed).train()
    x = images(model.members)
    model(x)
    (norm,) = (module for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    assert norm.num_batches_tracked == 1
    torch.testing.assert_close(norm.running_mean, 0.1 * x.mean((0, 1, 3, 4)))


def test_images_that_do_not_fit_leave_the_layout_as_it_is():
    network = small()
    network.normalize = nn.Identity()  # which would say what is wrong
    model = Single(network)
    with pytest.raises(RuntimeError, match="channels"):
        model(torch.rand(1, 2, 5, 8, 8))
    assert is_channels_last(model)


def test_a_copy_runs_by_itself():
    model = BatchEnsemble(Viewed(), MEMBERS, rng=seeded())
    again = copy.deepcopy(model)
    x = images(MEMBERS)
    torch.testing.assert_close(model.eval()(x), again.eval()(x))
    again.network.out.shared.weight.data.zero_()
    assert not torch.allclose(model(x), again(x))


# Members of a trained network


def stripes() -> Split:
    labels = torch.arange(120) % CLASSES
    pixels = torch.randint(128, (120, 3, 8, 8), generator=seeded(1))
    pixels[torch.arange(120), :, :, labels] += 100
    return Split(pixels.to(torch.uint8), labels)


def test_a_small_factor_std_keeps_what_a_trained_network_knows():
    data, network = stripes(), small()
    plan = Plan(epochs=12, batch=20, warm_up=1, augment=Augmentation(0, False))
    fit(Single(network), CrossEntropy(), data, data, plan, seeded())
    x = data.images.float() / 255

    def accuracies(model: nn.Module) -> list[float]:
        with torch.no_grad():
            logits = model.eval()(x.expand(model.members, *x.shape))
        return [float((member.argmax(-1) == data.labels).float().mean()) for member in logits]

    (trained,) = accuracies(Single(network))
    near = accuracies(BatchEnsemble(network, 4, factor_std=0.02, rng=seeded()))
    papers = accuracies(BatchEnsemble(network, 4, rng=seeded()))
    assert trained > 0.95
    assert min(near) > trained - 0.03
    assert sum(papers) / 4 < trained - 0.1  # N(1, ½²) throws it away
    assert accuracies(BatchEnsemble(network, 4, factor_std=0.0)) == 4 * [trained]


def test_factors_have_the_spread_asked_for():
    layer = add_members(nn.Linear(400, 300), 5, factor_std=0.1, rng=seeded())
    for factor in (layer.r.detach(), layer.s.detach()):
        assert float(factor.mean()) == pytest.approx(1, abs=0.01)
        assert float(factor.std()) == pytest.approx(0.1, rel=0.05)
    with pytest.raises(ValueError, match="factor_std must be"):
        add_members(nn.Linear(4, 3), 2, factor_std=-0.1)


def test_images_of_the_size_that_was_tried_are_not_tried_again(monkeypatch):
    tries = []
    monkeypatch.setattr(
        "polyphony.nn.trial.merge_member", lambda network, j: tries.append(j) or merge_member(network, j)
    )
    student = BatchEnsemble(resnet(8, CLASSES, 1, 2), 3)
    assert tries == [0]  # by the conversion, on images of 8×8 pixels
    student(torch.rand(3, 2, 1, 8, 8))
    assert tries == [0]
    student(torch.rand(3, 2, 1, 9, 9))
    assert tries == [0, 0, 2]  # the first and the last member
    with torch.device("meta"):
        blank = BatchEnsemble(resnet(8, CLASSES, 1, 2), 3)
    blank.to_empty(device="cpu").load_state_dict(student.state_dict())
    blank(torch.rand(3, 2, 1, 8, 8))
    assert tries == [0, 0, 2, 0, 0, 2]  # a trial without numbers says nothing
