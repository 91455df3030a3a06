"""Members that are draws from a distribution over functions: a network, and factors that are drawn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyphony._util.settings import Count, Members, check
from polyphony.ensembles.base import Ensemble, NetworkRunner, check_leading, share_rows
from polyphony.nn.conversion import normal

START = 0.1  # of L: draws that start small do not upset the network


class LatentFactor(Ensemble):
    """One network with K + q outputs, μ and Φ, of which members are draws (deep latent factor model, 2025).

    Member s has the logits μ(x) + L Z_s Φ(x) + σ e_s. L [k k] is lower triangular and learnt, σ² is the
    variance that this leaves of the teachers' logits; Z_s [k q] and e_s [k] are standard normal draws of a
    seed, kept with the weights. The network runs once for all members that see the same rows.

    `latents` are what stands for each teacher's Z while a training begins; `steps` counts training passes.

    Args:
        network: A network of `classes` + `factors` outputs.
        classes: K.
        teachers: How many teachers it learns from.
        factors: q.
        draws: How many members are drawn.
        seed: Of the draws.
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
        self.network, self.run = network, NetworkRunner(network)
        like, fixed = next(network.parameters()), torch.Generator().manual_seed(seed)
        first = torch.Generator().manual_seed(seed + 1) if rng is None else rng
        self.scale = nn.Parameter(START * torch.eye(classes).to(like))
        self.latents = nn.Parameter(normal((teachers, classes, factors), like, first))
        self.register_buffer("z", normal((draws, classes, factors), like, fixed))
        self.register_buffer("noise", normal((draws, classes), like, fixed))
        self.register_buffer("variance", torch.ones(()).to(like))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """[m b c h w] → [m b k]"""
        check_leading(x, self.members)
        shared = share_rows(x)
        mean, features = self.parts(x[0] if shared else x.flatten(0, 1))
        if not shared:
            mean, features = (each.unflatten(0, (self.members, -1)) for each in (mean, features))
        noise = self.variance.sqrt() * self.noise[:, None]
        return mean + features @ (self.lower() @ self.z).mT + noise

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """μ [b k] and Φ [b q] of images [b c h w], in float32 at least."""
        if self.training:
            self.steps += 1
        outputs = self.run(self.network, x)
        if outputs.shape[-1] != self.classes + self.z.shape[-1]:
            raise ValueError(
                f"the network gives {outputs.shape[-1]} outputs, not {self.classes} and {self.z.shape[-1]}"
            )
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        return outputs[:, : self.classes], outputs[:, self.classes :]

    def lower(self) -> Tensor:
        """L. [k k]"""
        return self.scale.tril()
