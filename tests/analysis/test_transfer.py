from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from polyphony.analysis import external_predictions
from polyphony.data import Split


def softmax(z):
    p = np.exp(z - z.max())
    return p / p.sum()


def test_the_diversity_of_linear_teachers_seen_through_an_external_one_is_the_closed_form(linear_ensemble):
    """x̃ = x + η √D g/‖g‖ with g = Σ_k p_k (w_k − Σ_i p_i w_i) W_k of the external network, τ = 2."""
    teachers, source = linear_ensemble(3).float(), linear_ensemble(1).float()
    images = torch.randint(
        80, 180, (4, 3, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(2)
    )
    split = Split(images, torch.zeros(4, dtype=torch.int64))
    rng = torch.Generator().manual_seed(9)
    found = external_predictions(teachers, source, split, 0.1, 2.0, rng)

    rng = torch.Generator().manual_seed(9)
    torch.randint(1, (), generator=rng)  # which of the sources: there is one
    guide = (2 * torch.rand(4, 4, generator=rng) - 1).double().numpy()
    outside = source.networks[0]
    weight, bias = outside.weight.double().numpy(), outside.bias.double().numpy()
    klds = []
    for i in range(4):
        x = images[i].flatten().double().numpy() / 255
        p = softmax((weight @ x + bias) / 2)
        g = (p * (guide[i] - p @ guide[i])) @ weight
        x = np.clip(x + 0.1 * np.sqrt(12) * g / np.linalg.norm(g), 0, 1)
        own = [
            softmax(net.weight.double().numpy() @ x + net.bias.double().numpy()) for net in teachers.networks
        ]
        klds.append(np.mean([np.sum(a * np.log(a / b)) for a, b in permutations(own, 2)]))
    assert found.mean_kld() == pytest.approx(np.mean(klds), rel=1e-4)
