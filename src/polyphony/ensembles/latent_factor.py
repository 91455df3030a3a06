"""Members that are draws from a distribution over functions: one network, and random factors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from polyphony._util.settings import Count, Members, check
from polyphony.ensembles.base import Ensemble, NetworkRunner, check_leading, share_rows
from polyphony.nn.conversion import normal

START = 0.1  # L starts as 0.1 times the identity: large draws would disturb the network


class LatentFactor(Ensemble):
    """One network with K + q outputs, μ and Φ; members are random draws (deep latent factor model, 2025).

    Member s has the logits μ(x) + L Z_s Φ(x) + σ e_s. L [k k] is lower triangular and trained; σ² is the
    variance of the teachers' logits that the other terms do not explain. Z_s [k q] and e_s [k] are standard
    normal draws from a seed, saved with the weights. Their mean over members is zero, so that the members'
    mean logits are μ(x). The mean of e_s over classes is zero too, because the loss centres the teachers'
    logits. The network runs once for all members that see the same rows.

    `latents` take the place of each teacher's Z at the start of training; `steps` counts training passes.

    Args:
        network: A network of `classes` + `factors` outputs.
        classes: K.
        teachers: Number of teachers that it learns from.
        factors: q.
        draws: Number of members.
        seed: Seed of the members' draws.
        rng: Source of the first `latents`.
    """

    steps: Tensor
    variance: Tensor
    z: Tensor
    noise: Tensor

    def __init__(
        self,
        network: nn.Module,
        classes: int,
        teachers: int,
        *,
        factors: int = 8,
        draws: int = 16,
        seed: int = 0,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check(Members, teachers=teachers, draws=draws)
        check(Count, classes=classes, factors=factors)
        self.members, self.classes = draws, classes
        self.network, self.runner = network, NetworkRunner(network)
        like, fixed = next(network.parameters()), torch.Generator().manual_seed(seed)
        first = torch.Generator().manual_seed(seed + 1) if rng is None else rng
        self.scale = nn.Parameter(START * torch.eye(classes).to(like))
        self.latents = nn.Parameter(normal((teachers, classes, factors), like, first))
        z, noise = normal((draws, classes, factors), like, fixed), normal((draws, classes), like, fixed)
        self.register_buffer("z", deviations(z))
        self.register_buffer("noise", deviations(deviations(noise).T).T.contiguous())
        self.register_buffer("variance", torch.ones(()).to(like))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """[m b c h w] → [m b k]"""
        check_leading(x, self.members)
        shared = share_rows(x)
        mean, features = self.parts(x[0] if shared else x.flatten(0, 1))
        if not shared:
            mean, features = (part.unflatten(0, (self.members, -1)) for part in (mean, features))
        noise = self.variance.sqrt() * self.noise[:, None]
        return mean + features @ (self.lower() @ self.z).mT + noise

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """μ [b k] and Φ [b q] of images [b c h w], in float32 at least."""
        if self.training:
            self.steps += 1
        outputs = self.runner(self.network, x)
        if outputs.shape[-1] != self.classes + self.z.shape[-1]:
            raise ValueError(
                f"the network has {outputs.shape[-1]} outputs, not {self.classes} + {self.z.shape[-1]}"
            )
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        return outputs[:, : self.classes], outputs[:, self.classes :]

    def lower(self) -> Tensor:
        """L. [k k]"""
        return self.scale.tril()


def deviations(values: Tensor) -> Tensor:
    """The deviations from the mean, scaled to an unbiased variance; zero for one value. [n …] → [n …]"""
    return (values - values.mean(0)) * math.sqrt(len(values) / max(len(values) - 1, 1))
