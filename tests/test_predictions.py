from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from polyphony.data import Split
from polyphony.ensembles import BatchEnsemble, DeepEnsemble
from polyphony.nn import resnet
from polyphony.predictions import predict


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
    class Rough(nn.Module):
        members = 1

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(2).bfloat16()

    assert predict(Rough(), split()).logits.dtype == torch.float32
